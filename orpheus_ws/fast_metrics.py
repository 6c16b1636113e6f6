"""Counters and histograms that cost an addition.

Rule: one thread writes, the event loop's; scrapes read on another. prometheus_client's own take a
lock for every change, which at a dozen frames a second for each of hundreds of streams is a
measurable part of a core. Everything that is not counted for every frame uses the library's.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class FastCounter(Collector):
    """A counter."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self.value = 0.0
        """May be added to where even a call is too much."""
        self._name = name
        self._documentation = documentation
        registry.register(self)

    def inc(self, amount: float = 1.0) -> None:
        """Count `amount` more."""
        self.value += amount

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Called by scrapes."""
        yield CounterMetricFamily(self._name, self._documentation, value=self.value)

    describe = collect


class CallbackCounter(Collector):
    """A counter that something else counts."""

    def __init__(
        self,
        name: str,
        documentation: str,
        read: Callable[[], float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._read = read
        registry.register(self)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Called by scrapes."""
        yield CounterMetricFamily(self._name, self._documentation, value=self._read())

    describe = collect


class FastHistogram(Collector):
    """A histogram; `buckets` are upper bounds, ascending, without infinity."""

    def __init__(
        self, name: str, documentation: str, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._buckets = tuple(map(float, buckets))
        self._counts = [0] * (len(self._buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._buckets, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Called by scrapes."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*self._buckets, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        yield HistogramMetricFamily(
            self._name, self._documentation, buckets=buckets, sum_value=self._sum
        )

    describe = collect
