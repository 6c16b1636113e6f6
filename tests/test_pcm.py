"""PCM: encodings and sample rates."""

import audioop
import struct
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orpheus_ws.audio import AUDIBLE, Shaper
from orpheus_ws.errors import UnsupportedFormat
from orpheus_ws.pcm import ENCODINGS, SAMPLE_RATES, Output, Samples, check_format

WIDTHS = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}
UNIT = st.floats(-1.5, 1.5, width=32)
RESAMPLED = [rate for rate in SAMPLE_RATES if rate != 24_000]


def sine(hertz: float, samples: int = 48_000) -> Samples:
    """Two seconds of half of full scale at 24 kHz."""
    phase = np.arange(samples) * (2 * np.pi * hertz / 24_000)
    return np.asarray(0.5 * np.sin(phase), np.float32)


def resampled(samples: Samples, rate: int, chunk: int = 2048) -> NDArray[np.float64]:
    """A segment at another rate, fed in chunks of this length."""
    output = Output("pcm_f32le", rate)
    starts = range(0, len(samples), chunk)
    pcm = b"".join(output.feed(samples[start : start + chunk]).pcm for start in starts)
    return np.frombuffer(pcm + output.finish(samples[:0]).pcm, "<f4").astype(np.float64)


# Encodings ----------------------------------------------------------------------------------------


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


LINEAR = np.arange(-32768, 32768)
"""Every 16-bit sample."""


def g711(encoding: str) -> bytes:
    """What becomes of them."""
    return Output(encoding, 24_000).finish((LINEAR / 32767).astype(np.float32)).pcm


def test_alaw_is_that_of_the_standard_library() -> None:
    """All 65 536 samples give the bytes that `audioop` gives."""
    assert g711("alaw") == audioop.lin2alaw(LINEAR.astype("<i2").tobytes(), 2)


def test_mulaw_is_that_of_the_standard_library() -> None:
    """All 65 536 samples give the bytes that `audioop` gives, negative ones as mirror images.

    `audioop` itself rounds negative samples down to 14 bits, which makes -8 of -1: noise that
    nobody hears becomes noise that one does. The ITU-T's reference software mirrors them.
    """
    encoded = g711("mulaw")
    positive = audioop.lin2ulaw(np.arange(32768).astype("<i2").tobytes(), 2)
    assert encoded[32768:] == positive
    # All codes of positive samples have the highest bit, those of negative ones have not.
    assert encoded[:32768] == bytes(code & 0x7F for code in reversed(positive))


@pytest.mark.parametrize(
    ("encoding", "decode", "finest"),
    [("mulaw", audioop.ulaw2lin, 8), ("alaw", audioop.alaw2lin, 16)],
)
def test_companding_is_within_half_a_step(
    encoding: str, decode: Callable[[bytes, int], bytes], finest: int
) -> None:
    """What `audioop` decodes differs by at most half a step of the sample's chord, unless clipped."""
    decoded = np.frombuffer(decode(g711(encoding), 2), "<i2").astype(int)
    magnitude = np.abs(LINEAR) + (132 if encoding == "mulaw" else 0)
    step = np.maximum(finest, 2 ** np.floor(np.log2(np.maximum(magnitude, 1))) / 16)
    assert (np.abs(decoded - np.clip(LINEAR, -32636, 32635)) <= step / 2).all()


@pytest.mark.parametrize(("encoding", "silence"), [("mulaw", 0xFF), ("alaw", 0xD5)])
def test_companded_silence(encoding: str, silence: int) -> None:
    """Silence is the code that telephones send for it."""
    assert Output(encoding, 8000).finish(np.zeros(300, np.float32)).pcm == bytes([silence]) * 100


@pytest.mark.parametrize("encoding", ["mulaw", "alaw"])
def test_companding_clips(encoding: str) -> None:
    """What is too loud is as loud as can be, with its sign."""
    loud = Output(encoding, 24_000).finish(np.array([1e9, 1.5, -1.5, -1e9], np.float32)).pcm
    full = Output(encoding, 24_000).finish(np.array([1.0, 1.0, -1.0, -1.0], np.float32)).pcm
    assert loud == full
    assert len(set(loud)) == 2


@pytest.mark.parametrize(("encoding", "silence"), [("pcm_s16le", 0), ("mulaw", 0xFF)])
def test_not_a_number_is_silence(encoding: str, silence: int) -> None:
    """A decoder that fails so is heard as silence, and numpy warns of it."""
    with pytest.warns(RuntimeWarning, match="invalid value"):
        encoded = Output(encoding, 24_000).feed(np.full(9, np.nan, np.float32)).pcm
    assert set(encoded) == {silence}


