"""Utterances as OpenTelemetry spans, sent by OTLP over HTTP.

Rule: what is exported are times, figures, and names that are ours: the voice, the surface, the outcome,
the wire code of an error. Text, keys, and what clients call their contexts stay here, and so does
`tracestate`, which may hold any text. Spans are made of the times in a `Trace`; the library's own
thread exports them, and drops them when it cannot keep up.

    utterance               from `open` to the terminal message
    ├── queue               from t0 to the context's turn
    └── segment, for each   from the hand-over to the engine until engine and codec are free again

An utterance is a child of what the context's own traceparent names, or else of what the handshake's
does; if both do, it has a link to the latter. A segment that was cancelled ends after its utterance:
the difference is how long cancelling took.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import orpheus_ws
from orpheus_ws.errors import Internal, OrpheusError, PeerGone, StartupError
from orpheus_ws.trace import Trace, clock

FLUSH_SECONDS: Final = 2.0
"""How long the end of the process may wait for what is still to be exported."""

PATH: Final = "/v1/traces"
"""OTLP's path for spans, below the endpoint of a collector."""

FIGURES: Final = (
    "outcome", "segments", "chars", "frames", "sent_ms", "ttfb_ms", "ttfa_ms", "rtf", "trimmed_ms",
    "tokens", "invalid_tokens", "dropped_tokens",
)  # fmt: skip
"""Of `Context.summary`, what an utterance has as attributes `orpheus.NAME`."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()

_log = logging.getLogger("orpheus_ws.tracing")


def open_otel(endpoint: str) -> "OtelTracer":
    """A tracer that exports to a collector. Blocks while it reads files, but connects to nobody.

    All else comes from OpenTelemetry's own variables, which its SDK reads. Raises `StartupError`.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise StartupError("tracing.endpoint must begin with http:// or https://")
    try:
        ours = Resource.create(
            {"service.name": "orpheus-ws", "service.version": orpheus_ws.__version__}
        )
        provider = TracerProvider(
            # What the operator says of this process is worth more.
            resource=ours.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,  # `close` does that, and does not wait for ever
        )
        exporter = OTLPSpanExporter(endpoint.rstrip("/") + PATH)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except Exception as error:
        # Whatever it raises may show a value, and one of them is the collector's key.
        raise StartupError(
            f"OpenTelemetry does not take its configuration ({type(error).__name__}); look at the "
            "variables OTEL_*"
        ) from error
    return OtelTracer(provider)


