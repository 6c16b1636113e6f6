"""A simulation of the codec's queue on a device that is not there, in virtual time.

Rule: the policies are those that the codec's thread asks (`codec/policy.py`) and the turn of events is
the thread's; the arrivals, the device and the clock are made up. Both policies get the same arrivals.
An arrival is one frame of some stream, apart from all others. What a step costs is a straight line in
its streams, as on a GPU. No figure of this is a measurement.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from orpheus_ws.codec.policy import DYNAMIC_WAIT, Dynamic, InFlight, Policy, Ready

MAX_BATCH: Final = 32
LOADS: Final = (0.2, 0.5, 0.8, 0.95)
"""As parts of what the device does when every batch is full."""

Times = NDArray[np.float64]


class Cost(NamedTuple):
    """What a step takes, in seconds."""

    step: float = 0.002
    stream: float = 0.000_02

    def of(self, streams: int) -> float:
        """A step of so many streams."""
        return self.step + self.stream * streams

    @property
    def saturation(self) -> float:
        """Frames a second when every batch is full."""
        return MAX_BATCH / self.of(MAX_BATCH)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One policy at one load."""

    policy: str
    load: float
    frames_per_second: float
    added_ms_p50: float
    """From arrival to result, less what a step of this frame alone takes."""
    added_ms_p99: float
    streams_per_step: float
    busy: float
    """Part of the time in which the device works."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All points, and what was assumed."""

    simulated: str
    arrivals: int
    seed: int
    step_ms: float
    stream_ms: float
    max_batch: int
    dynamic_wait_ms: float
    points: tuple[Point, ...]


class Run(NamedTuple):
    """What became of the arrivals."""

    latencies: Times
    """(N,) from each arrival to its result, in seconds."""
    batches: list[int]
    """Streams of every step."""
    seconds: float
    """From the start to the last result."""


def measure(arrivals: int, seed: int, cost: Cost) -> Result:
    """Simulate both policies at every load, each with so many arrivals of a Poisson process."""
    points = []
    for load in LOADS:
        rate = load * cost.saturation
        times = poisson(arrivals, rate, seed)
        for name, policy in (("in flight", InFlight(MAX_BATCH)), ("dynamic", Dynamic(MAX_BATCH))):
            run = simulate(policy, times, cost)
            added = np.percentile(run.latencies - cost.of(1), (50, 99)) * 1000
            busy = sum(map(cost.of, run.batches)) / run.seconds
            points.append(
                Point(
                    policy=name,
                    load=load,
                    frames_per_second=round(rate, 1),
                    added_ms_p50=round(float(added[0]), 2),
                    added_ms_p99=round(float(added[1]), 2),
                    streams_per_step=round(arrivals / len(run.batches), 1),
                    busy=round(busy, 3),
                )
            )
    return Result(
        simulated="the clock, the device and the arrivals",
        arrivals=arrivals,
        seed=seed,
        step_ms=cost.step * 1000,
        stream_ms=cost.stream * 1000,
        max_batch=MAX_BATCH,
        dynamic_wait_ms=DYNAMIC_WAIT * 1000,
        points=tuple(points),
    )


def poisson(arrivals: int, rate: float, seed: int) -> Times:
    """(N,) times of arrivals, so many a second on average. The same seed gives the same pattern."""
    times: Times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, arrivals))
    return times


def simulate(policy: Policy, times: Sequence[float] | Times, cost: Cost) -> Run:
    """Serve arrivals at `times`, which are sorted, as the codec's thread would."""
    latencies = np.empty(len(times))
    batches: list[int] = []
    waiting: list[tuple[int, Ready]] = []
    arrived, now = 0, 0.0
    while arrived < len(times) or waiting:
        while arrived < len(times) and times[arrived] <= now:
            waiting.append(
                (arrived, Ready(float(times[arrived]), unheard=False, in_hand=0.0, frames=1))
            )
            arrived += 1
        following = float(times[arrived]) if arrived < len(times) else np.inf
        ready = [stream for _, stream in waiting]
        due = policy.due(ready) if ready else np.inf
        if due > now:
            now = min(due, following)
            continue
        chosen = policy.choose(ready, max_frames=len(ready))
        batches.append(len(chosen))
        now += cost.of(len(chosen))
        for index in sorted(chosen, reverse=True):
            number, stream = waiting.pop(index)
            latencies[number] = now - stream.since
    return Run(latencies, batches, now)
