"""SNAC models, frames and streams for the tests of the codec.

Rule: what a stream is held to is snac's own decode of the whole utterance; of our decoder nothing is
in it. Small models of random weights have every layer that the released one has.
"""

import copy
import functools
import random
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import snac
import torch
from hypothesis import strategies as st
from safetensors.numpy import load_file
from snac.layers import NoiseBlock
from torch import nn

from orpheus_ws.codec import Decoder, Work, noise
from orpheus_ws.codec.network import StreamingNetwork
from orpheus_ws.codec.passes import EagerPasses
from orpheus_ws.codec.streaming import StreamingDecoder
from orpheus_ws.codec.weights import load_model, prepare
from orpheus_ws.codec.window import decode_whole
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import SAMPLES_PER_FRAME, Frame

GOLDEN = load_file(Path(__file__).parents[1] / "data" / "pocket" / "golden.safetensors")

RELEASED: dict[str, Any] = {
    "sampling_rate": 24_000,
    "encoder_dim": 48,
    "encoder_rates": [2, 4, 8, 8],
    "decoder_dim": 1024,
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None,
    "codebook_size": 4096,
    "codebook_dim": 8,
    "vq_strides": [4, 2, 1],
    "noise": True,
    "depthwise": True,
}
"""The configuration of the released 24 kHz model."""

SMALL = RELEASED | {"encoder_dim": 4, "decoder_dim": 32}
"""The same layers with few channels."""

TOLERANCE = 1e-5
"""By how much samples of one sound may differ that were computed in another order."""


# As the decoder itself does when it is opened; more threads only wait for each other.
torch.set_num_threads(1)

# Models ---------------------------------------------------------------------------------------------


def random_model(config: dict[str, Any]) -> nn.Module:
    """A model of random weights, as snac makes it."""
    torch.manual_seed(0)
    model: nn.Module = snac.SNAC(**config)
    return model


@functools.cache
def small_model(*, depthwise: bool = True, noisy: bool = False) -> nn.Module:
    """A small prepared model of random weights."""
    model = random_model(SMALL | {"depthwise": depthwise})
    return prepare(model, noise=noisy)


@functools.cache
def pocket_model() -> nn.Module:
    """The embedded voice's codec."""
    return load_model("pocket", noise=False)


class _TableNoise(nn.Module):
    """snac's noise block, with a stream's own noise in place of noise drawn afresh."""

    def __init__(self, block: Any, layer: int, seed: int) -> None:
        super().__init__()
        self.linear: nn.Module = block.linear
        self._layer, self._offset = layer, noise.offset(seed)
        self._table = noise.table("cpu", torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[2])[None]
        values = noise.values(self._table, torch.tensor([self._offset]), self._layer, positions)
        scaled: torch.Tensor = self.linear(x)
        return x + values[:, None] * scaled


def with_noise_of(model: nn.Module, seed: int) -> nn.Module:
    """A copy of a prepared model with snac's layers, whose noise is that of a stream's seed."""
    model = copy.deepcopy(model)
    layer = 0
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NoiseBlock):
                setattr(module, name, _TableNoise(child, layer, seed))
                layer += 1
    assert layer == noise.LAYERS
    return model


def streaming(
    model: nn.Module,
    slots: int = 1,
    *,
    early_frames: int = 0,
    passes: type[EagerPasses] = EagerPasses,
) -> StreamingDecoder:
    """A streaming decoder over a prepared model."""
    made = passes(StreamingNetwork(model), slots)
    return StreamingDecoder(made, slots, early_frames=early_frames)


# Frames ---------------------------------------------------------------------------------------------


def random_frames(count: int, seed: int = 0) -> list[Frame]:
    """Frames of any codes, code 0 and 4095 among them."""
    chance = random.Random(seed)
    frames = [tuple(chance.randrange(4096) for _ in range(7)) for _ in range(count)]
    return [(0,) * 7, (4095,) * 7, *frames][:count]