class OtelTracer:
    """See `Tracer`. Spans go to `provider`, which `close` shuts down."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("orpheus_ws", orpheus_ws.__version__)
        self._live: dict[Trace, _Utterance] = {}

    def opened(self, trace: Trace, voice: str, own: str | None, handshake: str | None) -> None:
        """See `Tracer`. A traceparent that is none is as good as absent, as W3C has it."""
        callers = [caller for caller in (_caller(own), _caller(handshake)) if caller.is_valid]
        parent = Context()
        if callers:
            parent = api.set_span_in_context(api.NonRecordingSpan(callers[0]), parent)
        utterance = _Utterance(self._tracer, trace)
        utterance.span = self._tracer.start_span(
            "utterance",
            parent,
            kind=api.SpanKind.SERVER,
            attributes={"orpheus.voice": voice, "orpheus.surface": trace.surface},
            links=[api.Link(caller) for caller in callers[1:] if caller != callers[0]],
            start_time=utterance.epoch(trace.opened_at or clock()),
        )
        found = utterance.span.get_span_context()
        if found.is_valid:
            trace.trace_id = api.format_trace_id(found.trace_id)
        if utterance.span.is_recording():
            self._live[trace] = utterance

    def segment(self, trace: Trace, chars: int) -> contextlib.AbstractContextManager[None]:
        """See `Tracer`."""
        utterance = self._live.get(trace)
        return contextlib.nullcontext() if utterance is None else _Segment(utterance, chars)

    def ended(self, trace: Trace, figures: Mapping[str, object]) -> None:
        """See `Tracer`."""
        utterance = self._live.pop(trace, None)
        if utterance is not None:
            utterance.end(figures)

    async def close(self) -> None:
        """See `Tracer`. Takes at most `FLUSH_SECONDS`."""
        loop = asyncio.get_running_loop()
        flushed = asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(flushed.set)

        # No thread of the event loop's: the process would wait for it.
        threading.Thread(target=flush, name="tracing-flush", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await flushed.wait()
        except TimeoutError:
            _log.warning("traces were lost", extra={"seconds": FLUSH_SECONDS})


class _Utterance:
    """The span of a context, and what its children need."""

    span: api.Span

    def __init__(self, tracer: api.Tracer, trace: Trace) -> None:
        self.tracer = tracer
        self.trace = trace
        # Read once, so that no correction of the system's clock comes between its times.
        self._clock_to_epoch = time.time_ns() - round(clock() * 1e9)

    def epoch(self, moment: float) -> int:
        """A time of `clock` as nanoseconds since 1970."""
        return self._clock_to_epoch + round(moment * 1e9)

    def child(self, name: str, start: float) -> api.Span:
        """A span below this one, which may have ended."""
        below = api.set_span_in_context(self.span, Context())
        return self.tracer.start_span(name, below, start_time=self.epoch(start))

    def tell(self, span: api.Span, **moments: float | None) -> None:
        """Give `span` those of the events that have happened."""
        for name, moment in moments.items():
            if moment is not None:
                span.add_event(name, timestamp=self.epoch(moment))

    def end(self, figures: Mapping[str, object]) -> None:
        """It has had its terminal message, or its listener has gone."""
        trace, now = self.trace, clock()
        if trace.ready_at is not None:
            queue = self.child("queue", trace.ready_at)
            queue.end(self.epoch(now if trace.turn_at is None else trace.turn_at))
        self.tell(
            self.span,
            ready=trace.ready_at,
            first_byte=trace.first_byte_at,
            first_audio=trace.first_audio_at,
            first_sentence=trace.first_sentence_at,
            cancel=now if trace.outcome == "cancelled" else None,
        )
        for name in FIGURES:
            value = figures[name]
            if isinstance(value, str | int | float):
                self.span.set_attribute(f"orpheus.{name}", value)
        _fail(self.span, trace.error)
        self.span.end(self.epoch(now))


class _Segment:
    """The span of a segment, from entering to leaving."""

    def __init__(self, utterance: _Utterance, chars: int) -> None:
        self._utterance = utterance
        self._chars = chars

    def __enter__(self) -> None:
        self._frames = self._utterance.trace.frames
        self._span = self._utterance.child("segment", clock())
        self._span.set_attribute("orpheus.chars", self._chars)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        utterance, trace, span = self._utterance, self._utterance.trace, self._span
        outcome, code = _outcome(trace, error)
        utterance.tell(
            span,
            first_token=trace.segment_first_token_at,
            engine_done=trace.segment_generated_at,
            first_byte=trace.segment_first_byte_at,
        )
        span.set_attribute("orpheus.outcome", outcome)
        span.set_attribute("orpheus.frames", trace.frames - self._frames)
        if outcome == "done":
            span.set_attribute("orpheus.reason", trace.reason)
        _fail(span, code)
        span.end(utterance.epoch(clock()))


def _outcome(trace: Trace, error: BaseException | None) -> tuple[str, str | None]:
    """How a segment ended that was left with `error`, and the wire code of a failure."""
    if trace.outcome != "none":  # its context ended before it
        return trace.outcome, trace.error
    if error is None:
        return "done", None
    if isinstance(error, asyncio.CancelledError | PeerGone):
        return "disconnected", None
    return "failed", error.code if isinstance(error, OrpheusError) else Internal.code


def _fail(span: api.Span, code: str | None) -> None:
    if code is not None:
        span.set_attribute("error.type", code)
        span.set_status(api.Status(api.StatusCode.ERROR, code))


def _caller(traceparent: str | None) -> api.SpanContext:
    """What a traceparent names; it may be invalid."""
    carrier = {} if traceparent is None else {"traceparent": traceparent}
    found = _PROPAGATOR.extract(carrier, Context())
    return api.get_current_span(found).get_span_context()
