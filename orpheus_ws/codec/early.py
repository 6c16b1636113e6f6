"""The first sound of a stream, before its samples are final.

Rule: what is given early is the decode of the first frames as if nothing followed them, less its
right edge, where what follows would be heard. The exact stream takes over with a cross-fade. So it
depends on the codes and on the number of frames alone. `docs/codec.md` has how close it is.
"""

from typing import Final

import numpy as np

from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import SAMPLES_PER_FRAME

WITHHELD: Final = {1: 1024, 2: 2048, 3: 2048}
"""Samples kept back at the right edge after so many frames: half of the first frame can be heard,
and from two frames on one whole frame less than has arrived."""

FADE: Final = 240
"""10 ms from the early decode to the exact one."""

_RISE: Final = (0.5 - 0.5 * np.cos(np.pi * (np.arange(FADE) + 0.5) / FADE)).astype(np.float32)


def early_samples(frames: int) -> int:
    """How many samples are given early after so many frames."""
    return frames * SAMPLES_PER_FRAME - WITHHELD[frames]


def needed_samples(frames: int) -> int:
    """How many samples of the early decode are needed, those for the cross-fade included."""
    return early_samples(frames) + FADE


class Handover:
    """The cross-fade from an early decode to the exact stream."""

    def __init__(self, decoded: Samples, frames: int) -> None:
        self._start = early_samples(frames)
        self.given = decoded[: self._start].copy()
        """What is given early."""
        self._tail = decoded[self._start : self._start + FADE].copy()

    def mix(self, exact: Samples, start: int) -> Samples:
        """`exact`, whose first sample is number `start` of the stream, faded in where it begins."""
        begin = start - self._start
        count = min(FADE - begin, len(exact))
        if count <= 0:
            return exact
        rise = _RISE[begin : begin + count]
        mixed = exact.copy()
        mixed[:count] = rise * exact[:count] + (1 - rise) * self._tail[begin : begin + count]
        return mixed