def golden_frames() -> list[Frame]:
    """The golden utterance as frames."""
    level_0, level_1, level_2 = (GOLDEN[f"codes_{level}"][0] for level in range(3))
    return [
        (
            int(level_0[n]),
            int(level_1[2 * n]),
            int(level_2[4 * n]),
            int(level_2[4 * n + 1]),
            int(level_1[2 * n + 1]),
            int(level_2[4 * n + 2]),
            int(level_2[4 * n + 3]),
        )
        for n in range(len(level_0))
    ]


# Streams --------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """One stream among others: what it says and how it is cut."""

    length: int
    """How many frames."""
    sizes: Sequence[int]
    """How many it brings in one step after the other, again and again; 0: it sits that one out."""
    ends_late: bool = False
    """Its end is said in a step of its own."""
    leaves: int | None = None
    """Steps after which it is cancelled."""
    pause: int = 0
    """Steps for which it and those after it wait before they join."""
    seed: int = 0
    """Of its codes, and of its noise."""

    @property
    def frames(self) -> list[Frame]:
        """What it says."""
        return random_frames(self.length, self.seed)


CUTS = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any)
"""In which pieces a stream may come."""

PLANS = st.builds(
    Plan,
    length=st.integers(0, 20),
    sizes=CUTS,
    ends_late=st.booleans(),
    leaves=st.none() | st.none() | st.integers(1, 4),
    pause=st.integers(0, 4),
    seed=st.integers(0, 2**32),
)
"""Any stream at all."""


def works(slot: int, plan: Plan, frames: Sequence[Frame]) -> Iterator[Work | None]:
    """What a stream brings to each step; None where it sits one out."""
    position, done = 0, 0
    for size in cycle(plan.sizes):
        if plan.leaves == done:
            return
        if not size:
            yield None
            continue
        begin, position = position, min(position + size, len(frames))
        over = begin == len(frames) if plan.ends_late else position == len(frames)
        yield Work(slot, frames[begin:position], last=over)
        done += 1
        if over:
            return


def play(decoder: Decoder, plans: Sequence[Plan], *, early: bool = False) -> list[Samples]:
    """What comes out of each of several streams that share a decoder, in the plans' order."""
    pieces: list[list[Samples]] = [[np.zeros(0, np.float32)] for _ in plans]
    waiting = list(enumerate(plans))
    running: dict[int, tuple[int, Iterator[Work | None]]] = {}
    paused = 0
    while waiting or running:
        for slot in range(decoder.slots):
            if slot not in running and waiting and paused >= waiting[0][1].pause:
                number, plan = waiting.pop(0)
                decoder.reset(slot, seed=plan.seed, early=early)
                running[slot] = number, works(slot, plan, plan.frames)
                paused = 0
        paused += 1
        batch: list[Work] = []
        for slot, (_, steps) in list(running.items()):
            try:
                work = next(steps)
            except StopIteration:
                del running[slot]
            else:
                batch += [work] if work else []
        for work, samples in zip(batch, decoder.step(batch), strict=True):
            pieces[running[work.slot][0]].append(samples)
    return [np.concatenate(piece) for piece in pieces]


def play_one(
    decoder: Decoder,
    frames: Sequence[Frame],
    sizes: Sequence[int],
    *,
    ends_late: bool = False,
    seed: int = 0,
    early: bool = False,
) -> Samples:
    """What comes out of one stream of these frames in slot 0."""
    decoder.reset(0, seed=seed, early=early)
    pieces = [np.zeros(0, np.float32)]
    for work in works(0, Plan(len(frames), sizes, ends_late), frames):
        if work:
            pieces += decoder.step([work])
    return np.concatenate(pieces)


def assert_same(actual: Samples, expected: Samples) -> None:
    """The same sound, as long and within `TOLERANCE`."""
    assert len(actual) == len(expected)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


def assert_is(plan: Plan, samples: Samples, model: nn.Module) -> None:
    """A stream gave its own whole decode, or the beginning of that if it was cancelled."""
    whole = decode_whole(model, plan.frames) if plan.length else np.zeros(0, np.float32)
    assert len(whole) == plan.length * SAMPLES_PER_FRAME
    assert_same(samples, whole if plan.leaves is None else whole[: len(samples)])
