"""Whether the codec is right and how fast it is on the machine that is to run it: `make gpu-check`.

Rule: on a CUDA device if there is one, else on the CPU with smaller sizes, and the report says which.
What is right is decided by snac's own decode of whole utterances, on the CPU in float32. The weights
are random in the released model's shape, and the embedded voice's where it matters what is heard.
"""

import math
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import torch
from torch import nn

from orpheus_ws.bench.models import RELEASED_DIM, random_frames, random_model
from orpheus_ws.codec import Work
from orpheus_ws.codec.early import FADE, early_samples
from orpheus_ws.codec.graphs import GraphPasses
from orpheus_ws.codec.network import ENDLESS, StreamingNetwork
from orpheus_ws.codec.passes import Batch
from orpheus_ws.codec.streaming import FRAME_SIZES, StreamingDecoder
from orpheus_ws.codec.weights import Device, load_model, place
from orpheus_ws.codec.window import decode_whole
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import CODES_PER_FRAME, FRAME_SECONDS, Frame

TOLERANCE: Final = 1e-5
"""By how much a sample may differ in float32; full scale is 1."""
EARLY: Final = (1, 2, 3)
HALVES: Final = ("float16", "bfloat16")


class Sizes(NamedTuple):
    """How much is measured."""

    slots: int
    streams: int
    """That are compared with their whole decode, in half as many slots."""
    longest: int
    """Frames of the longest of them."""
    runs: int
    """Timed passes of each bucket."""
    dtypes: tuple[str, ...]
    """Whose buckets are timed."""
    decoder_dim: int = RELEASED_DIM


ON_GPU: Final = Sizes(128, streams=96, longest=24, runs=50, dtypes=("float32", *HALVES))
ON_CPU: Final = Sizes(4, streams=8, longest=8, runs=3, dtypes=("float32",))


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One claim about what is heard, tried."""

    claim: str
    passed: bool
    largest_error: float | None
    """Of any sample; null when there were too few or too many samples."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A pass of one shape, with the copies to the device and back."""

    streams: int
    frames: int
    ms_p50: float
    ms_p99: float
    audio_seconds_per_second: float


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """The network in one number format."""

    dtype: str
    prepare_seconds: float
    """Captures of all graphs; next to nothing on a CPU."""
    weights_bytes: int
    state_bytes_per_stream: int
    reserved_bytes: int | None
    """What torch holds of the GPU's memory, with weights, states of all slots and graphs."""
    buckets: tuple[Bucket, ...]


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """How far a number format is from float32, noise included."""

    weights: str
    dtype: str
    signal_to_error_db: float


