"""SNAC decoding of many streams, equal to decoding each one whole, without computing anything twice.

Rule: a step is a pass of the network over some frames of some streams, whose states are gathered
from a table by slot and scattered back. Shapes come from a few fixed sizes. What a stream gives
depends on its codes, its seed and `early_frames`; never on how it was cut or who shared its steps.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
import torch

from orpheus_ws.codec import Decoder, Work, noise
from orpheus_ws.codec.early import Handover, needed_samples
from orpheus_ws.codec.graphs import GraphPasses
from orpheus_ws.codec.network import DELAY, ENDLESS, StreamingNetwork
from orpheus_ws.codec.passes import Batch, EagerPasses, Passes
from orpheus_ws.codec.weights import Device, load_model, place
from orpheus_ws.config import CodecConfig
from orpheus_ws.errors import StartupError
from orpheus_ws.pcm import Samples
from orpheus_ws.settings import read_options
from orpheus_ws.tokens import CODES_PER_FRAME, SAMPLES_PER_FRAME, Frame

FRAME_SIZES: Final = (8, 4, 2, 1)
"""How many frames of a stream a pass may take: few sizes, so that each can be prepared."""

FLUSH_FRAMES: Final = -(-DELAY // SAMPLES_PER_FRAME)
"""Frames past the end that bring out the last samples."""

_EMPTY: Final[Samples] = np.zeros(0, np.float32)
_NO_CODES: Final[Frame] = (0,) * CODES_PER_FRAME


class Options(Device, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where SNAC runs, and what it may leave out."""

    noise: bool = True
    """Add the noise that the model was trained with, if it was, as a function of the seed."""
    early_frames: Annotated[int, msgspec.Meta(ge=0, le=3)] = 2
    """Frames after which an utterance begins to sound; 0: when its samples are final, after 3."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """What the network computes in. On a CPU use float32."""


def open_decoder(config: CodecConfig) -> Decoder:
    """Load the weights. Raises `StartupError`."""
    options = read_options(config.options, Options, "codec.options")
    network = StreamingNetwork(load_model(config.weights, noise=options.noise))
    network = place(network.to(getattr(torch, options.dtype)), options)
    slots = config.slots or 8
    return StreamingDecoder(_passes(network, slots), slots, early_frames=options.early_frames)


def _passes(network: StreamingNetwork, slots: int) -> Passes:
    if network.deviates.device.type != "cuda":
        return EagerPasses(network, slots)
    try:
        return GraphPasses(network, slots, FRAME_SIZES)
    except Exception as error:
        raise StartupError(
            f"the codec cannot prepare {slots} slots on the GPU ({type(error).__name__}): set "
            "codec.slots lower, or leave the codec more of the GPU's memory"
        ) from error


class _Slot:
    """What the host knows of a stream."""

    def __init__(self, seed: int = 0, *, early_frames: int = 0) -> None:
        self.offset = noise.offset(seed)
        self.early_frames = early_frames
        """Frames after which it begins early; 0 when it does not, or has."""
        self.waiting: list[Frame] = []
        """Frames that have arrived and were not fed to the network yet."""
        self.fed = 0
        self.length = ENDLESS
        self._emitted = 0
        self._handover: Handover | None = None

    def accept(self, work: Work) -> None:
        """More frames, perhaps the last."""
        self.waiting.extend(work.frames)
        if work.last:
            self.length = self.fed + len(self.waiting)

    @property
    def begins_early(self) -> bool:
        """Whether its early decode is due, even of a stream that has ended: when its end becomes
        known must not be heard."""
        return 0 < self.early_frames <= len(self.waiting)

    def begin_early(self, decoded: Samples) -> Samples:
        """Give what can be given of the early decode."""
        self._handover = Handover(decoded, self.early_frames)
        self.early_frames = 0
        self._emitted = len(self._handover.given)
        return self._handover.given

    @property
    def size(self) -> int:
        """How many frames the next pass should feed; 0 when it would bring out nothing new."""
        if self.length != ENDLESS:
            owed = self.length + FLUSH_FRAMES - self.fed
            if self._emitted == self.length * SAMPLES_PER_FRAME:
                return 0
            return min((size for size in FRAME_SIZES if size >= owed), default=FRAME_SIZES[0])
        arrived = self.fed + len(self.waiting)
        if arrived * SAMPLES_PER_FRAME - DELAY <= self._emitted:
            return 0
        return next(size for size in FRAME_SIZES if size <= len(self.waiting))

    def feed(self, size: int) -> list[Frame]:
        """The next `size` frames; past the end without codes."""
        frames, self.waiting = self.waiting[:size], self.waiting[size:]
        self.fed += size
        return frames + [_NO_CODES] * (size - len(frames))

    def emit(self, row: Samples) -> Samples:
        """What is new and final of the samples that came out with the latest frames."""
        end = self.fed * SAMPLES_PER_FRAME - DELAY
        start = end - len(row)
        final = min(end, self.length * SAMPLES_PER_FRAME)
        if final <= self._emitted:
            return _EMPTY
        samples = row[self._emitted - start : final - start].copy()
        if self._handover is not None:
            samples = self._handover.mix(samples, self._emitted)
        self._emitted = final
        return samples


class StreamingDecoder:
    """`Decoder` over `Passes`."""

    def __init__(self, passes: Passes, slots: int, *, early_frames: int) -> None:
        self._passes = passes
        self._early_frames = early_frames
        self._slots = [_Slot() for _ in range(slots)]

    @property
    def slots(self) -> int:
        """See `Decoder`."""
        return len(self._slots)

    @property
    def max_frames(self) -> int:
        """See `Decoder`."""
        return self._passes.max_frames

    def first_frames(self, *, early: bool) -> int:
        """See `Decoder`."""
        return self._early_frames if early and self._early_frames else FLUSH_FRAMES

    def reset(self, slot: int, *, seed: int, early: bool) -> None:
        """See `Decoder`."""
        self._slots[slot] = _Slot(seed, early_frames=self._early_frames if early else 0)

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """See `Decoder`."""
        pieces: dict[int, list[Samples]] = {}
        for work in batch:
            self._slots[work.slot].accept(work)
            pieces[work.slot] = []
        self._begin_early([index for index in pieces if self._slots[index].begins_early], pieces)
        while sizes := {index: size for index in pieces if (size := self._slots[index].size)}:
            for size in set(sizes.values()):
                self._advance([index for index in sizes if sizes[index] == size], size, pieces)
        return [_joined(pieces[work.slot]) for work in batch]

    def _advance(self, indices: list[int], size: int, pieces: dict[int, list[Samples]]) -> None:
        """Feed `size` frames of each of these streams."""
        slots = [self._slots[index] for index in indices]
        before = [slot.fed for slot in slots]
        edges = any(
            fed < FLUSH_FRAMES or fed + size > slot.length
            for fed, slot in zip(before, slots, strict=True)
        )
        # A stream that begins has nothing in its row of the table yet, or somebody else's rest.
        sources = [
            index if fed else self._passes.blank for index, fed in zip(indices, before, strict=True)
        ]
        audio = self._passes.run(
            Batch(
                codes=np.array([slot.feed(size) for slot in slots], np.int64),
                frames=np.array(before, np.int64),
                lengths=np.array([slot.length for slot in slots], np.int64),
                offsets=np.array([slot.offset for slot in slots], np.int64),
                sources=np.array(sources, np.int64),
                targets=np.array(indices, np.int64),
                edges=edges,
            )
        )
        for index, slot, row in zip(indices, slots, audio, strict=True):
            pieces[index].append(slot.emit(row))

    def _begin_early(self, indices: list[int], pieces: dict[int, list[Samples]]) -> None:
        """Decode the first frames of these streams as if nothing followed."""
        if not indices:
            return
        frames = self._early_frames
        needed = -(-(needed_samples(frames) + DELAY) // SAMPLES_PER_FRAME)
        size = min(size for size in FRAME_SIZES if size >= needed)
        slots = [self._slots[index] for index in indices]
        padding = [_NO_CODES] * (size - frames)
        count = len(slots)
        audio = self._passes.run(
            Batch(
                codes=np.array([slot.waiting[:frames] + padding for slot in slots], np.int64),
                frames=np.zeros(count, np.int64),
                lengths=np.full(count, frames, np.int64),
                offsets=np.array([slot.offset for slot in slots], np.int64),
                sources=np.full(count, self._passes.blank, np.int64),
                targets=np.full(count, self._passes.waste, np.int64),
                edges=True,
            )
        )
        for index, slot, row in zip(indices, slots, audio, strict=True):
            pieces[index].append(slot.begin_early(row[DELAY:]))


def _joined(pieces: list[Samples]) -> Samples:
    return np.concatenate(pieces) if pieces else _EMPTY
