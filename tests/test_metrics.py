"""Metrics: the names, types and buckets of the design, filled with exact values at three moments."""

import itertools
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from orpheus_ws import metrics
from orpheus_ws.context import State
from orpheus_ws.metrics import Metrics, Moment
from orpheus_ws.trace import Trace

LATENCY_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 2, 5,
)  # fmt: skip
LATENCIES = (
    "orpheus_time_to_first_byte_seconds",
    "orpheus_time_to_first_audio_seconds",
    "orpheus_time_to_first_sentence_seconds",
    "orpheus_queue_seconds",
    "orpheus_engine_first_token_seconds",
    "orpheus_codec_wait_seconds",
    "orpheus_cancel_seconds",
)
# The page's table. One name differs from it: the gauge of live contexts is not `orpheus_contexts`,
# which Prometheus' client refuses beside the counter `orpheus_contexts_total`.
TYPES = dict.fromkeys(LATENCIES, "histogram")
for kind, words in {
    "gauge": (
        "capacity_source sockets_admitted slots_taken contexts_awaiting_turn sockets "
        "live_contexts capacity alive draining_seconds drain_limit_seconds "
        "contexts_waiting_over_1s segments_stalled_over_1s codec_streams codec_busy_seconds "
        "reload_failed certificate_expires_timestamp_seconds"
    ),
    "histogram": (
        "chunk_gap_seconds real_time_factor codec_batch_streams codec_step_seconds "
        "event_loop_late_seconds"
    ),
    "counter": (
        "turns_missed_total underruns_total underrun_seconds_total tokens_total "
        "invalid_tokens_total frames_total audio_seconds_total handshakes_refused_total "
        "socket_closes_total key_limited_total key_characters_total reloads_total contexts_total "
        "orphaned_audio_seconds_total"
    ),
}.items():
    TYPES |= {f"orpheus_{name}": kind for name in words.split()}
LABELS = {
    **{name: {"surface"} for name in LATENCIES},
    "orpheus_live_contexts": {"state"},
    "orpheus_alive": {"part"},
    "orpheus_handshakes_refused_total": {"reason"},
    "orpheus_socket_closes_total": {"code"},
    "orpheus_key_limited_total": {"key", "limit"},
    "orpheus_key_characters_total": {"key"},
    "orpheus_reloads_total": {"what", "outcome"},
    "orpheus_reload_failed": {"what"},
    "orpheus_contexts_total": {"outcome", "surface"},
    "orpheus_capacity_source": {"source"},
}


class Statistics(NamedTuple):
    """What an engine might say of itself."""

    active: int = 3
    kv_blocks: int = 40


