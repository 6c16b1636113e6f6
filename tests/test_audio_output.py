"""Audio: PCM encodings, and the virtual player."""

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.audio import (
    ENCODINGS,
    SAMPLE_RATES,
    Player,
    encoder,
)
from orpheus_ws.errors import UnsupportedFormat

# Encodings ----------------------------------------------------------------------------------------

WIDTHS = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}
UNIT = st.floats(-1.5, 1.5, width=32)


def test_s16le_clips_and_rounds() -> None:
    """16-bit samples are rounded to the nearest step and clipped, never wrapped."""
    values = [0.0, 1.0, -1.0, 1.5, -1.5, 1e9, -1e9, 1.6 / 32767, -1.6 / 32767, 0.4 / 32767]
    encoded = encoder("pcm_s16le", 24_000)(np.array(values, np.float32))
    assert struct.unpack("<10h", encoded) == (
        *(0, 32767, -32767, 32767, -32768, 32767, -32768),
        *(2, -2, 0),
    )


@given(values=st.lists(UNIT, max_size=50))
@settings(deadline=None)
def test_s16le_is_within_half_a_step(values: list[float]) -> None:
    """What decodes from 16 bits differs from the sample by at most half a step, unless clipped."""
    encoded = encoder("pcm_s16le", 24_000)(np.array(values, np.float32))
    for value, sample in zip(values, struct.unpack(f"<{len(values)}h", encoded), strict=True):
        assert abs(min(32767.0, max(-32768.0, value * 32767)) - sample) <= 0.5 + 2**-8


@given(values=st.lists(st.floats(width=32, allow_nan=False), max_size=50))
@settings(deadline=None)
def test_f32le_is_exact(values: list[float]) -> None:
    """Float samples arrive bit by bit, little-endian, not clipped."""
    encoded = encoder("pcm_f32le", 24_000)(np.array(values, np.float32))
    assert encoded == struct.pack(f"<{len(values)}f", *values)


@pytest.mark.parametrize("rate", SAMPLE_RATES)
@pytest.mark.parametrize("encoding", ENCODINGS)
@given(values=st.lists(UNIT, max_size=200), cuts=st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=50, deadline=None)
def test_odd_bytes(encoding: str, rate: int, values: list[float], cuts: list[int]) -> None:
    """odd-bytes: any chunking of any audio gives whole samples, the same as in one piece."""
    encode = encoder(encoding, rate)
    samples = np.array(values, np.float32)
    edges = [0, *sorted(min(cut, len(samples)) for cut in cuts), len(samples)]
    chunks = [encode(samples[a:b]) for a, b in pairwise(edges)]
    assert all(len(chunk) % WIDTHS[encoding] == 0 for chunk in chunks)
    if rate == 24_000:
        assert [len(chunk) for chunk in chunks] == [
            (b - a) * WIDTHS[encoding] for a, b in pairwise(edges)
        ]
        assert b"".join(chunks) == encode(samples)


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
        encoder(encoding, rate)
    offered = ENCODINGS if rate == 24_000 else SAMPLE_RATES
    assert all(str(item) in str(caught.value) for item in offered)
    assert "mp3" not in str(caught.value)
    assert "44101" not in str(caught.value)


# The player ---------------------------------------------------------------------------------------


def test_player_prebuffers_80_ms() -> None:
    """The first chunk is played 80 ms after it came, so what comes before it is over is in time."""
    player = Player()
    player.receive(0.1, 50.0)
    player.receive(0.1, 50.179)
    assert (player.underruns, player.starved_seconds) == (0, 0.0)
    player.receive(0.1, 50.379)
    player.receive(0.1, 50.479)
    assert player.underruns == 1
    assert player.starved_seconds == pytest.approx(0.099)


def test_player_prebuffer_can_be_chosen() -> None:
    """With no prebuffer the same second chunk is an underrun."""
    player = Player(prebuffer=0.0)
    player.receive(0.1, 50.0)
    player.receive(0.1, 50.179)
    assert player.underruns == 1
    assert player.starved_seconds == pytest.approx(0.079)


@pytest.mark.parametrize(("late", "underruns"), [(-0.01, 0), (0.0099, 0), (0.0101, 1), (2.0, 1)])
def test_player_tolerates_10_ms(late: float, underruns: int) -> None:
    """Starvation of more than 10 ms is an underrun; of less it is not, nor are its seconds."""
    player = Player()
    player.receive(1.0, 0.0)
    player.receive(1.0, 1.08 + late)
    assert player.underruns == underruns
    assert player.starved_seconds == pytest.approx(late * underruns)


def test_player_starts_at_once_after_an_underrun() -> None:
    """Playing goes on with the chunk that ends a starvation; every further gap counts by itself."""
    player = Player()
    for now in (0.0, 1.0, 2.0, 3.0):
        player.receive(0.5, now)
    assert player.underruns == 3
    # Dry at 0.58, 1.5 and 2.5.
    assert player.starved_seconds == pytest.approx(0.42 + 0.5 + 0.5)


def test_player_forgives_what_came_early() -> None:
    """Audio that came ahead of time is played later: a long gap after it is no underrun."""
    player = Player()
    for _ in range(100):
        player.receive(0.1, 0.0)
    player.receive(0.1, 10.0)
    assert player.underruns == 0


@given(chunks=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1))
@settings(deadline=None)
def test_player_is_its_definition(chunks: list[tuple[int, int]]) -> None:
    """For any arrivals, underruns are the gaps over 10 ms of a player simulated step by step.

    Time is in units of 1/1024 s, in which all sums are exact.
    """
    unit = 1 / 1024
    player = Player(prebuffer=82 * unit)
    underruns = starved = clock = played_until = 0
    for index, (seconds, wait) in enumerate(chunks):
        clock += wait
        player.receive(seconds * unit, clock * unit)
        start = clock + 82 if index == 0 else max(played_until, clock)
        gap = start - played_until if index else 0
        if gap > 10.24:
            underruns += 1
            starved += gap
        played_until = start + seconds
    assert player.underruns == underruns
    assert player.starved_seconds == pytest.approx(starved * unit)


def test_player_in_hand() -> None:
    """In hand is what was received and not yet played: never more than was received."""
    player = Player()
    assert player.in_hand(0.0) == 0.0
    player.receive(1.0, 0.0)
    assert player.in_hand(0.58) == pytest.approx(0.5)
    assert player.in_hand(1.08) == pytest.approx(0.0)
    assert player.in_hand(9.0) == 0.0
    player.receive(1.0, 9.0)
    assert player.in_hand(9.25) == pytest.approx(0.75)


@pytest.mark.parametrize("now", [0.0, 0.04, 0.08])
def test_player_in_hand_while_it_waits(now: float) -> None:
    """Until the prebuffer is over nothing is played, so all that was received is in hand."""
    player = Player()
    player.receive(1.0, 0.0)
    assert player.in_hand(now) == pytest.approx(1.0)


@given(
    chunks=st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=20),
    lead=st.floats(0.2, 10),
)
def test_player_knows_when_there_is_room(chunks: list[tuple[float, float]], lead: float) -> None:
    """After waiting `seconds_until(lead)` no more than the lead is in hand, and not sooner."""
    player = Player()
    now = 0.0
    for wait, seconds in chunks:
        now += wait
        player.receive(seconds, now)
        surplus = player.seconds_until(lead, now)
        assert player.in_hand(now + surplus) <= lead + 1e-9
        if surplus > 0:
            assert player.in_hand(now + surplus * 0.9) > lead - 1e-9
