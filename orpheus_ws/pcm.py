"""Samples → bytes on the wire: sample rates and encodings. Pure.

Rule: float samples in, PCM bytes out; a chunk is always a whole number of samples. A segment of N
samples becomes the whole number nearest to N × rate / 24 000 (they are thirds, so never halfway),
and no bit of them depends on how the segment was cut into chunks.
"""

import struct
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import soxr
from numpy.typing import NDArray

from orpheus_ws.errors import UnsupportedFormat
from orpheus_ws.tokens import SAMPLE_RATE

Samples = NDArray[np.float32]
"""Mono, 24 kHz, nominally within ±1."""

# Sample rates ------------------------------------------------------------------------------------

# soxr's quality and how many zeros go before a segment. Time to first audio decides both.
#
# The resampler works in blocks: of 900 samples at 8 kHz with LQ, which come out after 962; with HQ
# of 1468 after 1758, at 16 kHz of 735 after 879, at 48 kHz of 830 after 927. The first chunk of a
# context has 961 samples or more: a lead-in of 1200 and its first sound, less a fade of 240. At
# 8 kHz HQ would hold the whole of most first chunks, until the next frame. So it is LQ there, 0.3 dB
# down at 3.0 kHz and 8 dB at 3.4 kHz, where telephones end, and a recogniser gets as many words; HQ
# is flat to 90 % of its band. What folds back is below −100 dB with both.
#
# The zeros make a block end 60 samples after the lead-in, so that the first sound goes out too.
_RESAMPLING: Final = {8_000: ("LQ", 540), 16_000: ("HQ", 210), 48_000: ("HQ", 399)}

SAMPLE_RATES: Final = tuple(sorted((SAMPLE_RATE, *_RESAMPLING)))


class _Resampler:
    """From 24 kHz to another rate, segment by segment. At most 41 ms wait for the next chunk."""

    def __init__(self, sample_rate: int) -> None:
        quality, zeros = _RESAMPLING[sample_rate]
        self._stream = soxr.ResampleStream(SAMPLE_RATE, sample_rate, 1, quality=quality)
        self._zeros: Samples = np.zeros(zeros, np.float32)
        self._zeros_after = zeros * sample_rate // SAMPLE_RATE  # exactly
        self._begin()

    def _begin(self) -> None:
        self._stream.clear()
        self._stream.resample_chunk(self._zeros)  # fewer than a block
        self._skip = self._zeros_after

    def resample(self, samples: Samples, *, last: bool) -> Samples:
        """Take the next samples of a segment and return what is certain, or all if it is over."""
        resampled: Samples = self._stream.resample_chunk(samples, last=last)
        skipped = min(self._skip, len(resampled))
        self._skip -= skipped
        if last:
            self._begin()
        return resampled[skipped:]


# Encodings ---------------------------------------------------------------------------------------


# Arrays: numpy would make one of a number each time, at half the price of going through a frame.
_FULL_SCALE: Final = np.array(32767, np.float32)
_LOWEST: Final = np.array(-32768, np.float32)


def _steps(samples: Samples) -> Samples:
    """Samples in steps of 16 bits: full scale is 32767, rounded half to even, then clipped.

    What is not a number stays so; cast to an integer it is silence, and numpy warns.
    """
    # In place, as every frame of every stream comes through here, on the event loop.
    steps: Samples = samples * _FULL_SCALE
    np.rint(steps, out=steps)
    steps.clip(_LOWEST, _FULL_SCALE, out=steps)
    return steps


def _pcm_s16le(samples: Samples) -> bytes:
    return _steps(samples).astype("<i2").tobytes()


def _pcm_f32le(samples: Samples) -> bytes:
    return samples.astype("<f4", copy=False).tobytes()


# Every 16-bit sample, negative ones last, so that a sample is its own index. Magnitudes are one's
# complements, as in the reference software of the ITU-T: -1 is as faint as 0.
_LINEAR: Final = np.concatenate((np.arange(32768), np.arange(-32768, 0)))
_MAGNITUDE: Final = _LINEAR ^ (_LINEAR >> 15)
_SIGN: Final = ~_LINEAR >> 8 & 0x80


