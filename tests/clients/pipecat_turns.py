"""Turns through any TTS service of Pipecat, in a pipeline as its users have it."""

import asyncio
from collections.abc import Callable
from typing import Any

from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.websocket_service import WebsocketService
from pipecat.utils.errors import ErrorCategory
from pipecat.workers.runner import WorkerRunner
from websockets.protocol import State

from tests.clients.acting import HEARD_BEFORE_LEAVING, Failed, Open, Opening, Turn

SAMPLE_RATE = 24_000
PATIENCE = {"stop_frame_timeout_s": 60.0}
"""For any service of Pipecat's own. It takes a turn for over after 3 s without audio, and what comes after
that for the next one's; on a busy machine there may be none for longer."""
RESTARTS = {"reconnect_backoff_min_wait": 10.0}
"""For one with a socket: it looks for its server three times, then never again."""
NO_AUDIO = "completed with no audio"


class _Ear(FrameProcessor):
    """The end of the pipeline: it keeps what is heard, and says as a transport does when that is."""

    def __init__(self, heard: "asyncio.Queue[Frame]") -> None:
        super().__init__()
        self._heard = heard

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Called by the pipeline."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSStartedFrame):
            await self.push_frame(BotStartedSpeakingFrame(), FrameDirection.UPSTREAM)
        if isinstance(frame, TTSStoppedFrame):
            await self.push_frame(BotStoppedSpeakingFrame(), FrameDirection.UPSTREAM)
        await self._heard.put(frame)
        await self.push_frame(frame, direction)


class _Source(FrameProcessor):
    """The beginning of the pipeline: errors go up to it."""

    def __init__(self, heard: "asyncio.Queue[Frame]") -> None:
        super().__init__()
        self._heard = heard

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Called by the pipeline."""
        await super().process_frame(frame, direction)
        if isinstance(frame, ErrorFrame):
            await self._heard.put(frame)
        await self.push_frame(frame, direction)


class PipecatSpeaker:
    """A pipeline with one service, which lives until it is closed."""

    def __init__(self, service: Any, *, patient: bool) -> None:
        self._patient = patient
        self._service = service
        self._connected = asyncio.Event()
        if not isinstance(service, WebsocketService):
            self._connected.set()  # it connects when it has something to ask
        service.add_event_handler("on_connected", self._found)
        service.add_event_handler("on_disconnected", self._lost)
        self._heard: asyncio.Queue[Frame] = asyncio.Queue()
        self._worker = PipelineWorker(
            Pipeline([_Source(self._heard), service, _Ear(self._heard)]),
            params=PipelineParams(audio_out_sample_rate=SAMPLE_RATE),
            cancel_on_idle_timeout=False,
        )
        self._started = asyncio.Event()
        self._worker.add_event_handler("on_pipeline_started", self._begun)
        self._running: asyncio.Task[None] | None = None

    async def _found(self, *_: Any) -> None:
        self._connected.set()

    async def _lost(self, *_: Any) -> None:
        self._connected.clear()

    async def _begun(self, *_: Any) -> None:
        self._started.set()

    async def start(self) -> None:
        """Run the pipeline."""
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self._worker)
        self._running = asyncio.create_task(runner.run())
        await self._started.wait()

    async def say(self, text: str) -> Turn:
        """See `Speaker`.

        Who is patient waits until there is a connection: Pipecat looks for another one every few
        seconds, and what is said meanwhile is lost.
        """
        if self._patient:
            await self._connection()
        return await self._turn(text, float("inf"))

    async def interrupt(self, text: str) -> Turn:
        """See `Speaker`: the user has begun to speak.

        That takes longer than what was under way, which Pipecat's Deepgram service, whose audio has no
        name, would take for the next turn's.
        """
        turn = await self._turn(text, HEARD_BEFORE_LEAVING)
        await self._worker.queue_frame(InterruptionFrame())
        while not isinstance(await self._heard.get(), InterruptionFrame):
            pass
        if isinstance(self._service, WebsocketService):
            await (await self._service._websocket.ping())
        return turn

    async def close(self) -> None:
        """See `Speaker`."""
        await self._worker.cancel()
        if self._running is not None:
            await self._running

    async def _connection(self) -> None:
        """Wait until there is one. That the last one was lost may have been seen by its socket alone."""
        await self._connected.wait()
        while isinstance(self._service, WebsocketService) and not self._open:
            self._connected.clear()
            await self._connected.wait()

    @property
    def _open(self) -> bool:
        socket = self._service._websocket
        return socket is not None and socket.state is State.OPEN

    async def _turn(self, text: str, seconds: float) -> Turn:
        await self._worker.queue_frame(LLMFullResponseStartFrame())
        for position, word in enumerate(text.split()):
            await self._worker.queue_frame(LLMTextFrame(f" {word}" if position else word))
        await self._worker.queue_frame(LLMFullResponseEndFrame())
        pcm, words, context = b"", [], None
        while len(pcm) < seconds * SAMPLE_RATE * 2:
            frame = await self._heard.get()
            if isinstance(frame, TTSStartedFrame):
                context = frame.context_id
            # A turn without audio is told of after its end, too late for who has left.
            late = context is None and isinstance(frame, ErrorFrame) and NO_AUDIO in frame.error
            if isinstance(frame, ErrorFrame) and not self._patient and not late:
                raise _failed(frame)
            if context is None or getattr(frame, "context_id", None) != context:
                continue
            if isinstance(frame, TTSAudioRawFrame):
                pcm += frame.audio
            if isinstance(frame, TTSTextFrame) and frame.pts is not None:
                words.append((frame.text, frame.pts / 1e9))
            if isinstance(frame, TTSStoppedFrame) and pcm:
                break
        return Turn(pcm, SAMPLE_RATE, _from_zero(words))


def _from_zero(words: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Times from the first word on; Pipecat has them from when the pipeline began."""
    return [(word, round(at - words[0][1], 3)) for word, at in words]


def _failed(error: ErrorFrame) -> Failed:
    category = error.category or ErrorCategory.UNKNOWN
    return Failed(
        f"ErrorFrame({category.name})",
        status=_status(error.error),
        retryable=not category.is_permanent,
    )


def _status(error: str) -> int | None:
    """The HTTP status in an error's text, which is all there is of it."""
    return next((status for status in (401, 403, 404, 429, 503) if f"HTTP {status}" in error), None)


def opening(make: Callable[[Opening], Any]) -> Open:
    """For `act`: make the service for a server."""

    async def open_speaker(server: Opening) -> PipecatSpeaker:
        speaker = PipecatSpeaker(make(server), patient=server.patient)
        await speaker.start()
        return speaker

    return open_speaker
