"""Metrics of the server as a whole: its parts, its drain, its process, and counters at zero."""

import pytest
from prometheus_client import CollectorRegistry

from orpheus_ws import metrics
from orpheus_ws.metrics import Metrics


def value(instruments: Metrics, name: str, **labels: str) -> float:
    """A sample's value; it must be there."""
    found = instruments.registry.get_sample_value(name, labels)
    assert found is not None, name
    return found


def test_parts_are_read_live() -> None:
    """Whether a part can still answer is asked of it at every scrape."""
    alive = {"engine": True, "codec": True}
    instruments = Metrics(CollectorRegistry())
    instruments.watch_parts(engine=lambda: alive["engine"], codec=lambda: alive["codec"])
    assert value(instruments, "orpheus_alive", part="engine") == 1
    alive["engine"] = False
    assert value(instruments, "orpheus_alive", part="engine") == 0
    assert value(instruments, "orpheus_alive", part="codec") == 1


def test_draining(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain is timed from its beginning; before it the time is 0."""
    now = 1000.0
    monkeypatch.setattr(metrics, "clock", lambda: now)
    instruments = Metrics(CollectorRegistry())
    now += 5.0
    assert value(instruments, "orpheus_draining_seconds") == 0
    instruments.drains()
    now += 7.5
    assert value(instruments, "orpheus_draining_seconds") == 7.5


@pytest.mark.parametrize(
    ("name", "label", "values"),
    [
        ("handshakes_refused", "reason", ("full", "dead", "draining", "auth", "origin", "path")),
        ("socket_closes", "code", ("1000", "1001", "1006", "1008", "1011", "1012")),
    ],
)
def test_counters_start_at_zero(name: str, label: str, values: tuple[str, ...]) -> None:
    """What an alert waits for is there before it first happens, so that the first one is seen."""
    instruments = Metrics(CollectorRegistry())
    for each in values:
        assert value(instruments, f"orpheus_{name}_total", **{label: each}) == 0


def test_outcomes_start_at_zero() -> None:
    """So do the ways in which a context ends, on every surface."""
    instruments = Metrics(CollectorRegistry(), surfaces=("native", "other"))
    for outcome in ("done", "cancelled", "failed", "disconnected"):
        for surface in ("native", "other"):
            ended = value(instruments, "orpheus_contexts_total", outcome=outcome, surface=surface)
            assert ended == 0


def test_the_process() -> None:
    """Memory, descriptors and start of the process are there, as Prometheus's client names them."""
    instruments = Metrics(CollectorRegistry())
    instruments.watch_process(lambda: 0.0)
    for name in ("resident_memory_bytes", "open_fds", "max_fds", "start_time_seconds"):
        assert value(instruments, f"process_{name}") > 0
