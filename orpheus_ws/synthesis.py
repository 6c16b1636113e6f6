"""One segment → PCM: engine → frames → codec → audio.

Rule: a segment is an async generator, and closing it is cancelling it: the engine slot and the codec
slot are free when `aclose` returns. The engine runs ahead as it likes; frames are decoded only when
the consumer asks for the next chunk, so a slow consumer costs integers, not audio.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from orpheus_ws.audio import AUDIBLE, Portion, Shaper
from orpheus_ws.codec import Codec, CodecStream
from orpheus_ws.engine import Engine, Prompt
from orpheus_ws.errors import EngineFailed, NoAudio, OrpheusError
from orpheus_ws.metrics import Metrics
from orpheus_ws.pcm import Chunk, Output, Samples
from orpheus_ws.tokens import (
    SAMPLE_RATE,
    SAMPLES_PER_FRAME,
    Frame,
    FrameAssembler,
    LoopDetector,
)
from orpheus_ws.trace import Trace, clock

STALL_SECONDS: Final = 30.0
"""An engine that says nothing for this long is given up; a full batch's prefill takes well below."""

Reason = Literal["end", "length"]
"""Why the engine stopped."""

_log = logging.getLogger("orpheus_ws.synthesis")


class Synthesis:
    """Speaks segments with one engine and one codec."""

    def __init__(self, engine: Engine, codec: Codec, metrics: Metrics) -> None:
        self._engine = engine
        self._codec = codec
        self._metrics = metrics
        self._stall_seconds = STALL_SECONDS

    async def speak(
        self,
        prompt: Prompt,
        shaper: Shaper,
        output: Output,
        trace: Trace,
        ask: Callable[[], Portion],
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the segment's audio, never an empty chunk; then `trace.reason` says how it ended.

        `shaper` and `output` are the context's and remember what came before; `ask` tells how
        many frames to wait for and decode next. Raises `EngineFailed`, `Internal`
        (the decode failed), and `NoAudio` when a second attempt with another seed gave no frame
        either. Use it under `contextlib.aclosing`; closing frees engine and codec.
        """
        for attempt in (prompt, msgspec.structs.replace(prompt, seed=prompt.seed ^ 1)):
            segment = _Segment(self._engine, self._metrics, attempt, trace, self._stall_seconds)
            listener = _LoopListener(segment.frames)
            early = ask().in_hand == 0.0
            async with segment.decoding(self._codec, early=early) as (stream, feeder):
                while len(samples := await stream.take(ask())):
                    if trace.first_samples_at is None:
                        trace.first_samples_at = clock()
                    chunk = output.feed(shaper.feed(samples))
                    if chunk.samples:
                        yield chunk
                    if listener.hear(samples):
                        trace.reason = "loop"
                        break
                else:
                    trace.reason = await feeder
            chunk = output.finish(shaper.finish())
            if chunk.samples:
                yield chunk
            if segment.frames:
                trace.trimmed_seconds = shaper.trimmed / SAMPLE_RATE
                return
        raise NoAudio("the engine had nothing to say for a segment that has words; rephrase it")


class _Segment:
    """One attempt at a segment: a task feeds the codec, the caller takes from it."""

    def __init__(
        self, engine: Engine, metrics: Metrics, prompt: Prompt, trace: Trace, stall_seconds: float
    ) -> None:
        self.frames: list[Frame] = []
        self._engine = engine
        self._metrics = metrics
        self._prompt = prompt
        self._trace = trace
        self._stall_seconds = stall_seconds
        self._assembler = FrameAssembler()

    @contextlib.asynccontextmanager
    async def decoding(
        self, codec: Codec, *, early: bool
    ) -> AsyncIterator[tuple[CodecStream, asyncio.Task[Reason]]]:
        """What the codec makes of it, and the task that knows in the end why the engine stopped."""
        stream = codec.open(seed=self._prompt.seed, early=early)
        feeder = asyncio.create_task(self._feed(stream))
        try:
            yield stream, feeder
        finally:
            stream.close()
            feeder.cancel()
            # Its outcome was taken by the caller, or is of no interest any more.
            await asyncio.gather(feeder, return_exceptions=True)

    async def _feed(self, stream: CodecStream) -> Reason:
        """Run the engine, give its frames to the codec and count; return why it stopped."""
        started = clock()
        self._metrics.generating(self._trace)
        try:
            async with (
                self._giving_up_when_stalled(),
                contextlib.aclosing(self._engine.generate(self._prompt)) as groups,
            ):
                async for ids in groups:
                    self._accept(ids, stream)
                    if self._assembler.ended or self._assembler.tokens >= self._prompt.max_tokens:
                        break
        except OrpheusError:
            raise
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            # Nobody cancelled us: it is the engine's own, and would end the speaker in silence.
            raise EngineFailed("the engine gave up this text; try again") from None
        except TimeoutError as error:
            raise EngineFailed("the engine stopped answering; try again") from error
        except Exception as error:
            _log.error(
                "engine failed",
                extra={"error": type(error).__name__, "trace_id": self._trace.trace_id},
            )
            raise EngineFailed("the engine failed; try again") from error
        finally:
            # An end that was not spoken by the engine: its budget is spent, or it gave up.
            reason: Reason = "length" if self._spent else "end"
            self._assembler.finish()
            self._metrics.generated(self._trace)
            trace = self._trace
            trace.segment_generated_at = clock()
            self._count(trace.segment_generated_at - started)
            stream.finish()
        return reason

    @contextlib.asynccontextmanager
    async def _giving_up_when_stalled(self) -> AsyncIterator[None]:
        """Raise `TimeoutError` within when the engine has said nothing for `stall_seconds`.

        Its timer looks now and then when that was: moving a timer for every group costs more.
        """
        async with asyncio.timeout(None) as scope:
            self._look_in(self._stall_seconds, scope)
            try:
                yield
            finally:
                self._looking.cancel()

    def _look_in(self, seconds: float, scope: asyncio.Timeout) -> None:
        self._looking = asyncio.get_running_loop().call_later(seconds, self._look, scope)

    def _look(self, scope: asyncio.Timeout) -> None:
        silence = clock() - (self._trace.heard_at or 0.0)
        if silence >= self._stall_seconds:
            scope.reschedule(asyncio.get_running_loop().time())
        else:
            self._look_in(self._stall_seconds - silence, scope)

    @property
    def _spent(self) -> bool:
        return not self._assembler.ended and self._assembler.tokens >= self._prompt.max_tokens

    def _accept(self, ids: Sequence[int], stream: CodecStream) -> None:
        trace, assembler = self._trace, self._assembler
        trace.heard_at = clock()
        if trace.segment_first_token_at is None:
            trace.segment_first_token_at = trace.heard_at
            trace.first_token_at = trace.first_token_at or trace.heard_at
        tokens, invalid = assembler.tokens, assembler.invalid
        frames = assembler.push(ids)
        new = assembler.tokens - tokens
        self._metrics.tokens.value += new
        trace.tokens += new
        if assembler.invalid != invalid:
            self._metrics.invalid_tokens.inc(assembler.invalid - invalid)
            trace.invalid_tokens += assembler.invalid - invalid
        if frames:
            if trace.first_frame_at is None:
                trace.first_frame_at = clock()
            self._metrics.frames.value += len(frames)
            trace.frames += len(frames)
            self.frames.extend(frames)
            stream.push(frames)

    def _count(self, wall_seconds: float) -> None:
        trace, assembler = self._trace, self._assembler
        trace.dropped_tokens += assembler.dropped
        trace.segment_audio_seconds = len(self.frames) * SAMPLES_PER_FRAME / SAMPLE_RATE
        trace.segment_wall_seconds = wall_seconds
        trace.audio_seconds += trace.segment_audio_seconds
        trace.wall_seconds += wall_seconds


def _is_cancelled() -> bool:
    """Whether somebody has cancelled the running task. A caller that kept the task would refer to itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _LoopListener:
    """Pairs decoded samples with the frames they came from, to notice an audible loop."""

    def __init__(self, frames: list[Frame]) -> None:
        self._frames = frames
        self._detector = LoopDetector()
        self._heard = 0  # frames heard to their end
        self._filled = 0  # samples of the next one heard so far
        self._audible = False  # one of those was

    def hear(self, samples: Samples) -> bool:
        """Take the next samples; true when what is heard has become a loop."""
        looping = False
        start = 0
        while start < len(samples):
            frame = self._frames[self._heard]
            end = min(len(samples), start + SAMPLES_PER_FRAME - self._filled)
            # Speech hardly ever repeats a frame, and one that is new may be audible or not.
            if not self._audible and not self._detector.is_new(frame):
                self._audible = bool(np.abs(samples[start:end]).max() >= AUDIBLE)
            self._filled += end - start
            start = end
            if self._filled == SAMPLES_PER_FRAME:
                looping |= self._detector.push(frame, audible=self._audible)
                self._heard += 1
                self._filled, self._audible = 0, False
        return looping
