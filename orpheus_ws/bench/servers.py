"""Servers of the gateway benchmark, and what they cost: bare sends, and the gateway itself over a simulated engine.

Rule: each runs in a process of its own and is told nothing while it is measured. They send the same
frames at the same pace. The simulated engine makes each of a frame's 7 tokens in a step of its own,
so that streams which began at different times have their frames at different times.
"""

import asyncio
import contextlib
import gc
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

import numpy as np
import psutil
import uvloop
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from orpheus_ws import config as configuration
from orpheus_ws import messages as m
from orpheus_ws.audio import Portion, Shaper
from orpheus_ws.codec import CodecStatistics, CodecStream, Work
from orpheus_ws.codec.simulated import LOWEST_PERIODS, tone
from orpheus_ws.config import CodecConfig
from orpheus_ws.engine import EngineStatistics, Prompt
from orpheus_ws.engine.simulated import SimulatedEngine
from orpheus_ws.pcm import Chunk, Output, Samples
from orpheus_ws.processes import Child
from orpheus_ws.server import Server, running
from orpheus_ws.server.loop_monitor import spare_collections
from orpheus_ws.server.tcp import tune
from orpheus_ws.synthesis import Synthesis
from orpheus_ws.tokens import CODES_PER_FRAME, FRAME_SECONDS, SAMPLES_PER_FRAME, Frame
from orpheus_ws.trace import Trace, clock
from orpheus_ws.wire.native import MsgpackWire

DECODE_SECONDS: Final = 0.004
"""What a codec step sleeps, standing for a GPU at work: the order of magnitude expected of full-size
SNAC, not a measurement. It is there so that the codec's thread and the event loop take turns."""

_WIRE: Final = MsgpackWire()


class Setup(NamedTuple):
    """How a server of the benchmark is put together."""

    streams: int
    pace: float
    """Seconds of audio that the engine makes in a second."""
    codec_thread: bool
    """Decode on the codec's thread, asleep; otherwise at no cost on the event loop."""
    group_lead_ms: int
    timed: bool
    """Note how long each frame takes from the engine to the transport; decoding takes no time."""

    @property
    def step_seconds(self) -> float:
        """One step of the engine: a token of each stream."""
        return FRAME_SECONDS / self.pace / CODES_PER_FRAME


class Announcement(NamedTuple):
    """A server is up."""

    url: str


class Confession(NamedTuple):
    """What only the server itself can say."""

    latencies: list[float]
    """Seconds from the engine's step to the transport, of every chunk; empty unless timed."""
    switch_interval: float


def cpu_seconds(server: Child) -> float:
    """CPU time that a server's process has used, in user and kernel mode."""
    times = psutil.Process(server.pid).cpu_times()
    return times.user + times.system


# The floor ----------------------------------------------------------------------------------------


def run_floor(setup: Setup, pipe: Connection) -> None:
    """Body of a process: what `websockets` alone costs to send the frames."""
    uvloop.run(_floor(setup, pipe))


