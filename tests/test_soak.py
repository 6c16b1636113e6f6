"""The arithmetic of a soak: what counts as growth, and as lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.soak.listeners import Heard
from tests.soak.server import Held
from tests.soak.verdict import MOST_GROWTH_BYTES, memory, slope


@given(st.integers(-1000, 1000), st.sets(st.integers(0, 99), max_size=20))
def test_the_slope_is_robust(rate: int, outliers: set[int]) -> None:
    """A fifth of the samples may be anything, and the slope is that of the others."""
    points = [(float(x), 1e9 if x in outliers else float(rate * x)) for x in range(100)]
    assert slope(points) == pytest.approx(rate, abs=100 if outliers else 1e-6)


@pytest.mark.parametrize("seconds", [60, 1800, 86_400])
@pytest.mark.parametrize("rate", [0, 1000, 300_000])
def test_growth(seconds: int, rate: int) -> None:
    """Only the second half counts, however long it is."""
    step = max(1, seconds // 500)
    samples = [
        Held(float(x), {}, 10**8 + 50_000_000 * (x > 5 * step) + rate * x, 0.0)
        for x in range(0, seconds, step)
    ]
    grown = memory(samples)
    assert grown.bytes_per_second == pytest.approx(rate)
    assert grown.growth_bytes == pytest.approx(rate * grown.seconds)
    assert (grown.growth_bytes > MOST_GROWTH_BYTES) == (rate * seconds / 2 > MOST_GROWTH_BYTES)


@pytest.mark.parametrize(
    ("heard", "lost"),
    [(b"aabbcc", 0), (b"aabb", 1), (b"", 3), (b"aabbccdd", 1), (b"aaxxcc", 2), (b"aabbc", 1)],
)
def test_what_is_lost(heard: bytes, lost: int) -> None:
    """Whatever differs counts, from the first sample that does; a half one is one."""
    listener = Heard()
    listener.compare(heard, b"aabbcc")
    assert (listener.lost_samples, listener.whole) == (lost, lost == 0)
