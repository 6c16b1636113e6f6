"""The sliding window, as published Orpheus servers decode: the baseline of `bench codec`.

Rule: once four frames are there, every new one has the last four decoded, and of the 8192 samples the
second quarter is kept. So everything is decoded four times, the first frame and the last two are
never heard, and a frame is heard with one frame before it where its sound depends on 2.32. All
streams of a step share a batch, which is more than published servers do.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import nn

from orpheus_ws.codec import Work
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import LEVEL_SLOTS, SAMPLES_PER_FRAME, Frame

WINDOW: Final = 4
"""Frames that are decoded at once: 28 tokens."""

KEPT: Final = slice(SAMPLES_PER_FRAME, 2 * SAMPLES_PER_FRAME)
"""Samples of a window that are heard: those of its second frame."""


class SlidingWindowDecoder:
    """`Decoder` over a prepared SNAC model. What it gives is not exact, and less than N × 2048."""

    max_frames = 8

    def __init__(self, model: nn.Module, slots: int) -> None:
        self._model = model
        self._windows: list[deque[Frame]] = [deque(maxlen=WINDOW) for _ in range(slots)]

    @property
    def slots(self) -> int:
        """See `Decoder`."""
        return len(self._windows)

    def first_frames(self, *, early: bool) -> int:
        """See `Decoder`."""
        return WINDOW

    def reset(self, slot: int, *, seed: int, early: bool) -> None:
        """See `Decoder`; the model's noise, if it has any, is drawn afresh for every window."""
        self._windows[slot].clear()

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """See `Decoder`; the end of a stream brings nothing out."""
        pieces: list[list[Samples]] = [[np.zeros(0, np.float32)] for _ in batch]
        for turn in range(max(len(work.frames) for work in batch)):
            due = [index for index, work in enumerate(batch) if turn < len(work.frames)]
            for index in due:
                self._windows[batch[index].slot].append(batch[index].frames[turn])
            full = [i for i in due if len(self._windows[batch[i].slot]) == WINDOW]
            windows = [list(self._windows[batch[index].slot]) for index in full]
            for index, audio in zip(full, self._decode(windows), strict=True):
                pieces[index].append(audio[KEPT].copy())
        return [np.concatenate(piece) for piece in pieces]

    def _decode(self, windows: list[list[Frame]]) -> Samples:
        """Windows of four frames → (B, 8192) samples."""
        if not windows:
            return np.zeros((0, WINDOW * SAMPLES_PER_FRAME), np.float32)
        codes = torch.tensor(windows)
        levels = [codes[:, :, list(slots)].flatten(1) for slots in LEVEL_SLOTS]
        with torch.inference_mode():
            audio: Samples = self._model.decode(levels)[:, 0].numpy()  # type: ignore[operator]  # snac has no types
        return audio
