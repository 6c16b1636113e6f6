"""The exact window: decode again what reaches into the new samples. A baseline, and a reference.

Rule: a sample depends on 4757 samples, 2.32 frames, to either side. So it is final once that much has
arrived after it, and a window that reaches that far to both sides of the new samples gives them
exactly. What the window repeats is decoded again; streams whose windows are equally long share a
batch. There is no noise: SNAC would draw it afresh for every window.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import numpy as np
import torch
from torch import nn

from orpheus_ws.codec import Decoder, Work
from orpheus_ws.codec.network import DELAY
from orpheus_ws.codec.weights import Device, load_model, place
from orpheus_ws.config import CodecConfig
from orpheus_ws.pcm import Samples
from orpheus_ws.settings import read_options
from orpheus_ws.tokens import LEVEL_SLOTS, SAMPLES_PER_FRAME, Frame

RADIUS: Final = DELAY
"""Samples on either side that a sample depends on."""

_EMPTY: Final[Samples] = np.zeros(0, np.float32)


class Options(Device, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where SNAC runs."""


def open_decoder(config: CodecConfig) -> Decoder:
    """Load the weights. Raises `StartupError`."""
    options = read_options(config.options, Options, "codec.options")
    model = place(load_model(config.weights, noise=False), options)
    return WindowDecoder(model, slots=config.slots or 8)


def decode_whole(model: nn.Module, frames: Sequence[Frame]) -> Samples:
    """Decode a whole utterance at once: N frames → N × 2048 samples. The reference for streams."""
    samples: Samples = _decode(model, [frames])[0]
    return samples


def _decode(model: nn.Module, windows: Sequence[Sequence[Frame]]) -> Samples:
    """Decode windows of equal length: (B, T) frames → (B, T × 2048) samples."""
    device = next(model.parameters()).device
    codes = torch.tensor(np.asarray(windows, np.int64), device=device)
    levels = [codes[:, :, slots].flatten(1) for slots in map(list, LEVEL_SLOTS)]
    with torch.inference_mode():
        audio = model.decode(levels)  # type: ignore[operator]  # snac has no types
    samples: Samples = audio[:, 0].float().cpu().numpy()
    return samples


class _Slot:
    """A stream: the frames that still matter and how many samples have left."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.first = 0  # index in the stream of frames[0]
        self.emitted = 0


class WindowDecoder:
    """`Decoder` over a prepared SNAC model."""

    max_frames = 8

    def __init__(self, model: nn.Module, slots: int) -> None:
        self._model = model
        self._slots = [_Slot() for _ in range(slots)]

    @property
    def slots(self) -> int:
        """See `Decoder`."""
        return len(self._slots)

    def first_frames(self, *, early: bool) -> int:
        """See `Decoder`; nothing comes early here."""
        return -(-RADIUS // SAMPLES_PER_FRAME)

    def reset(self, slot: int, *, seed: int, early: bool) -> None:
        """See `Decoder`; there is no noise."""
        self._slots[slot] = _Slot()

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """See `Decoder`."""
        results = [_EMPTY] * len(batch)
        finals = [self._accept(work) for work in batch]

        def length(index: int) -> int:
            return len(self._slots[batch[index].slot].frames)

        ready = [i for i, work in enumerate(batch) if finals[i] > self._slots[work.slot].emitted]
        for _, group in groupby(sorted(ready, key=length), key=length):
            members = list(group)
            windows = [self._slots[batch[index].slot].frames for index in members]
            for index, audio in zip(members, _decode(self._model, windows), strict=True):
                results[index] = self._emit(self._slots[batch[index].slot], audio, finals[index])
        return results

    def _accept(self, work: Work) -> int:
        """Add the frames; return how many samples of the stream are final now."""
        slot = self._slots[work.slot]
        slot.frames.extend(work.frames)
        arrived = (slot.first + len(slot.frames)) * SAMPLES_PER_FRAME
        return arrived if work.last else max(0, arrived - RADIUS)

    @staticmethod
    def _emit(slot: _Slot, audio: Samples, final: int) -> Samples:
        start = slot.first * SAMPLES_PER_FRAME
        samples = audio[slot.emitted - start : final - start].copy()
        slot.emitted = final
        needed = max(0, (final - RADIUS) // SAMPLES_PER_FRAME)
        del slot.frames[: needed - slot.first]
        slot.first = needed
        return samples
