"""Fast metrics: what scrapes read is what the library's own instruments would say."""

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from orpheus_ws.fast_metrics import FastCounter, FastHistogram

BUCKETS = (0.01, 0.5, 1, 2.5)
VALUES = st.one_of(st.floats(0, 5), st.sampled_from(BUCKETS))


def exposition(registry: CollectorRegistry) -> list[str]:
    """Lines of a scrape, without the times of creation."""
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


def both(values: Iterable[float]) -> tuple[list[str], list[str]]:
    """The same values counted by ours and by the library's instruments."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast_counter = FastCounter("t", "Text.", ours)
    fast_histogram = FastHistogram("s_seconds", "Text.", BUCKETS, ours)
    counter = Counter("t", "Text.", registry=theirs)
    histogram = Histogram("s_seconds", "Text.", buckets=BUCKETS, registry=theirs)
    for value in values:
        fast_counter.inc(value)
        counter.inc(value)
        fast_histogram.observe(value)
        histogram.observe(value)
    return exposition(ours), exposition(theirs)


@given(values=st.lists(VALUES, max_size=30))
@settings(deadline=None)
def test_scrapes_are_the_same(values: list[float]) -> None:
    """Whatever is counted, on a bucket's bound or between, the text of a scrape is the library's."""
    ours, theirs = both(values)
    assert ours == theirs


def test_names_are_taken() -> None:
    """Two instruments of one name cannot be registered, just as with the library's."""
    registry = CollectorRegistry()
    FastCounter("t", "Text.", registry)
    try:
        Counter("t", "Text.", registry=registry)
    except ValueError:
        return
    raise AssertionError("the second instrument was accepted")
