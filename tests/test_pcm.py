"""PCM: encodings and sample rates."""

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.errors import UnsupportedFormat
from orpheus_ws.pcm import ENCODINGS, SAMPLE_RATES, Output, check_format

# Encodings ----------------------------------------------------------------------------------------

WIDTHS = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}
UNIT = st.floats(-1.5, 1.5, width=32)


def test_s16le_clips_and_rounds() -> None:
    """16-bit samples are rounded to the nearest step and clipped, never wrapped."""
    values = [0.0, 1.0, -1.0, 1.5, -1.5, 1e9, -1e9, 1.6 / 32767, -1.6 / 32767, 0.4 / 32767]
    encoded = Output("pcm_s16le", 24_000).finish(np.array(values, np.float32)).pcm
    assert struct.unpack("<10h", encoded) == (
        *(0, 32767, -32767, 32767, -32768, 32767, -32768),
        *(2, -2, 0),
    )


@given(values=st.lists(UNIT, max_size=50))
@settings(deadline=None)
def test_s16le_is_within_half_a_step(values: list[float]) -> None:
    """What decodes from 16 bits differs from the sample by at most half a step, unless clipped."""
    encoded = Output("pcm_s16le", 24_000).finish(np.array(values, np.float32)).pcm
    for value, sample in zip(values, struct.unpack(f"<{len(values)}h", encoded), strict=True):
        assert abs(min(32767.0, max(-32768.0, value * 32767)) - sample) <= 0.5 + 2**-8


@given(values=st.lists(st.floats(width=32, allow_nan=False), max_size=50))
@settings(deadline=None)
def test_f32le_is_exact(values: list[float]) -> None:
    """Float samples arrive bit by bit, little-endian, not clipped."""
    encoded = Output("pcm_f32le", 24_000).finish(np.array(values, np.float32)).pcm
    assert encoded == struct.pack(f"<{len(values)}f", *values)


@pytest.mark.parametrize("rate", SAMPLE_RATES)
@pytest.mark.parametrize("encoding", ENCODINGS)
@given(values=st.lists(UNIT, max_size=200), cuts=st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=50, deadline=None)
def test_odd_bytes(encoding: str, rate: int, values: list[float], cuts: list[int]) -> None:
    """odd-bytes: any chunking of any audio gives whole samples, the same as in one piece."""
    output, whole = Output(encoding, rate), Output(encoding, rate)
    samples = np.array(values, np.float32)
    edges = [0, *sorted(min(cut, len(samples)) for cut in cuts), len(samples)]
    chunks = [output.feed(samples[a:b]).pcm for a, b in pairwise(edges)]
    chunks.append(output.finish(samples[:0]).pcm)
    assert all(len(chunk) % WIDTHS[encoding] == 0 for chunk in chunks)
    assert b"".join(chunks) == whole.finish(samples).pcm


def test_native_format_is_there() -> None:
    """The protocol's default encoding and the codec's own rate are always offered."""
    assert "pcm_s16le" in ENCODINGS
    assert "pcm_f32le" in ENCODINGS
    assert 24_000 in SAMPLE_RATES


@pytest.mark.parametrize(
    ("encoding", "rate"),
    [
        *(("mp3", 24_000), ("", 24_000), ("PCM_S16LE", 24_000), ("pcm_s16le ", 24_000)),
        *(("pcm_s16le", 0), ("pcm_s16le", -24_000), ("pcm_s16le", 44_101), ("pcm_s16le", 2**70)),
    ],
)
def test_unsupported_formats(encoding: str, rate: int) -> None:
    """What is not offered is refused with what is, and without repeating what was asked."""
    with pytest.raises(UnsupportedFormat) as caught:
        check_format(encoding, rate)
    offered = ENCODINGS if rate == 24_000 else SAMPLE_RATES
    assert all(str(item) in str(caught.value) for item in offered)
    assert "mp3" not in str(caught.value)
    assert "44101" not in str(caught.value)
