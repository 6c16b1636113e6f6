"""What the gateway costs for each frame, against bare sends of the same frames in the same run.

Rule: every part is a fresh server process and fresh client processes. The window that counts begins
when all streams speak. CPU time is the server process's, from the operating system, all threads.
"""

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from orpheus_ws.audio import Player
from orpheus_ws.bench import listeners
from orpheus_ws.bench.servers import Confession, Setup, cpu_seconds, run_floor, run_gateway
from orpheus_ws.errors import BenchFailed
from orpheus_ws.hardware import usable_processors
from orpheus_ws.processes import Child, child
from orpheus_ws.tokens import SAMPLES_PER_FRAME
from orpheus_ws.trace import clock

PACE: Final = 1.05
"""Seconds of audio that the simulated engine makes in a second: hardly more than is played."""
GROUPED_PACE: Final = 1.5
"""With `lead_ms`: an engine that lets contexts gain a lead, or there would be nothing to group."""
RAMP_SECONDS: Final = 2.0
SETTLE_SECONDS: Final = 1.0


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One server's figures. A frame is 2048 samples. Lateness is that of `listeners`."""

    name: str
    engine_pace: float
    frames: int
    frames_per_message: float
    cpu_us_per_frame: float
    times_floor: float | None
    cpu_share: float
    """Of one core."""
    lateness_ms_p50: float
    lateness_ms_p99: float
    underruns: int
    starved_seconds: float
    gateway_ms_p50: float | None = None
    """From the engine's step to the transport, through the codec's thread, which takes no time."""
    gateway_ms_p99: float | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of a run, and what it was a run of."""

    streams: int
    seconds: float
    lead_ms: int
    simulated: str
    prebuffer_ms: float
    switch_interval: float
    python: str
    cpus: int
    parts: tuple[Part, ...]


def measure(streams: int, seconds: float, lead_ms: int, progress: Callable[[str], None]) -> Result:
    """Run all parts one after the other; `progress` hears of each before it begins.

    With `lead_ms` a part more groups the frames of contexts that have so much lead. Raises
    `BenchFailed` when a process fails or a stream ends early.
    """

    def setup(*, thread: bool, group: int = 0, timed: bool = False) -> Setup:
        pace = GROUPED_PACE if group else PACE
        return Setup(streams, pace, codec_thread=thread, group_lead_ms=group, timed=timed)

    runs = [
        ("floor", run_floor, setup(thread=False)),
        ("free codec", run_gateway, setup(thread=False)),
        ("codec thread", run_gateway, setup(thread=True)),
        ("timed", run_gateway, setup(thread=True, timed=True)),
    ]
    if lead_ms:
        runs.append(("grouped", run_gateway, setup(thread=True, group=lead_ms)))
    parts: list[Part] = []
    for name, body, arrangement in runs:
        progress(name)
        part, confession = _run(name, body, arrangement, seconds, parts[0] if parts else None)
        parts.append(part)
    return Result(
        streams=streams,
        seconds=seconds,
        lead_ms=lead_ms,
        simulated="engine and codec",
        prebuffer_ms=Player.PREBUFFER * 1000,
        switch_interval=confession.switch_interval,
        python=sys.version.split()[0],
        cpus=usable_processors(),
        parts=tuple(parts),
    )


def _run(
    name: str, body: Callable[..., None], setup: Setup, seconds: float, floor: Part | None
) -> tuple[Part, Confession]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(child(name, body, setup))
        clients = _listen(stack, server.hear().url, setup)
        time.sleep(SETTLE_SECONDS)
        begin, cpu = clock(), cpu_seconds(server)
        time.sleep(seconds)
        end, cpu = clock(), cpu_seconds(server) - cpu
        for client in clients:
            client.tell(listeners.Window(begin, end))
        heard = listeners.total([client.hear() for client in clients])
        server.tell("stop")
        confession: Confession = server.hear()
    if heard.failures or not heard.messages:
        raise BenchFailed(f"{heard.failures} of {setup.streams} streams ended early in {name!r}")
    return _part(name, setup, heard, cpu, end - begin, floor, confession), confession


def _listen(stack: contextlib.ExitStack, url: str, setup: Setup) -> list[Child]:
    """Start the clients, on all cores but the server's, and wait until all their streams speak."""
    count = max(1, min(usable_processors() - 1, setup.streams))
    shares = [setup.streams // count + (n < setup.streams % count) for n in range(count)]
    clients = [
        stack.enter_context(
            child("listeners", listeners.run, listeners.Plan(url, n, setup.pace, RAMP_SECONDS))
        )
        for n in shares
    ]
    for client in clients:
        client.hear()
    for client in clients:
        client.tell("begin")
    for client in clients:
        client.hear(RAMP_SECONDS)
    return clients


def _part(
    name: str,
    setup: Setup,
    heard: listeners.Heard,
    cpu: float,
    wall: float,
    floor: Part | None,
    confession: Confession,
) -> Part:
    frames = heard.samples / SAMPLES_PER_FRAME
    each = cpu / frames * 1e6
    late = np.percentile(heard.lateness or [0.0], (50, 99)) * 1000
    inside = np.percentile(confession.latencies, (50, 99)) * 1000 if setup.timed else (None, None)
    return Part(
        name=name,
        engine_pace=setup.pace,
        frames=round(frames),
        frames_per_message=round(frames / heard.messages, 2),
        cpu_us_per_frame=round(each, 1),
        times_floor=None if floor is None else round(each / floor.cpu_us_per_frame, 2),
        cpu_share=round(cpu / wall, 3),
        lateness_ms_p50=round(float(late[0]), 2),
        lateness_ms_p99=round(float(late[1]), 2),
        underruns=heard.underruns,
        starved_seconds=round(heard.starved_seconds, 3),
        gateway_ms_p50=None if inside[0] is None else round(float(inside[0]), 2),
        gateway_ms_p99=None if inside[1] is None else round(float(inside[1]), 2),
    )