@pytest.mark.parametrize("rate", SAMPLE_RATES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_input_is_left_alone(encoding: str, rate: int) -> None:
    """Samples that may not be written to are as good as others."""
    samples = sine(440)
    samples.flags.writeable = False
    assert Output(encoding, rate).feed(samples).samples > 0


# Sample rates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", SAMPLE_RATES)
@pytest.mark.parametrize("encoding", ENCODINGS)
@given(
    length=st.integers(0, 6000),
    cuts=st.lists(st.integers(0, 6000), max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None)
def test_odd_bytes(encoding: str, rate: int, length: int, cuts: list[int], seed: int) -> None:
    """odd-bytes: any chunking of any audio gives whole samples, the same as in one piece.

    They are as many as the segment lasts, to the nearest; and so it is in the segment after it.
    """
    samples = np.random.default_rng(seed).uniform(-1.5, 1.5, length).astype(np.float32)
    whole = Output(encoding, rate).finish(samples)
    assert whole.samples == round(length * rate / 24_000)
    edges = [0, *sorted(min(cut, length) for cut in cuts), length]
    output = Output(encoding, rate)
    pieces = [samples[a:b] for a, b in pairwise(edges)]
    for fed, last in ((pieces, samples[:0]), (pieces[:-1], pieces[-1])):
        chunks = [output.feed(piece) for piece in fed] + [output.finish(last)]
        assert all(len(chunk.pcm) == chunk.samples * WIDTHS[encoding] for chunk in chunks)
        assert b"".join(chunk.pcm for chunk in chunks) == whole.pcm


@pytest.mark.parametrize("rate", RESAMPLED)
@pytest.mark.parametrize("hertz", [100, 1000, 2800])
def test_a_tone_stays_itself(hertz: int, rate: int) -> None:
    """A tone keeps its frequency and, within 0.1 dB, its level; all else is below −90 dB."""
    heard = resampled(sine(hertz), rate)[rate // 4 : -rate // 4]  # the edges ring, as they must
    time = np.arange(len(heard)) / rate + 0.25
    expected = 0.5 * np.sin(2 * np.pi * hertz * time)
    level = heard @ expected / (expected @ expected)
    assert abs(20 * np.log10(level)) < 0.1
    rest = heard - level * expected
    assert np.sqrt(np.mean(rest**2)) < 0.5 * 10 ** (-90 / 20)


@pytest.mark.parametrize(
    ("hertz", "rate", "floor"),
    [(3200, 8000, -3.0), (3400, 8000, -8.0), (7000, 16_000, -0.1), (10_500, 48_000, -0.1)],
)
def test_the_band_is_kept(hertz: int, rate: int, floor: float) -> None:
    """What speech has up to near the top of the band stays."""
    assert 20 * np.log10(np.std(resampled(sine(hertz), rate)) / np.std(sine(hertz))) > floor


@pytest.mark.parametrize("rate", [8000, 16_000])
@pytest.mark.parametrize("share", [1.05, 1.2, 1.4, 1.75])
def test_nothing_folds_back(rate: int, share: float) -> None:
    """A tone above half the rate, such as 7 kHz at 8 kHz, is gone rather than another tone."""
    hertz = min(11_900, share * rate / 2)
    heard = resampled(sine(hertz), rate)[rate // 4 : -rate // 4]
    assert np.std(heard) < np.std(sine(hertz)) * 10 ** (-80 / 20)


@pytest.mark.parametrize("rate", SAMPLE_RATES)
def test_joins_do_not_click(rate: int) -> None:
    """Segments of full, constant level, faded by the shaper, join without a step at any rate."""
    shaper, output = Shaper(), Output("pcm_f32le", rate)
    pcm = b""
    for level in (1.0, -1.0, 1.0):
        for _ in range(4):
            pcm += output.feed(shaper.feed(np.full(2048, level, np.float32))).pcm
        pcm += output.finish(shaper.finish()).pcm
    steps = np.abs(np.diff(np.pad(np.frombuffer(pcm, "<f4"), 1)))
    # A fade of 240 samples steps by at most 0.0066 at 24 kHz.
    assert steps.max() <= 0.0067 * 24_000 / rate


@pytest.mark.parametrize("rate", RESAMPLED)
@pytest.mark.parametrize("silence", [2047, 6000])
def test_the_first_chunk_is_heard_at_once(silence: int, rate: int) -> None:
    """The shortest first chunk, the lead-in less the fade, is not held for the next."""
    shaper = Shaper()
    opening = np.pad(np.full(1, 0.5, np.float32), (silence, 0))
    first = shaper.feed(opening)
    assert len(first) == 961
    assert Output("mulaw", rate).feed(first).samples > 0


@pytest.mark.parametrize("rate", SAMPLE_RATES)
@pytest.mark.parametrize("sound", [450, 848, 1500, 2048])
def test_the_first_sound_leaves_at_once(sound: int, rate: int) -> None:
    """A chunk with 19 ms of sound after the lead-in, of which 10 are kept to fade, is audible."""
    first = Shaper().feed(np.pad(sine(440)[:sound], (6000, 0)))
    heard = np.frombuffer(Output("pcm_f32le", rate).feed(first).pcm, "<f4")
    assert np.abs(heard).max() >= AUDIBLE


@pytest.mark.parametrize("rate", RESAMPLED)
def test_delay_is_bounded(rate: int) -> None:
    """Of what went in, never more than 41 ms is yet to come out."""
    output = Output("pcm_f32le", rate)
    fed = sent = 0
    for _ in range(3000):
        fed += 8
        sent += output.feed(np.zeros(8, np.float32)).samples
        assert 0 <= fed / 24_000 - sent / rate < 0.041


# Formats ------------------------------------------------------------------------------------------


def test_formats() -> None:
    """The formats that the protocol promises are offered, and no others."""
    assert list(ENCODINGS) == ["pcm_s16le", "pcm_f32le", "mulaw", "alaw"]
    assert SAMPLE_RATES == (8000, 16_000, 24_000, 48_000)


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
