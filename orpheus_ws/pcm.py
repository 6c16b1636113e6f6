"""Samples → bytes on the wire: encodings and sample rates. Pure.

Rule: float samples in, PCM bytes out; a chunk is always a whole number of samples.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orpheus_ws.errors import UnsupportedFormat
from orpheus_ws.tokens import SAMPLE_RATE

Samples = NDArray[np.float32]
"""Mono, 24 kHz, nominally within ±1."""


def _pcm_s16le(samples: Samples) -> bytes:
    scaled = np.clip(np.rint(samples * 32767.0), -32768, 32767)
    encoded: bytes = scaled.astype("<i2").tobytes()
    return encoded


def _pcm_f32le(samples: Samples) -> bytes:
    return samples.astype("<f4").tobytes()


ENCODINGS: Final[dict[str, Callable[[Samples], bytes]]] = {
    "pcm_s16le": _pcm_s16le,
    "pcm_f32le": _pcm_f32le,
}
SAMPLE_RATES: Final = (SAMPLE_RATE,)


class Chunk(NamedTuple):
    """PCM in a negotiated format and how many samples it holds at the negotiated rate."""

    pcm: bytes
    samples: int


def check_format(encoding: str, sample_rate: int) -> None:
    """Raise `UnsupportedFormat` for what `ready` does not offer."""
    if encoding not in ENCODINGS:
        raise UnsupportedFormat(f"use one of the encodings {', '.join(ENCODINGS)}")
    if sample_rate not in SAMPLE_RATES:
        raise UnsupportedFormat(f"use one of the sample rates {', '.join(map(str, SAMPLE_RATES))}")


class Output:
    """The way of one context's samples into its negotiated format, segment by segment.

    Raises `UnsupportedFormat`.
    """

    def __init__(self, encoding: str, sample_rate: int) -> None:
        check_format(encoding, sample_rate)
        self._encode = ENCODINGS[encoding]

    def feed(self, samples: Samples) -> Chunk:
        """Take the next samples of a segment; the chunk may be empty."""
        return Chunk(self._encode(samples), len(samples))

    def finish(self, samples: Samples) -> Chunk:
        """Take the last samples of a segment, perhaps none, and return all that is left of it."""
        return self.feed(samples)