class Stage:
    """Instruments on a registry of their own, and a clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.registry = CollectorRegistry()
        monkeypatch.setattr(metrics, "clock", lambda: self.now)
        self.metrics = Metrics(self.registry)

    def value(self, name: str, **labels: str) -> float:
        """A sample's value; it must be there."""
        value = self.registry.get_sample_value(name, labels)
        assert value is not None, name
        return value

    def histogram(self, name: str) -> tuple[float, float]:
        """Count and sum of a histogram."""
        labels = {"surface": "native"} if name in LATENCIES else {}
        return self.value(f"{name}_count", **labels), self.value(f"{name}_sum", **labels)

    def filled(self) -> dict[str, float]:
        """The sums of the histograms that were filled, each of which was filled once."""
        found = {}
        for name, kind in TYPES.items():
            if kind == "histogram" and (count := self.histogram(name)[0]):
                assert count == 1
                found[name] = self.histogram(name)[1]
        return found

    def fill(self) -> None:
        """Touch everything that has a label, so that all of it is exposed."""
        self.metrics.moved(None, State.OPEN)
        self.metrics.handshakes_refused.labels("full").inc()
        self.metrics.socket_closes.labels("1000").inc()
        self.metrics.show_keys(["alice"])
        self.metrics.observe(spoken(), Moment.TERMINAL)
        self.metrics.watch_engine(Statistics)
        self.metrics.watch_codec(lambda: 0.0, lambda: 0.0)
        self.metrics.watch_turns(lambda: 0.0, lambda: 0.0)
        self.metrics.set_capacity(1, "default")
        self.metrics.watch_parts(engine=lambda: True)

    def exposition(self) -> list[Metric]:
        """What a scrape gets, as Prometheus reads it."""
        return list(text_string_to_metric_families(generate_latest(self.registry).decode()))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A fresh one for each test."""
    return Stage(monkeypatch)


def spoken() -> Trace:
    """An utterance with every moment known; differences are exact in binary."""
    trace = Trace()
    trace.opened_at = 900.0  # a model may write for as long as it likes
    trace.ready_at = 1000.0
    trace.turn_at = 1000.25
    trace.first_token_at = 1000.375
    trace.first_frame_at = 1000.5
    trace.first_samples_at = 1000.625
    trace.first_byte_at = 1001.0
    trace.first_audio_at = 1001.5
    trace.first_sentence_at = 1003.0
    trace.segments = 1
    trace.segment_audio_seconds = 3.0
    trace.segment_wall_seconds = 2.0
    trace.outcome = "done"
    return trace


# The three moments --------------------------------------------------------------------------------


def test_first_byte(stage: Stage) -> None:
    """At the first byte: time to it and its three parts."""
    stage.metrics.observe(spoken(), Moment.FIRST_BYTE)
    assert stage.filled() == {
        "orpheus_time_to_first_byte_seconds": 1.0,
        "orpheus_queue_seconds": 0.25,
        "orpheus_engine_first_token_seconds": 0.125,
        "orpheus_codec_wait_seconds": 0.125,
    }


def test_first_segment(stage: Stage) -> None:
    """At the end of the first segment: time to its last sample and its real-time factor."""
    stage.metrics.observe(spoken(), Moment.SEGMENT)
    assert stage.filled() == {
        "orpheus_time_to_first_sentence_seconds": 2.0 + 1.0,
        "orpheus_real_time_factor": 1.5,
    }


def test_later_segments(stage: Stage) -> None:
    """A later segment counts for the real-time factor only, with its own seconds."""
    trace = spoken()
    trace.segments = 2
    trace.audio_seconds, trace.wall_seconds = 100.0, 1.0  # of the whole context: not asked for
    stage.metrics.observe(trace, Moment.SEGMENT)
    assert stage.filled() == {"orpheus_real_time_factor": 1.5}


def test_terminal(stage: Stage) -> None:
    """At the terminal message: time to first audio, and the outcome is counted."""
    stage.metrics.observe(spoken(), Moment.TERMINAL)
    assert stage.filled() == {"orpheus_time_to_first_audio_seconds": 1.5}
    assert stage.value("orpheus_contexts_total", outcome="done", surface="native") == 1


def test_whole_utterance_fills_each_latency_once(stage: Stage) -> None:
    """Two segments and an end leave one observation of each latency."""
    trace = spoken()
    stage.metrics.ready(trace)
    stage.metrics.observe(trace, Moment.FIRST_BYTE)
    stage.metrics.observe(trace, Moment.SEGMENT)
    trace.segments = 2
    stage.metrics.observe(trace, Moment.SEGMENT)
    stage.metrics.observe(trace, Moment.TERMINAL)
    counts = {name: stage.histogram(name)[0] for name in LATENCIES}
    assert counts == {**dict.fromkeys(LATENCIES, 1.0), "orpheus_cancel_seconds": 0.0}
    assert stage.histogram("orpheus_real_time_factor") == (2, 3.0)


@pytest.mark.parametrize("moment", Moment)
def test_unknown_times_fill_nothing(stage: Stage, moment: Moment) -> None:
    """What did not happen is not observed as zero; a context cancelled early has its outcome."""
    trace = Trace()
    trace.outcome = "cancelled"
    stage.metrics.observe(trace, moment)
    assert stage.filled() == {}
    if moment is Moment.TERMINAL:
        assert stage.value("orpheus_contexts_total", outcome="cancelled", surface="native") == 1


def test_factor_of_a_trace() -> None:
    """The real-time factor of a context is of all its segments, and unknown before any."""
    trace = Trace()
    assert trace.real_time_factor is None
    trace.audio_seconds, trace.wall_seconds = 6.0, 4.0
    assert trace.real_time_factor == 1.5


def test_codec_step(stage: Stage) -> None:
    """A codec step tells how many streams it served and how long it took."""
    stage.metrics.codec_stepped(8, 0.25)
    assert stage.filled() == {"orpheus_codec_batch_streams": 8, "orpheus_codec_step_seconds": 0.25}


# Live gauges --------------------------------------------------------------------------------------


def test_waiting_shows_what_hangs(stage: Stage) -> None:
    """A context that waits over 1 s for its first byte shows while it hangs, and not after."""
    traces = [Trace(), Trace()]
    for trace in traces:
        trace.ready_at = stage.now
        stage.metrics.ready(trace)
    assert stage.value("orpheus_contexts_waiting_over_1s") == 0
    stage.now += 1.0
    assert stage.value("orpheus_contexts_waiting_over_1s") == 0
    stage.now += 0.125
    assert stage.value("orpheus_contexts_waiting_over_1s") == 2
    traces[0].first_byte_at = stage.now
    stage.metrics.observe(traces[0], Moment.FIRST_BYTE)
    assert stage.value("orpheus_contexts_waiting_over_1s") == 1
    stage.now += 3600
    assert stage.value("orpheus_contexts_waiting_over_1s") == 1
    stage.metrics.observe(traces[1], Moment.TERMINAL)
    assert stage.value("orpheus_contexts_waiting_over_1s") == 0


def test_waiting_is_by_context(stage: Stage) -> None:
    """Each context has its own second, and what is spoken in time is never counted."""
    late, quick = Trace(), Trace()
    late.ready_at = stage.now
    stage.metrics.ready(late)
    stage.now += 0.75
    quick.ready_at = stage.now
    stage.metrics.ready(quick)
    stage.now += 0.5
    assert stage.value("orpheus_contexts_waiting_over_1s") == 1
    stage.metrics.observe(quick, Moment.FIRST_BYTE)
    stage.now += 10
    assert stage.value("orpheus_contexts_waiting_over_1s") == 1


def test_stalled_segments_show_while_they_hang(stage: Stage) -> None:
    """A segment whose engine says nothing for over 1 s shows until it speaks again or is over."""
    trace, finished = Trace(), Trace()
    for each in (trace, finished):
        stage.metrics.generating(each)
    stage.metrics.generated(finished)
    stage.now += 1.0
    assert stage.value("orpheus_segments_stalled_over_1s") == 0
    stage.now += 0.125
    assert stage.value("orpheus_segments_stalled_over_1s") == 1
    trace.heard_at = stage.now
    assert stage.value("orpheus_segments_stalled_over_1s") == 0
    stage.now += 3600
    assert stage.value("orpheus_segments_stalled_over_1s") == 1
    stage.metrics.generated(trace)
    assert stage.value("orpheus_segments_stalled_over_1s") == 0


def test_the_codec_is_read_live(stage: Stage) -> None:
    """What the codec is doing is asked of it at every scrape."""
    values = {"streams": 3.0, "busy": 0.25}
    stage.metrics.watch_codec(lambda: values["streams"], lambda: values["busy"])
    assert stage.value("orpheus_codec_streams") == 3
    values["busy"] = 7.5
    assert stage.value("orpheus_codec_busy_seconds") == 7.5


def test_live_contexts(stage: Stage) -> None:
    """Contexts are counted in the state they are in, and not after their end."""

    def live() -> dict[str, float]:
        names = ("open", "queued", "speaking", "starved")
        values = {
            name: stage.registry.get_sample_value("orpheus_live_contexts", {"state": name})
            for name in names
        }
        return {name: value for name, value in values.items() if value}

    moved = stage.metrics.moved
    path: list[Enum | None] = [None, State.OPEN, State.QUEUED, State.SPEAKING, State.STARVED, None]
    moved(None, State.OPEN)
    for old, new in itertools.pairwise(path):
        moved(old, new)
        assert live() == ({"open": 2} if new is State.OPEN else {"open": 1, **named(new)})
    moved(State.OPEN, None)
    assert live() == {}


def named(state: Enum | None) -> dict[str, int]:
    """One context in that state."""
    return {} if state is None else {state.name.lower(): 1}


def test_engine_statistics_are_live(stage: Stage) -> None:
    """Each field of an engine's statistics is a gauge that is read when it is asked for."""
    current = Statistics()
    stage.metrics.watch_engine(lambda: current)
    assert stage.value("orpheus_engine_active") == 3
    assert stage.value("orpheus_engine_kv_blocks") == 40
    current = Statistics(active=0)
    assert stage.value("orpheus_engine_active") == 0


