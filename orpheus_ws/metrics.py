"""Every instrument.

Rule: a metric is defined and observed here and nowhere else. The histograms of an utterance are filled by
`observe` from its `Trace`, at the first byte, at the end of each segment and at the terminal message;
counters and gauges are live, so that what hangs shows while it hangs. Labels carry neither user text nor
ids. Durations are in seconds. The clock of an utterance starts when the message arrives that completes its
first segment.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Final, Literal, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from orpheus_ws.fast_metrics import CallbackCounter, FastCounter, FastHistogram
from orpheus_ws.trace import NATIVE, Trace, clock

LATENCY_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 2, 5,
)  # fmt: skip
_GAP_BUCKETS: Final = (0.01, 0.025, 0.05, 0.085, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)
_FACTOR_BUCKETS: Final = (0.5, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, 30, 100)
_STEP_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
_STREAM_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

WAITING_SECONDS: Final = 1.0
"""What has waited longer than this, for its first audio or for the engine, shows in a gauge."""

_LIVE_STATES: Final = ("open", "queued", "speaking", "starved")
"""Names of `context.State`, which this module is below."""
_OUTCOMES: Final = ("done", "cancelled", "failed", "disconnected")
_REFUSALS: Final = (
    "full", "draining", "dead", "busy", "auth", "origin", "path", "request", "handshake", "key_limit",
)  # fmt: skip
_LIMITS: Final = ("sockets", "contexts", "text")
_RELOADED: Final = ("keys", "certificate")
_CLOSES: Final = ("1000", "1001", "1006", "1008", "1009", "1011", "1012")
"""Label values that are there from the start, at 0. The first increase of a counter that appears
with it is none to Prometheus, and an alert would miss it."""


class Moment(Enum):
    """When a trace is observed."""

    FIRST_BYTE = auto()
    SEGMENT = auto()
    TERMINAL = auto()


class Statistics(Protocol):
    """What an engine says of itself, by field; each becomes a gauge."""

    def _asdict(self) -> dict[str, float | None]: ...


class Metrics:
    """All instruments, registered on `registry`; those of `surfaces` show from the start."""

    def __init__(self, registry: CollectorRegistry, *, surfaces: Iterable[str] = (NATIVE,)) -> None:
        self.registry = registry
        self._waiting: set[Trace] = set()
        self._generating: set[Trace] = set()
        self._draining_since: float | None = None
        shown = tuple(surfaces)
        self._latencies(shown)
        self._distributions()
        self._speech()
        self._endings(shown)
        self._files()
        self._gauges()

    def _latencies(self, surfaces: tuple[str, ...]) -> None:
        def latency(name: str, text: str) -> Histogram:
            histogram = Histogram(
                f"orpheus_{name}_seconds",
                text,
                labelnames=("surface",),
                buckets=LATENCY_BUCKETS,
                registry=self.registry,
            )
            for surface in surfaces:
                histogram.labels(surface)
            return histogram

        self.time_to_first_byte = latency("time_to_first_byte", "From t0 to the first PCM sent")
        self.time_to_first_audio = latency(
            "time_to_first_audio", "From t0 to the first audible sample sent"
        )
        self.time_to_first_sentence = latency(
            "time_to_first_sentence", "From t0 to the last sample of the first segment sent"
        )
        self.queue = latency("queue", "From t0 to the context's turn")
        self.engine_first_token = latency(
            "engine_first_token", "From the turn to the first token id"
        )
        self.codec_wait = latency("codec_wait", "From the first whole frame to the first samples")
        self.cancel = latency("cancel", "From receiving `cancel` to the engine's slot being free")

    def _distributions(self) -> None:
        def fast_histogram(name: str, text: str, buckets: tuple[float, ...]) -> FastHistogram:
            return FastHistogram(f"orpheus_{name}", text, buckets, self.registry)

        self.chunk_gap = fast_histogram(
            "chunk_gap_seconds", "Time between consecutive chunks of a segment", _GAP_BUCKETS
        )
        self.real_time_factor = fast_histogram(
            "real_time_factor",
            "Audio seconds over wall seconds of generating them, per segment",
            _FACTOR_BUCKETS,
        )
        self.codec_batch_streams = fast_histogram(
            "codec_batch_streams", "Streams in one codec step", _STREAM_BUCKETS
        )
        self.codec_step = fast_histogram(
            "codec_step_seconds", "Time that a codec step takes", _STEP_BUCKETS
        )
        self.loop_late = fast_histogram(
            "event_loop_late_seconds",
            "By how much the event loop is late, ten times a second",
            _STEP_BUCKETS,
        )

    def _counter(self, name: str, text: str, **labels: tuple[str, ...]) -> Counter:
        made = Counter(f"orpheus_{name}", text, labelnames=labels, registry=self.registry)
        if labels:
            for values in itertools.product(*labels.values()):
                made.labels(*values)
        return made

    def _counter_of(self, name: str, text: str, *labels: str) -> Counter:
        """One whose labels' values are known later."""
        return Counter(f"orpheus_{name}", text, labelnames=labels, registry=self.registry)

    def _speech(self) -> None:
        """Counters of what is generated and heard."""

        def fast_counter(name: str, text: str) -> FastCounter:
            return FastCounter(f"orpheus_{name}", text, self.registry)

        self.tokens = fast_counter("tokens", "Token ids received from the engine")
        self.invalid_tokens = fast_counter("invalid_tokens", "Ids out of range or out of turn")
        self.frames = fast_counter("frames", "Whole frames of seven codes")
        self.audio_seconds = fast_counter("audio_seconds", "Seconds of audio sent")
        self.orphaned_seconds = self._counter(
            "orphaned_audio_seconds",
            "Seconds of audio generated and never heard or read: cancelled or disconnected",
        )
        self.underruns = self._counter("underruns", "Starvations of the virtual player")
        self.underrun_seconds = self._counter(
            "underrun_seconds", "Seconds for which the virtual player starved"
        )

    def _endings(self, surfaces: tuple[str, ...]) -> None:
        """Counters of how contexts, handshakes and sockets end."""
        self.contexts_ended = self._counter(
            "contexts",
            f"Contexts ended, by outcome: {', '.join(_OUTCOMES)}",
            outcome=_OUTCOMES,
            surface=surfaces,
        )
        self.turns_missed = self._counter(
            "turns_missed", "Contexts refused because no slot came free in time"
        )
        self.handshakes_refused = self._counter(
            "handshakes_refused",
            f"Upgrades and requests refused: {', '.join(_REFUSALS)}",
            reason=_REFUSALS,
        )
        self.socket_closes = self._counter(
            "socket_closes",
            "Sockets closed, by the code of who closed first; 1006 was lost",
            code=_CLOSES,
        )
        # Names of keys are the operator's own; what a client calls itself is never a label.
        self.key_limited = self._counter_of(
            "key_limited", f"Refused for a limit of the key: {', '.join(_LIMITS)}", "key", "limit"
        )
        self.key_characters = self._counter_of(
            "key_characters", "Characters of text taken with the key", "key"
        )

    def _files(self) -> None:
        """What is read again while serving."""
        self.reloads = self._counter(
            "reloads",
            f"Files read again while serving: {', '.join(_RELOADED)}",
            what=_RELOADED,
            outcome=("done", "failed"),
        )
        self._reload_failed = Gauge(
            "orpheus_reload_failed",
            "1 while files that have changed cannot be read, and what was read before stays in use: "
            + ", ".join(_RELOADED),
            labelnames=("what",),
            registry=self.registry,
        )
        for what in _RELOADED:
            self._reload_failed.labels(what)
        self.certificate_ends = Gauge(
            "orpheus_certificate_expires_timestamp_seconds",
            "Unix time from which clients refuse the certificate; NaN without one",
            registry=self.registry,
        )
        self.certificate_ends.set(math.nan)

    def _gauges(self) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"orpheus_{name}", text, labelnames=labels, registry=self.registry)

        self.sockets = gauge("sockets", "Open sockets and requests that are being answered")
        self.sockets_admitted = gauge("sockets_admitted", "Sockets and requests admitted at most")
        self.capacity = gauge("capacity", "Streams spoken at once at most: slots of the engine")
        self._capacity_source = gauge(
            "capacity_source",
            "1 for where the capacity comes from: measured, simulated, override, uncalibrated, "
            "configured, default",
            "source",
        )
        gauge(
            "draining_seconds", "How long the server has been draining; 0 while it admits sockets"
        ).set_function(
            lambda: 0.0 if self._draining_since is None else clock() - self._draining_since
        )
        self.drain_limit = gauge(
            "drain_limit_seconds", "How long a drain may take; then open contexts are cut off"
        )
        # Not `orpheus_contexts`: that family is the counter's, and one name cannot have two types.
        self.live_contexts = gauge(
            "live_contexts",
            "Contexts before their terminal message, by state: " + ", ".join(_LIVE_STATES),
            "state",
        )
        for state in _LIVE_STATES:
            self.live_contexts.labels(state)
        gauge(
            "contexts_waiting_over_1s", "Contexts ready for over 1 s without a first byte"
        ).set_function(lambda: _older(self._waiting, "ready_at"))
        gauge(
            "segments_stalled_over_1s", "Segments whose engine has said nothing for over 1 s"
        ).set_function(lambda: _older(self._generating, "heard_at"))

    def reloaded(self, what: str, *, done: bool) -> None:
        """Files have been read again, or could not be."""
        self.reloads.labels(what, "done" if done else "failed").inc()
        self._reload_failed.labels(what).set(not done)

    def set_capacity(self, streams: int, source: str) -> None:
        """Say how many streams there are, and how that is known."""
        self.capacity.set(streams)
        self._capacity_source.labels(source).set(1)

    def show_keys(self, names: Iterable[str]) -> None:
        """Have the counters of these keys show, at 0 unless they do already."""
        for name in names:
            self.key_characters.labels(name)
            for limit in _LIMITS:
                self.key_limited.labels(name, limit)

    def watch_turns(self, taken: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Expose who has a slot and who waits for one."""
        for name, text, read in (
            ("slots_taken", "Contexts that have a slot of the engine", taken),
            ("contexts_awaiting_turn", "Contexts that wait for a slot", waiting),
        ):
            Gauge(f"orpheus_{name}", text, registry=self.registry).set_function(read)

    def watch_parts(self, **alive: Callable[[], bool]) -> None:
        """Expose which parts can still answer."""
        gauge = Gauge(
            "orpheus_alive",
            "1, or 0 once this part can never answer again: " + ", ".join(alive),
            labelnames=("part",),
            registry=self.registry,
        )
        for part, read in alive.items():
            gauge.labels(part).set_function(read)

    def watch_process(self, lines_dropped: Callable[[], float]) -> None:
        """Expose memory, processor time, descriptors and start of this process, where Linux tells."""
        ProcessCollector(registry=self.registry)
        text = "Lines of the log that could not be written: nobody read them, or the disk was full"
        CallbackCounter("orpheus_log_lines_dropped", text, lines_dropped, self.registry)

    def watch_loop(self, stopped: Callable[[], float], tasks: Callable[[], float]) -> None:
        """Expose whether the event loop turns, and how many tasks it has."""
        for name, text, read in (
            (
                "event_loop_stopped_seconds",
                "How long the event loop has stood still by now",
                stopped,
            ),
            ("tasks", "Tasks of the event loop", tasks),
        ):
            Gauge(f"orpheus_{name}", text, registry=self.registry).set_function(read)

    def watch_codec(self, streams: Callable[[], float], busy_seconds: Callable[[], float]) -> None:
        """Expose what the codec is doing right now."""
        for name, text, read in (
            ("streams", "Segments that hold a slot of the codec", streams),
            ("busy_seconds", "How long the codec step under way has taken so far", busy_seconds),
        ):
            gauge = Gauge(f"orpheus_codec_{name}", text, registry=self.registry)
            gauge.set_function(read)

    def watch_engine(self, statistics: Callable[[], Statistics]) -> None:
        """Expose what the engine knows of itself by now as `orpheus_engine_<field>`."""
        for field, value in statistics()._asdict().items():
            if value is None:
                continue
            gauge = Gauge(f"orpheus_engine_{field}", f"Engine: {field}", registry=self.registry)
            gauge.set_function(_reader(statistics, field))

    def drains(self) -> None:
        """Nobody is admitted from now on."""
        self._draining_since = clock()

    def ready(self, trace: Trace) -> None:
        """The first segment of a context is complete: it now waits for audio."""
        self._waiting.add(trace)

    def generating(self, trace: Trace) -> None:
        """The engine has been given a segment and owes its ids."""
        trace.heard_at = clock()
        self._generating.add(trace)

    def generated(self, trace: Trace) -> None:
        """The engine owes nothing for this trace any more."""
        self._generating.discard(trace)

    def observe(self, trace: Trace, moment: Moment) -> None:
        """Fill the histograms and counters from what `trace` has at this moment."""
        surface = trace.surface
        match moment:
            case Moment.FIRST_BYTE:
                self._waiting.discard(trace)
                _put(self.time_to_first_byte, surface, trace.since_ready(trace.first_byte_at))
                _put(self.queue, surface, trace.since_ready(trace.turn_at))
                waited = _between(trace.turn_at, trace.first_token_at)
                _put(self.engine_first_token, surface, waited)
                waited = _between(trace.first_frame_at, trace.first_samples_at)
                _put(self.codec_wait, surface, waited)
            case Moment.SEGMENT:
                if trace.segments == 1:
                    spoken = trace.since_ready(trace.first_sentence_at)
                    _put(self.time_to_first_sentence, surface, spoken)
                if trace.segment_wall_seconds > 0:
                    factor = trace.segment_audio_seconds / trace.segment_wall_seconds
                    self.real_time_factor.observe(factor)
            case Moment.TERMINAL:
                self._waiting.discard(trace)
                _put(self.time_to_first_audio, surface, trace.time_to_first_audio)
                self.contexts_ended.labels(trace.outcome, surface).inc()

    def cancelled(self, trace: Trace, seconds: float) -> None:
        """So long after it was cancelled, a context that was being spoken has freed its slot."""
        self.cancel.labels(trace.surface).observe(seconds)

    def moved(self, old: Enum | None, new: Enum | None) -> None:
        """A context changed its state."""
        if old is not None:
            self.live_contexts.labels(old.name.lower()).dec()
        if new is not None:
            self.live_contexts.labels(new.name.lower()).inc()

    def codec_stepped(self, streams: int, seconds: float) -> None:
        """One codec step is over."""
        self.codec_batch_streams.observe(streams)
        self.codec_step.observe(seconds)


def _older(traces: set[Trace], since: Literal["ready_at", "heard_at"]) -> float:
    """How many of the traces have been waiting for too long since that moment."""
    # Called on the thread that serves scrapes; list() copies the set in one piece.
    deadline = clock() - WAITING_SECONDS
    moments = [getattr(trace, since) for trace in list(traces)]
    return float(sum(moment is not None and moment < deadline for moment in moments))


def _reader(statistics: Callable[[], Statistics], field: str) -> Callable[[], float]:
    def read() -> float:
        value = statistics()._asdict()[field]
        return math.nan if value is None else value

    return read


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)


def _put(histogram: Histogram, surface: str, value: float | None) -> None:
    if value is not None:
        histogram.labels(surface).observe(value)
