"""What decoding costs: the sliding window, the exact window and the streaming form, side by side.

Rule: the three take turns step by step, so that whatever else the machine does hits all alike, and
what counts is the median. All get the same prepared weights and whole batches. The sliding window
draws its noise as the model does, the streaming form looks its own up, the exact window has none.
CPU time is the process's, all threads.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import torch
from torch import nn

from orpheus_ws.bench.models import random_frames, random_model
from orpheus_ws.bench.sliding_window import SlidingWindowDecoder
from orpheus_ws.codec import Decoder, Work
from orpheus_ws.codec.network import StreamingNetwork
from orpheus_ws.codec.passes import EagerPasses
from orpheus_ws.codec.streaming import StreamingDecoder
from orpheus_ws.codec.weights import load_model
from orpheus_ws.codec.window import WindowDecoder
from orpheus_ws.hardware import usable_processors
from orpheus_ws.tokens import SAMPLE_RATE

SETTLED: Final = 5
"""Frames after which no stream is near its start and every window is as long as it gets."""
MORE_FRAMES: Final = 4
FEW_STREAMS: Final = 8
"""Up to so many streams a step of `MORE_FRAMES` is measured, too: a step of one stream is bound by
reading the weights."""
LEAST_ROUNDS: Final = 3
"""However long they take."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What one decoder's step costs; medians over `rounds` steps."""

    weights: str
    streams: int
    decoder: str
    frames: int
    """By which a step advances each stream."""
    rounds: int
    ms_per_step: float
    audio_seconds_per_core_second: float
    times_sliding_window: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a run, and what it was a run of."""

    seconds: float
    threads: int
    torch: str
    python: str
    cpus: int
    load_average: float
    """Of the minute before the run: what others do on the machine slows this down."""
    figures: tuple[Figure, ...]


class _Contender(NamedTuple):
    name: str
    frames: int
    decoder: Decoder


class _Step(NamedTuple):
    audio: float
    wall: float
    cpu: float


def measure(
    streams: Sequence[int], seconds: float, threads: int, progress: Callable[[str], None]
) -> Result:
    """Measure all decoders, for some `seconds` with each model and number of streams.

    `progress` hears of each before it begins.
    """
    load_average = os.getloadavg()[0]
    torch.set_num_threads(threads)
    figures: list[Figure] = []
    models: list[tuple[str, Callable[[bool], nn.Module]]] = [
        ("released shape, random", lambda noise: random_model(noise=noise)),
        ("pocket", lambda noise: load_model("pocket", noise=noise)),
    ]
    for weights, load in models:
        noisy, quiet = load(True), load(False)
        for count in streams:
            progress(f"{weights}, {count} streams")
            contenders = _contenders(noisy, quiet, count)
            figures += _figures(weights, count, contenders, _rounds(contenders, count, seconds))
    return Result(
        seconds=seconds,
        threads=threads,
        torch=str(torch.__version__),
        python=sys.version.split()[0],
        cpus=usable_processors(),
        load_average=round(load_average, 2),
        figures=tuple(figures),
    )


def _contenders(noisy: nn.Module, quiet: nn.Module, streams: int) -> list[_Contender]:
    """The baseline first."""
    network = StreamingNetwork(noisy)

    def streaming() -> StreamingDecoder:
        return StreamingDecoder(EagerPasses(network, streams), streams, early_frames=0)

    contenders = [
        _Contender("sliding window", 1, SlidingWindowDecoder(noisy, streams)),
        _Contender("exact window", 1, WindowDecoder(quiet, streams)),
        _Contender("streaming", 1, streaming()),
    ]
    if streams <= FEW_STREAMS:
        contenders.append(_Contender("streaming", MORE_FRAMES, streaming()))
    return contenders


def _rounds(contenders: list[_Contender], streams: int, seconds: float) -> list[list[_Step]]:
    """Each contender's steps, one of each in every round, after one that nobody counts."""
    for contender in contenders:
        for slot in range(streams):
            contender.decoder.reset(slot, seed=slot, early=False)
        _step(contender, streams, SETTLED)
    taken: list[list[_Step]] = [[] for _ in contenders]
    end = time.perf_counter() + seconds
    while len(taken[0]) < LEAST_ROUNDS or time.perf_counter() < end:
        for steps, contender in zip(taken, contenders, strict=True):
            steps.append(_step(contender, streams, contender.frames))
    return taken


def _step(contender: _Contender, streams: int, frames: int) -> _Step:
    """Advance every stream by so many frames."""
    # What is decoded makes no difference to what it costs.
    batch = [Work(slot, random_frames(frames, seed=slot), last=False) for slot in range(streams)]
    wall, cpu = time.perf_counter(), time.process_time()
    decoded = contender.decoder.step(batch)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return _Step(sum(map(len, decoded)) / SAMPLE_RATE, wall, cpu)


def _figures(
    weights: str, streams: int, contenders: list[_Contender], taken: list[list[_Step]]
) -> Iterator[Figure]:
    speeds = [statistics.median(step.audio / step.cpu for step in steps) for steps in taken]
    for contender, steps, speed in zip(contenders, taken, speeds, strict=True):
        yield Figure(
            weights=weights,
            streams=streams,
            decoder=contender.name,
            frames=contender.frames,
            rounds=len(steps),
            ms_per_step=round(statistics.median(step.wall for step in steps) * 1000, 2),
            audio_seconds_per_core_second=round(speed, 3),
            times_sliding_window=round(speed / speeds[0], 2),
        )