# Exposition ---------------------------------------------------------------------------------------


def samples(families: Iterable[Metric]) -> dict[str, set[str]]:
    """Names of the samples, without the suffixes of histograms, and their labels."""
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            name = family.name if family.type == "histogram" else sample.name
            if not sample.name.endswith("_created"):
                found.setdefault(name, set()).update(set(sample.labels) - {"le"})
    return found


def test_names_and_types(stage: Stage) -> None:
    """Every metric of the design is exposed with its type, and there is none besides."""
    stage.fill()
    types = {}
    for family in stage.exposition():
        if family.name.endswith("_created") or family.name.startswith("orpheus_engine_active"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        types[name] = family.type
    assert types.pop("orpheus_engine_kv_blocks") == "gauge"
    assert types == TYPES


def test_labels(stage: Stage) -> None:
    """No metric has a label besides the surface, or the one that the design gives it."""
    stage.fill()
    found = {name: labels for name, labels in samples(stage.exposition()).items() if labels}
    assert found == LABELS


def test_buckets(stage: Stage) -> None:
    """Latencies have the buckets of the design, which hold the thresholds of the targets."""
    bounds: dict[str, list[float]] = {}
    for family in stage.exposition():
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                bounds.setdefault(family.name, []).append(float(sample.labels["le"]))
    assert {name: tuple(bounds[name]) for name in LATENCIES} == {
        name: (*LATENCY_BUCKETS, float("inf")) for name in LATENCIES
    }
    assert all(edges == sorted(set(edges)) for edges in bounds.values())


@pytest.mark.parametrize(("seconds", "bucket"), [(0.2, "0.2"), (0.2001, "0.25"), (9.0, "+Inf")])
def test_bucket_of_a_value(stage: Stage, seconds: float, bucket: str) -> None:
    """A value counts in the first bucket whose edge is not below it."""
    trace = Trace()
    trace.ready_at, trace.first_byte_at = 0.5, 0.5 + seconds
    stage.metrics.observe(trace, Moment.FIRST_BYTE)
    edges = [*(str(float(edge)) for edge in LATENCY_BUCKETS), "+Inf"]
    counts = [
        stage.value("orpheus_time_to_first_byte_seconds_bucket", surface="native", le=edge)
        for edge in edges
    ]
    assert edges[counts.index(1.0)] == bucket
    assert counts == sorted(counts)


def test_surfaces(stage: Stage) -> None:
    """The label `surface` says which protocol was spoken with whom."""
    trace = spoken()
    trace.surface = "other"
    stage.metrics.observe(trace, Moment.TERMINAL)
    stage.metrics.cancelled(trace, 0.5)
    for name in ("orpheus_time_to_first_audio_seconds_count", "orpheus_cancel_seconds_count"):
        assert stage.value(name, surface="other") == 1
        assert stage.value(name, surface="native") == 0
    assert stage.value("orpheus_contexts_total", outcome="done", surface="other") == 1
