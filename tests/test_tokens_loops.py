"""Tokens: a generation that repeats itself is noticed, in time and only then."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.tokens import (
    CODEBOOK_SIZE,
    CODES_PER_FRAME,
    Frame,
    LoopDetector,
)

LOOP_FRAMES = 23
LONGEST_PERIOD = 36

CODES = st.integers(0, CODEBOOK_SIZE - 1)
FRAMES = st.tuples(*[CODES] * CODES_PER_FRAME)


def frame(seed: int) -> Frame:
    """A frame of its own for every seed."""
    return (seed % CODEBOOK_SIZE, seed // CODEBOOK_SIZE, 1, 2, 3, 4, 5)


# Loops --------------------------------------------------------------------------------------------


def noticed_at(frames: Sequence[Frame], audible: Sequence[bool]) -> int | None:
    """Index of the frame at which a detector first says that this is a loop."""
    detector = LoopDetector()
    for index, (item, heard) in enumerate(zip(frames, audible, strict=True)):
        if detector.push(item, audible=heard):
            return index
    return None


@pytest.mark.parametrize("period", range(1, LONGEST_PERIOD + 1))
@pytest.mark.parametrize("before", [0, 50])
def test_loops_are_noticed_within_two_seconds(period: int, before: int) -> None:
    """A repeated pattern of 1 … 36 frames is noticed after 23 repeated frames, not before."""
    lead = [frame(1000 + n) for n in range(before)]
    pattern = [frame(n) for n in range(period)]
    frames = lead + [pattern[n % period] for n in range(period + LOOP_FRAMES + 40)]
    assert noticed_at(frames, [True] * len(frames)) == before + period + LOOP_FRAMES - 1


@given(
    heard=st.lists(st.booleans(), min_size=1, max_size=LONGEST_PERIOD).filter(any),
)
@settings(deadline=None)
def test_only_audible_frames_count(heard: list[bool]) -> None:
    """Where some of the pattern's frames are silent, 23 audible repeated frames are waited for."""
    period = len(heard)
    frames = [frame(n % period) for n in range(period * (LOOP_FRAMES + 2))]
    audible = [heard[n % period] for n in range(len(frames))]
    index = noticed_at(frames, audible)
    assert index is not None
    assert sum(audible[period : index + 1]) == LOOP_FRAMES
    assert audible[index]


@pytest.mark.parametrize("period", [1, 2, 36])
def test_silence_is_not_a_loop(period: int) -> None:
    """A pause is never a loop, however long, and the same frames speaking after it start anew."""
    frames = [frame(n % period) for n in range(400)]
    assert noticed_at(frames, [False] * 400) is None
    detector = LoopDetector()
    assert not any(detector.push(item, audible=False) for item in frames)
    heard = [detector.push(frame(n % period), audible=True) for n in range(400, 430)]
    assert heard.index(True) == LOOP_FRAMES - 1


def test_a_longer_pattern_is_not_a_loop() -> None:
    """A pattern of more than 36 frames is beyond what the detector looks for."""
    frames = [frame(n % (LONGEST_PERIOD + 1)) for n in range(300)]
    assert noticed_at(frames, [True] * 300) is None


def test_a_break_starts_the_count_again() -> None:
    """22 repeats, another frame, and as many again are not a loop: not of one frame, nor of 24."""
    frames = [frame(0)] * LOOP_FRAMES + [frame(1)] + [frame(0)] * (LOOP_FRAMES - 1)
    assert noticed_at(frames, [True] * len(frames)) is None


@given(seed=st.integers(0))
@settings(max_examples=25, deadline=None)
def test_speech_never_triggers(seed: int) -> None:
    """25 s of random frames, all audible, are never taken for a loop."""
    source = random.Random(seed)
    frames = [tuple(source.randrange(CODEBOOK_SIZE) for _ in range(7)) for _ in range(293)]
    assert noticed_at(frames, [True] * len(frames)) is None


@given(stream=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60))
@settings(max_examples=200, deadline=None)
def test_detector_is_its_definition(stream: list[tuple[int, bool]]) -> None:
    """On any stream: a loop is `limit` audible frames that equal those one same period before."""
    limit, longest = 4, 5
    detector = LoopDetector(limit_frames=limit, max_period=longest)
    said = [detector.push(frame(n), audible=heard) for n, heard in stream]

    def repeated(end: int, period: int) -> int:
        """Audible frames of the longest run up to `end` that repeats with `period`."""
        count = 0
        while end >= period and stream[end][0] == stream[end - period][0]:
            count += stream[end][1]
            end -= 1
        return count

    expected = [
        stream[end][1] and any(repeated(end, p) >= limit for p in range(1, longest + 1))
        for end in range(len(stream))
    ]
    assert said == expected