class Early(msgspec.Struct, frozen=True, kw_only=True):
    """The first step of a stream that begins early."""

    early_frames: int
    samples: int
    ms: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `device` is `cuda` or `cpu`; on a `cpu` no figure says anything about a GPU."""

    device: str
    device_name: str
    passed: bool
    torch: str
    cuda: str | None
    python: str
    slots: int
    checks: tuple[Check, ...]
    builds: tuple[Build, ...]
    precision: tuple[Precision, ...]
    early: tuple[Early, ...]


def measure(progress: Callable[[str], None], sizes: Sizes | None = None) -> Report:
    """Check and measure everything; `progress` hears of each part before it begins."""
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    sizes = sizes or (ON_GPU if cuda else ON_CPU)
    progress(f"exactness on {device}")
    checks = tuple(_checks(device, sizes))
    builds = []
    for dtype in sizes.dtypes:
        progress(f"passes in {dtype} on {device}")
        builds.append(_build(device, dtype, sizes))
    progress(f"number formats on {device}")
    precision = tuple(_precision(device, sizes))
    progress(f"early beginnings on {device}")
    return Report(
        device=device,
        device_name=torch.cuda.get_device_name() if cuda else platform.machine(),
        passed=all(check.passed for check in checks),
        torch=str(torch.__version__),
        cuda=torch.version.cuda if cuda else None,
        python=sys.version.split()[0],
        slots=sizes.slots,
        checks=checks,
        builds=tuple(builds),
        precision=precision,
        early=tuple(_early(device, sizes)),
    )


def _passes(model: nn.Module, device: str, slots: int, dtype: str = "float32") -> GraphPasses:
    network = StreamingNetwork(model.to(getattr(torch, dtype)))
    return GraphPasses(place(network, Device(device=device)), slots, FRAME_SIZES)


# What is heard --------------------------------------------------------------------------------------


def _checks(device: str, sizes: Sizes) -> Iterator[Check]:
    """Every claim, in slots that several streams use one after the other."""
    slots = sizes.streams // 2
    reference = random_model(sizes.decoder_dim, noise=False)
    streams = [random_frames(1 + i % sizes.longest, seed=i) for i in range(sizes.streams)]
    whole = [decode_whole(reference, frames) for frames in streams]
    quiet = _passes(random_model(sizes.decoder_dim, noise=False), device, slots)
    decoder = StreamingDecoder(quiet, slots, early_frames=0)
    heard = _heard(decoder, streams, seed=1, early=False)
    yield _check("streams equal their whole decode", heard, whole)
    for frames in EARLY:
        decoder = StreamingDecoder(quiet, slots, early_frames=frames)
        begun = [index for index, stream in enumerate(streams) if len(stream) >= frames]
        heard = _heard(decoder, [streams[index] for index in begun], seed=2, early=True)
        given, exact = early_samples(frames), early_samples(frames) + FADE
        yield _check(
            f"what is heard early after {frames} frames is the decode of those alone",
            [samples[:given] for samples in heard],
            [decode_whole(reference, streams[index][:frames])[:given] for index in begun],
        )
        yield _check(
            f"what follows the cross-fade after {frames} frames is exact",
            [samples[exact:] for samples in heard],
            [whole[index][exact:] for index in begun],
        )
    noisy = _passes(random_model(sizes.decoder_dim, noise=True), device, slots)
    decoder = StreamingDecoder(noisy, slots, early_frames=0)
    yield _check(
        "noise does not depend on the chunking",
        _heard(decoder, streams, seed=3, early=False),
        _heard(decoder, streams, seed=4, early=False),
    )


def _check(claim: str, heard: Sequence[Samples], right: Sequence[Samples]) -> Check:
    pairs = list(zip(heard, right, strict=True))
    if any(len(mine) != len(other) for mine, other in pairs):
        return Check(claim=claim, passed=False, largest_error=None)
    error = max(float(np.abs(mine - other).max(initial=0.0)) for mine, other in pairs)
    return Check(claim=claim, passed=error <= TOLERANCE, largest_error=error)


def _heard(
    decoder: StreamingDecoder, streams: Sequence[Sequence[Frame]], *, seed: int, early: bool
) -> list[Samples]:
    """Decode the streams in pieces; they join as slots become free. `seed` decides the pieces."""
    chance = random.Random(seed)
    pieces: list[list[Samples]] = [[] for _ in streams]
    position = [0] * len(streams)
    waiting = list(range(len(streams)))
    running: dict[int, int] = {}
    while waiting or running:
        for slot in set(range(decoder.slots)) - set(running):
            if waiting:
                running[slot] = waiting.pop()
                decoder.reset(slot, seed=running[slot], early=early)
        batch = []
        for slot, stream in running.items():
            begin, end = position[stream], position[stream] + chance.randrange(1, 9)
            position[stream] = end
            batch.append(Work(slot, streams[stream][begin:end], last=end >= len(streams[stream])))
        for work, samples in zip(batch, decoder.step(batch), strict=True):
            pieces[running[work.slot]].append(samples)
            if work.last:
                del running[work.slot]
    return [np.concatenate(piece) for piece in pieces]


# What it costs --------------------------------------------------------------------------------------


def _build(device: str, dtype: str, sizes: Sizes) -> Build:
    model = random_model(sizes.decoder_dim, noise=True)
    begin = time.perf_counter()
    passes = _passes(model, device, sizes.slots, dtype)
    prepared = time.perf_counter() - begin
    weights = [*model.parameters(), *model.buffers()]
    return Build(
        dtype=dtype,
        prepare_seconds=round(prepared, 2),
        weights_bytes=sum(weight.nbytes for weight in weights),
        state_bytes_per_stream=passes.state_bytes,
        reserved_bytes=torch.cuda.memory_reserved() if device == "cuda" else None,
        buckets=tuple(_bucket(passes, *shape, sizes.runs) for shape in sorted(passes.buckets)),
    )


def _bucket(passes: GraphPasses, streams: int, frames: int, runs: int) -> Bucket:
    slots = np.arange(streams)
    codes = random_frames(streams * frames, seed=0)
    batch = Batch(
        codes=np.array(codes, np.int64).reshape(streams, frames, CODES_PER_FRAME),
        frames=np.full(streams, 100),
        lengths=np.full(streams, ENDLESS),
        offsets=slots,
        sources=slots,
        targets=slots,
        edges=True,
    )
    passes.run(batch)
    seconds = [_timed(lambda: passes.run(batch)) for _ in range(runs)]
    median, worst = np.percentile(seconds, (50, 99))
    return Bucket(
        streams=streams,
        frames=frames,
        ms_p50=round(float(median) * 1000, 3),
        ms_p99=round(float(worst) * 1000, 3),
        audio_seconds_per_second=round(streams * frames * FRAME_SECONDS / float(median), 2),
    )


def _timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _precision(device: str, sizes: Sizes) -> Iterator[Precision]:
    """Decode the same frames in every format."""
    models: dict[str, Callable[[], nn.Module]] = {
        "released shape, random": lambda: random_model(sizes.decoder_dim, noise=True),
        "pocket": lambda: load_model("pocket", noise=True),
    }
    frames = random_frames(sizes.longest, seed=0)
    for weights, load in models.items():

        def sound(dtype: str, load: Callable[[], nn.Module] = load) -> Samples:
            decoder = StreamingDecoder(_passes(load(), device, 1, dtype), 1, early_frames=0)
            return _heard(decoder, [frames], seed=0, early=False)[0]

        precise = sound("float32")
        for dtype in HALVES:
            error = sound(dtype) - precise
            # What never changes cannot be heard.
            ratio = float(np.var(precise) / np.mean(np.square(error)))
            decibels = round(10 * math.log10(ratio), 1)
            yield Precision(weights=weights, dtype=dtype, signal_to_error_db=decibels)


def _early(device: str, sizes: Sizes) -> Iterator[Early]:
    passes = _passes(random_model(sizes.decoder_dim, noise=True), device, slots=1)
    frames = random_frames(max(EARLY), seed=0)
    for count in EARLY:
        decoder = StreamingDecoder(passes, 1, early_frames=count)
        seconds, given = [], 0
        for _ in range(sizes.runs):
            decoder.reset(0, seed=0, early=True)
            begin = time.perf_counter()
            given = len(decoder.step([Work(0, frames[:count], last=False)])[0])
            seconds.append(time.perf_counter() - begin)
        middle = float(np.median(seconds)) * 1000
        yield Early(early_frames=count, samples=given, ms=round(middle, 3))