async def _floor(setup: Setup, pipe: Connection) -> None:
    phases: list[list[ServerConnection]] = [[] for _ in range(CODES_PER_FRAME)]
    began: dict[ServerConnection, int] = {}
    step = 0

    async def greet(socket: ServerConnection) -> None:
        tune(socket.transport)
        limits = m.Limits(
            contexts=1, text_chars=1, message_bytes=1, idle_seconds=1, session_seconds=1
        )
        ready = m.Ready(session="", encodings=(), sample_rates=(), voices=(), limits=limits)
        await socket.send(_WIRE.encode_reply(ready))
        await socket.recv()
        await socket.send(_WIRE.encode_reply(m.Segment(context="c", index=0, text="", offset=0)))
        began[socket] = step
        phase = phases[step % CODES_PER_FRAME]
        phase.append(socket)
        await socket.wait_closed()
        phase.remove(socket)

    async with serve(
        greet, "127.0.0.1", 0, compression=None, ping_interval=None,
        subprotocols=[Subprotocol(_WIRE.subprotocol)],
    ) as listener:  # fmt: skip
        port = listener.sockets[0].getsockname()[1]
        pipe.send(Announcement(f"ws://127.0.0.1:{port}/"))
        asked = asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        gc.freeze()
        due = clock()
        while not asked.done():
            due += setup.step_seconds
            await asyncio.sleep(max(0.0, due - clock()))
            step += 1
            for socket in tuple(phases[step % CODES_PER_FRAME]):
                with contextlib.suppress(ConnectionClosed):
                    await socket.send(_frame((step - began[socket]) // CODES_PER_FRAME))
        pipe.send(Confession([], sys.getswitchinterval()))


@lru_cache(maxsize=1024)
def _frame(number: int) -> bytes:
    pcm = bytes(2 * SAMPLES_PER_FRAME)
    return _WIRE.encode_reply(
        m.Audio(context="c", seq=number, offset=number * SAMPLES_PER_FRAME, pcm=pcm)
    )


# The gateway --------------------------------------------------------------------------------------


def run_gateway(setup: Setup, pipe: Connection) -> None:
    """Body of a process: the server as it is, over simulated parts."""
    uvloop.run(_gateway(setup, pipe))


async def _gateway(setup: Setup, pipe: Connection) -> None:
    flags = (
        "engine.name=simulated",
        f"engine.capacity={setup.streams}",
        f"engine.options.step_seconds={setup.step_seconds}",
        f"engine.options.steps_per_frame={CODES_PER_FRAME}",
        f"codec.name={__name__}",
        f"codec.options.seconds={0.0 if setup.timed else DECODE_SECONDS}",
        "server.port=0",
        "server.metrics_port=0",
        f"server.group_lead_ms={setup.group_lead_ms}",
    )
    async with running(configuration.load(flags=flags)) as server:
        latencies: list[float] = []
        if not setup.codec_thread:
            server.synthesis = Synthesis(server.engine, FreeCodec(), server.metrics)
        elif setup.timed:
            server.synthesis = _TimedSynthesis(server, latencies)
        spare_collections()  # as `serve` does
        pipe.send(Announcement(server.address.url))
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        pipe.send(Confession(latencies, sys.getswitchinterval()))


def open_decoder(config: CodecConfig) -> "SleepingDecoder":
    """The decoder of the codec's thread, which finds it by the name of this module."""
    return SleepingDecoder(config.slots or 1, float(config.options["seconds"]))


class SleepingDecoder:
    """`Decoder` that sleeps, and then has one and the same tone for every frame."""

    max_frames = 512

    def __init__(self, slots: int, seconds: float) -> None:
        self.slots = slots
        self._seconds = seconds

    def first_frames(self, *, early: bool) -> int:
        """See `Decoder`: every frame can be heard at once."""
        return 1

    def reset(self, slot: int, *, seed: int, early: bool) -> None:
        """See `Decoder`: there is nothing to forget."""

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """See `Decoder`."""
        if self._seconds:
            time.sleep(self._seconds)  # the thread waits as for a device; the GIL is free
        return [_tones(len(work.frames)) for work in batch]


class FreeCodec:
    """`Codec` that costs nothing: every frame is one and the same tone, at once."""

    alive = True

    async def wait_dead(self) -> None:
        """It cannot die."""
        await asyncio.Event().wait()

    def open(self, *, seed: int, early: bool) -> CodecStream:
        """See `Codec`."""
        return _FreeStream()

    def statistics(self) -> CodecStatistics:
        """Nothing is looked at."""
        return CodecStatistics(0, 0.0)

    async def close(self) -> None:
        """Nothing is open."""


class _FreeStream:
    def __init__(self) -> None:
        self._frames = 0
        self._finished = False
        self._news: asyncio.Future[None] | None = None

    def push(self, frames: Sequence[Frame]) -> None:
        """See `CodecStream`."""
        self._frames += len(frames)
        self._wake()

    def finish(self) -> None:
        """See `CodecStream`."""
        self._finished = True
        self._wake()

    async def take(self, portion: Portion) -> Samples:
        """See `CodecStream`."""
        while not self._frames and not self._finished:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        frames = min(self._frames, portion.at_most)
        self._frames -= frames
        return _tones(frames)

    def close(self) -> None:
        """See `CodecStream`."""

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


@lru_cache
def _tones(frames: int) -> Samples:
    return np.tile(tone(LOWEST_PERIODS), frames)


class _TimedSynthesis(Synthesis):
    """Notes for each chunk how long after the engine's step it was handed to the transport."""

    def __init__(self, server: Server, latencies: list[float]) -> None:
        assert isinstance(server.engine, SimulatedEngine)
        super().__init__(server.engine, server.codec, server.metrics)
        self._server = server
        self._simulated = server.engine
        self._latencies = latencies

    async def speak(
        self,
        prompt: Prompt,
        shaper: Shaper,
        output: Output,
        trace: Trace,
        ask: Callable[[], Portion],
    ) -> AsyncGenerator[Chunk, None]:
        """See `Synthesis`."""
        steps: deque[float] = deque()
        engine = _NotingEngine(self._simulated, steps)
        inner = Synthesis(engine, self._server.codec, self._server.metrics)
        async with contextlib.aclosing(inner.speak(prompt, shaper, output, trace, ask)) as chunks:
            async for chunk in chunks:
                yield chunk
                # More is asked for, so what there was has gone out.
                sent = clock()
                for _ in range(min(len(steps), max(1, chunk.samples // SAMPLES_PER_FRAME))):
                    self._latencies.append(sent - steps.popleft())


class _NotingEngine:
    """The engine, with a note of the step in which each frame came to be."""

    def __init__(self, engine: SimulatedEngine, steps: deque[float]) -> None:
        self._engine = engine
        self._steps = steps
        self.capacity = engine.capacity
        self.voices = engine.voices
        self.alive = True

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Sequence[int], None]:
        """See `Engine`."""
        async with contextlib.aclosing(self._engine.generate(prompt)) as groups:
            async for ids in groups:
                self._steps.extend([self._engine.stepped_at] * (len(ids) // CODES_PER_FRAME))
                yield ids

    async def wait_dead(self) -> None:
        """See `Engine`."""
        await self._engine.wait_dead()

    def statistics(self) -> EngineStatistics:
        """See `Engine`."""
        return self._engine.statistics()

    async def close(self) -> None:
        """The server closes the engine itself."""
