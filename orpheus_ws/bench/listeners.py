"""Clients of a benchmark: many sockets in one process, each played by the virtual player.

Rule: what they report they saw themselves. A chunk is late by how much later it came than the
promptest chunk of its segment, after subtracting the pace at which the engine makes audio; so a
constant delay is no lateness, and a clock is needed here only.
"""

import asyncio
import gc
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.audio import FADE, Player
from orpheus_ws.tokens import SAMPLE_RATE, SAMPLES_PER_FRAME
from orpheus_ws.trace import clock
from orpheus_ws.wire.native import MsgpackWire

LEAD_MS = 10_000
"""As far ahead as the protocol lets audio run, so that nothing but the engine sets the pace."""
SENTENCE = "The quick brown fox jumps over the lazy dog while the band plays on and on again. "
SENTENCES_AHEAD = 2
"""Like a language model that writes faster than it is spoken, but not all at once."""

_WIRE = MsgpackWire()


class Plan(NamedTuple):
    """What one process of listeners is to do. Times are of `trace.clock`."""

    url: str
    streams: int
    pace: float
    """Seconds of audio that the engine makes in a second."""
    ramp_seconds: float
    """The streams begin spread over so long, as callers would."""
    key: str | None = None


class Window(NamedTuple):
    """Only what came in this time counts."""

    begin: float
    end: float


class Heard(NamedTuple):
    """What the listeners of one process heard."""

    samples: int
    """Received within the window."""
    messages: int
    lateness: list[float]
    """Seconds, of every whole chunk within the window."""
    underruns: int
    starved_seconds: float
    failures: int
    """Streams that ended before the window did."""


class _Listener:
    def __init__(self, plan: Plan) -> None:
        self.player = Player()
        self.arrivals: list[tuple[float, int]] = []
        self.lateness: list[tuple[float, float]] = []
        self.failed = False
        self._rate = SAMPLE_RATE * plan.pace
        self._segment: list[tuple[float, float]] = []

    async def listen(self, socket: ClientConnection) -> None:
        """Have sentences spoken until cancelled."""
        # One seed for all: the ids are made once, as they are not the gateway's to make.
        opening = m.Open(context="c", lead_ms=LEAD_MS, sampling=m.Sampling(seed=0))
        await socket.send(_WIRE.encode_request(opening))
        for _ in range(SENTENCES_AHEAD):
            await self._ask(socket)
        try:
            while True:
                message = _WIRE.decode_reply(await socket.recv(decode=None))
                if isinstance(message, m.Audio):
                    self._note(message, clock())
                elif isinstance(message, m.Segment):
                    self.close_segment()
                    await self._ask(socket)
                elif isinstance(message, m.Done | m.Error):
                    self.failed = True
                    return
        except ConnectionClosed:
            self.failed = True

    async def _ask(self, socket: ClientConnection) -> None:
        await socket.send(_WIRE.encode_request(m.Text(context="c", text=SENTENCE)))

    def _note(self, message: m.Audio, now: float) -> None:
        samples = len(message.pcm) // 2
        self.player.receive(samples / SAMPLE_RATE, now)
        self.arrivals.append((now, samples))
        # The tail of a segment is no frame: it leaves with the end of speech.
        if samples >= SAMPLES_PER_FRAME - FADE:
            self._segment.append((now, now - (message.offset + samples) / self._rate))

    def close_segment(self) -> None:
        """All chunks of a segment are there: compare them with the promptest."""
        if self._segment:
            base = min(delay for _, delay in self._segment)
            self.lateness += [(at, delay - base) for at, delay in self._segment]
            self._segment.clear()

    def heard(self, window: Window) -> Heard:
        """What counts of it."""
        self.close_segment()
        counted = [samples for at, samples in self.arrivals if window.begin <= at < window.end]
        return Heard(
            samples=sum(counted),
            messages=len(counted),
            lateness=[late for at, late in self.lateness if window.begin <= at < window.end],
            underruns=self.player.underruns,
            starved_seconds=self.player.starved_seconds,
            failures=int(self.failed),
        )


def total(parts: Sequence[Heard]) -> Heard:
    """What all of them heard."""
    return Heard(
        samples=sum(part.samples for part in parts),
        messages=sum(part.messages for part in parts),
        lateness=[late for part in parts for late in part.lateness],
        underruns=sum(part.underruns for part in parts),
        starved_seconds=sum(part.starved_seconds for part in parts),
        failures=sum(part.failures for part in parts),
    )


def run(plan: Plan, pipe: Connection) -> None:
    """Body of a process: connect, say so; begin when told; report for the window it is told."""
    uvloop.run(_run(plan, pipe))


async def _run(plan: Plan, pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    sockets = [await _connect(plan.url, plan.key) for _ in range(plan.streams)]
    # What exists by now stays; a full collection would only be noise in what is measured.
    gc.freeze()
    pipe.send("connected")
    await loop.run_in_executor(None, pipe.recv)
    listeners = [_Listener(plan) for _ in sockets]
    tasks: list[asyncio.Task[None]] = []
    for listener, socket in zip(listeners, sockets, strict=True):
        tasks.append(asyncio.create_task(listener.listen(socket)))
        await asyncio.sleep(plan.ramp_seconds / plan.streams)
    pipe.send("speaking")
    window: Window = await loop.run_in_executor(None, pipe.recv)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    pipe.send(total([listener.heard(window) for listener in listeners]))


async def _connect(url: str, key: str | None) -> ClientConnection:
    socket = await connect(
        url,
        subprotocols=[Subprotocol(_WIRE.subprotocol)],
        compression=None,
        additional_headers={} if key is None else {"X-API-Key": key},
        max_size=None,
        ping_interval=None,
        proxy=None,
    )
    await socket.recv(decode=None)  # `ready`
    return socket