def _mulaw_table() -> NDArray[np.uint8]:
    """ITU-T G.711 µ-law: 14 bits in 8 chords of 16 steps; all bits but the sign inverted.

    The lowest two bits are dropped. Magnitudes above 8158 are clipped, then biased by 33.
    """
    biased = (_MAGNITUDE >> 2).clip(max=8158) + 33
    chord = np.searchsorted(64 << np.arange(7), biased, side="right")
    step = biased >> (chord + 1) & 15
    return (_SIGN | ~(chord << 4 | step) & 0x7F).astype(np.uint8)


def _alaw_table() -> NDArray[np.uint8]:
    """ITU-T G.711 A-law: 12 bits in 8 chords of 16 steps; every second bit inverted.

    The lowest four bits are dropped, and the steps of the first two chords are alike.
    """
    magnitude = _MAGNITUDE >> 4
    chord = np.searchsorted(16 << np.arange(7), magnitude, side="right")
    step = magnitude >> np.maximum(chord - 1, 0) & 15
    return ((_SIGN | chord << 4 | step) ^ 0x55).astype(np.uint8)


_MULAW: Final = _mulaw_table()
_ALAW: Final = _alaw_table()


def _mulaw(samples: Samples) -> bytes:
    return _MULAW.take(_steps(samples).astype(np.int16)).tobytes()


def _alaw(samples: Samples) -> bytes:
    return _ALAW.take(_steps(samples).astype(np.int16)).tobytes()


ENCODINGS: Final[dict[str, Callable[[Samples], bytes]]] = {
    "pcm_s16le": _pcm_s16le,
    "pcm_f32le": _pcm_f32le,
    "mulaw": _mulaw,
    "alaw": _alaw,
}

# Both --------------------------------------------------------------------------------------------


class Chunk(msgspec.Struct, frozen=True):
    """PCM in a negotiated format and how many samples it holds at the negotiated rate."""

    pcm: bytes
    samples: int


def silence(encoding: str, samples: int) -> bytes:
    """So many samples in which nothing is heard."""
    return ENCODINGS[encoding](np.zeros(samples, np.float32))


def check_format(encoding: str, sample_rate: int) -> None:
    """Raise `UnsupportedFormat` for what `ready` does not offer."""
    if encoding not in ENCODINGS:
        raise UnsupportedFormat(f"use one of the encodings {', '.join(ENCODINGS)}")
    if sample_rate not in SAMPLE_RATES:
        raise UnsupportedFormat(f"use one of the sample rates {', '.join(map(str, SAMPLE_RATES))}")


class Output:
    """The way of one context's samples into its negotiated format, segment by segment.

    Segments are resampled each for itself, with silence around it, so they should begin and end at
    zero. Raises `UnsupportedFormat`.
    """

    def __init__(self, encoding: str, sample_rate: int) -> None:
        check_format(encoding, sample_rate)
        self._encode = ENCODINGS[encoding]
        self._resampler = None if sample_rate == SAMPLE_RATE else _Resampler(sample_rate)

    def feed(self, samples: Samples) -> Chunk:
        """Take the next samples of a segment; the chunk may be empty."""
        if self._resampler is not None:
            samples = self._resampler.resample(samples, last=False)
        return Chunk(self._encode(samples), len(samples))

    def finish(self, samples: Samples) -> Chunk:
        """Take the last samples of a segment, perhaps none, and return all that is left of it."""
        if self._resampler is not None:
            samples = self._resampler.resample(samples, last=True)
        return Chunk(self._encode(samples), len(samples))


# Files -------------------------------------------------------------------------------------------

STREAMED_WAV_HEADER: Final = struct.pack(
    "<4sI4s4sIHHIIHH4sI",
    b"RIFF", 0xFFFF_FFFF, b"WAVE",
    b"fmt ", 16, 1, 1, SAMPLE_RATE, SAMPLE_RATE * 2, 2, 16,
    b"data", 0xFFFF_FFFF,
)  # fmt: skip
"""Of `pcm_s16le` at 24 kHz. Its lengths say that the file ends where it ends: it is sent while it is
spoken."""
