"""The search for the largest number of streams, on probes that are functions."""

import random

from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws.calibration.search import FINENESS, confirmed, largest

NUMBERS = st.integers(1, 2000)


def close(one: int, other: int) -> bool:
    """Whether they are the same to the fineness of a search."""
    return abs(one - other) < max(1.0, FINENESS * other) + 1e-9


@given(limit=st.integers(0, 3000), start=NUMBERS, most=NUMBERS)
def test_the_limit_is_found(limit: int, start: int, most: int) -> None:
    """Where more streams are harder, the largest number that holds is found, to within 1 %."""
    found = largest(lambda streams: streams <= limit, start=start, most=most)
    best = min(limit, most)
    assert found <= best
    assert close(found, best)


@given(limit=st.integers(0, 100), start=NUMBERS, most=st.integers(1, 100))
def test_small_limits_are_found_exactly(limit: int, start: int, most: int) -> None:
    """Up to 100 streams one more or less is one more or less."""
    assert largest(lambda streams: streams <= limit, start=start, most=most) == min(limit, most)


@given(limit=st.integers(0, 3000), start=NUMBERS, most=NUMBERS)
def test_few_probes(limit: int, start: int, most: int) -> None:
    """No number is probed twice, none is beyond the batch, and there are about as many as it has bits, twice."""
    probed: list[int] = []

    def holds(streams: int) -> bool:
        probed.append(streams)
        return streams <= limit

    largest(holds, start=start, most=most)
    assert len(set(probed)) == len(probed) <= 2 * most.bit_length() + 1
    assert all(1 <= streams <= most for streams in probed)
    assert probed[0] == min(start, most)


@given(limit=st.integers(1, 1000), width=st.floats(0, 0.3), seed=st.integers(0, 2**32))
def test_a_noisy_machine(limit: int, width: float, seed: int) -> None:
    """Where near the limit a probe may say either, what is found is near the limit, and it has held."""
    chance, held = random.Random(seed), set()

    def holds(streams: int) -> bool:
        distance = (streams - limit) / limit
        held_now = distance < (0 if width == 0 else chance.uniform(-width, width))
        if held_now:
            held.add(streams)
        return held_now

    found = largest(holds, start=8, most=2000)
    assert found == 0 or found in held
    assert found <= limit * (1 + width)
    if found == 0:
        assert limit * (1 - width) <= 1
    else:
        assert found >= limit * (1 - width) * (1 - FINENESS) - 2


@given(found=NUMBERS, limit=st.integers(0, 2000))
def test_what_is_not_confirmed_goes_down(found: int, limit: int) -> None:
    """The result was confirmed, is not above what was found, and each number had one chance."""
    tried: list[int] = []

    def confirm(streams: int) -> bool:
        tried.append(streams)
        return streams <= limit

    streams = confirmed(confirm, found)
    assert tried == sorted(set(tried), reverse=True)
    assert tried[0] == found
    if limit >= 1:
        assert streams == tried[-1] <= limit
    else:
        assert (streams, tried[-1]) == (0, 1)
    assert len(tried) <= found.bit_length() + 8
    # Two small steps come before any larger one.
    if found - 2 * max(1, round(0.02 * found)) <= limit < found:
        assert limit - streams <= max(1, round(0.02 * found))


@given(found=st.integers(1, 60))
def test_one_less_is_one_less(found: int) -> None:
    """With few streams the next number down is tried, and the one below it."""
    assert confirmed(lambda streams: streams < found, found) == found - 1
    assert confirmed(lambda streams: streams < found - 1, found) == max(0, found - 2)
