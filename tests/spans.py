"""What tests of traces look at: spans in this process, and a collector that spans are sent to.

Rule: the collector is a real HTTP server and decodes what it gets with OpenTelemetry's own protobuf
messages, not with what the server made them of.
"""

import contextlib
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from orpheus_ws.server import Server
from orpheus_ws.tracing.otel import OtelTracer
from tests.harness import server


class Spans:
    """The spans that have ended in this process."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = OtelTracer(provider)

    def named(self, name: str) -> list[ReadableSpan]:
        """All of a name, in the order in which they ended."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    @property
    def utterance(self) -> ReadableSpan:
        """The only one."""
        (span,) = self.named("utterance")
        return span

    def below(self, parent: ReadableSpan, name: str) -> list[ReadableSpan]:
        """The children of a span that have this name."""
        assert parent.context is not None
        found = self.named(name)
        return [span for span in found if span.parent and span.parent == parent.context]


@contextlib.asynccontextmanager
async def traced(*settings: str) -> AsyncIterator[tuple[Server, Spans]]:
    """A server whose utterances are traced within this process."""
    spans = Spans()
    async with server(*settings) as started:
        started.tracer = spans.tracer
        yield started, spans


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Those of a span, by name."""
    return dict(span.attributes or {})


def events(span: ReadableSpan) -> dict[str, int]:
    """When what happened within a span."""
    return {event.name: event.timestamp for event in span.events}


def duration(span: ReadableSpan) -> tuple[int, int]:
    """Start and end of a span."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


class Collector:
    """What was exported to it, as bytes and decoded; it answers with `status`."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.endpoint = ""

    @property
    def exports(self) -> list[ExportTraceServiceRequest]:
        """The requests, decoded."""
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    def spans(self, name: str) -> list[Span]:
        """All of a name."""
        return [
            span
            for export in self.exports
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if span.name == name
        ]


@contextlib.contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    """A collector on 127.0.0.1, on a thread of its own."""
    collector = Collector(status)

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.paths.append(self.path)
            collector.headers.append(dict(self.headers))
            collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as httpd:
        collector.endpoint = f"http://127.0.0.1:{httpd.server_port}"
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            httpd.shutdown()
            thread.join()


def values(pairs: Iterable[KeyValue]) -> dict[str, str | int | float]:
    """Attributes as OTLP has them, by name."""
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}
