"""The token bucket: what it lets happen in any time."""

from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws.server.bucket import Bucket

times = st.lists(st.floats(0, 100), min_size=1, max_size=200).map(sorted)
rates = st.floats(0.5, 1000)
bursts = st.floats(1, 1000)


@given(rates, bursts, times)
def test_no_more_than_the_rate(rate: float, burst: float, asked: list[float]) -> None:
    """In any span of time no more is taken than the burst and the rate make together."""
    bucket = Bucket(rate, burst)
    taken = [at for at in asked if bucket.take(at)]
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            most = burst + rate * (taken[last] - taken[first])
            assert last - first + 1 <= most * (1 + 1e-9) + 1e-6


@given(rates, bursts)
def test_the_burst_is_there_at_once(rate: float, burst: float) -> None:
    """Whole tokens up to the burst are taken without waiting; one more is not."""
    bucket = Bucket(rate, burst)
    assert sum(bucket.take(0.0) for _ in range(int(burst) + 1)) == int(burst)


@given(rates, bursts, st.floats(0, 5000))
def test_what_is_owed(rate: float, burst: float, tokens: float) -> None:
    """Who waits for as long as he is told owes nothing any more."""
    bucket = Bucket(rate, burst)
    wait = bucket.spend(tokens, 0.0)
    assert (wait > 0) == (tokens > burst)
    assert bucket.spend(0, wait * (1 + 1e-9) + 1e-9) <= 1e-6
