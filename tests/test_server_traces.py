"""The server over real sockets: the spans of its utterances."""

import asyncio
import contextlib
import json
import logging
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.samples import Sample
from websockets.exceptions import ConnectionClosed

from orpheus_ws import messages as m
from orpheus_ws.logs import Formatter
from orpheus_ws.tracing import otel
from orpheus_ws.tracing.otel import OtelTracer
from tests.harness import Peer, peer, server, turns_until
from tests.http_peers import SPEECH, calling, speech
from tests.server_peers import SENTENCE, STEPPED, one, rest
from tests.spans import Spans, attributes, collecting, duration, events, traced

AGENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TURN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NOBODY = f"00-{'0' * 32}-{'0' * 16}-01"
UNSAMPLED = TURN[:-1] + "0"


def named(span: ReadableSpan) -> tuple[str | None, list[str]]:
    """The traceparents, all sampled, of a span's parent and of what it has links to."""
    contexts = [*([span.parent] if span.parent else []), *(link.context for link in span.links)]
    found = [f"00-{context.trace_id:032x}-{context.span_id:016x}-01" for context in contexts]
    return (found[0], found[1:]) if span.parent else (None, found)


# What is told -------------------------------------------------------------------------------------


async def test_an_utterance() -> None:
    """Its span has the figures of its `done`; its turn and its segments are below it, within it."""
    async with traced() as (started, spans), peer(started.address.url) as connected:
        await connected.say("a", f"{SENTENCE} {SENTENCE}")
        done = (await connected.utterance("a"))[-1]
    assert isinstance(done, m.Done)
    utterance = spans.utterance
    told = attributes(utterance)
    assert utterance.kind is SpanKind.SERVER
    assert utterance.status.status_code is StatusCode.UNSET
    assert (told["orpheus.surface"], told["orpheus.outcome"]) == ("native", "done")
    assert told["orpheus.voice"] == started.engine.voices[0]
    assert (told["orpheus.segments"], told["orpheus.chars"]) == (2, done.chars)
    assert told["orpheus.sent_ms"] == round(done.audio_ms)
    assert told["orpheus.ttfa_ms"] == pytest.approx(done.ttfa_ms, abs=0.1)
    first, last = duration(utterance)
    order = ["ready", "first_byte", "first_audio", "first_sentence"]
    assert list(events(utterance)) == order
    assert [first, *events(utterance).values(), last] == sorted(
        [first, *events(utterance).values(), last]
    )
    (queue,) = spans.below(utterance, "queue")
    assert duration(queue)[0] == events(utterance)["ready"]
    segments = spans.below(utterance, "segment")
    assert len(segments) == 2
    assert [attributes(segment)["orpheus.chars"] for segment in segments] == [len(SENTENCE)] * 2
    assert (
        sum(attributes(segment)["orpheus.frames"] for segment in segments) == told["orpheus.frames"]
    )
    moments = [first, *duration(queue)]
    for segment in segments:
        assert attributes(segment)["orpheus.outcome"] == "done"
        assert attributes(segment)["orpheus.reason"] == "end"
        start, end = duration(segment)
        within = events(segment)
        assert set(within) == {"first_token", "first_byte", "engine_done"}
        assert start <= within["first_token"] <= within["first_byte"] <= end
        assert within["first_token"] <= within["engine_done"] <= end
        moments += [start, end]
    assert [*moments, last] == sorted([*moments, last])


@pytest.mark.parametrize(
    ("handshake", "own", "parent", "links"),
    [
        (None, None, None, []),
        (AGENT, None, AGENT, []),
        (None, TURN, TURN, []),
        (AGENT, TURN, TURN, [AGENT]),
        (TURN, TURN, TURN, []),
        (AGENT, NOBODY, AGENT, []),
        ("marked words", TURN, TURN, []),
        (NOBODY, "ff" + TURN[2:], None, []),
    ],
)
async def test_whose_child_it_is(
    handshake: str | None, own: str | None, parent: str | None, links: list[str]
) -> None:
    """A context's own traceparent comes before its handshake's, which it then has a link to."""
    headers = {} if handshake is None else {"traceparent": handshake}
    async with (
        traced() as (started, spans),
        peer(started.address.url, headers=headers) as connected,
    ):
        if own is not None:
            await connected.send(m.Open(context="a", traceparent=own))
        await connected.say("a", SENTENCE)
        await connected.utterance("a")
    utterance = spans.utterance
    assert named(utterance) == (parent, links)
    assert utterance.context is not None
    assert parent is None or f"{utterance.context.trace_id:032x}" in parent


@pytest.mark.parametrize("headers", [[], [AGENT], [AGENT, TURN], ["marked words"], [NOBODY]])
async def test_whose_child_a_request_is(headers: list[str]) -> None:
    """Over HTTP the request's header says it, as that of a handshake does; several say nothing."""
    with collecting() as collector:
        settings = ("server.http_port=0", f"tracing.endpoint={collector.endpoint}")
        async with server(*settings) as started, calling(started) as caller:
            body = json.dumps(speech(SENTENCE)).encode()
            lines = [f"Content-Length: {len(body)}", *(f"Traceparent: {each}" for each in headers)]
            head = "\r\n".join((f"POST {SPEECH} HTTP/1.1", "Host: x", *lines, "", ""))
            caller.writer.write(head.encode() + body)
            assert (await caller.reader.readline()).split()[1] == b"200"
            await turns_until(lambda: not started._connections)
    (span,) = collector.spans("utterance")
    if headers == [AGENT]:
        _, trace, parent, _ = AGENT.split("-")
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace, parent)
    else:
        assert span.parent_span_id == b""


async def test_a_caller_who_does_not_sample(caplog: pytest.LogCaptureFixture) -> None:
    """No span is made for a trace that is not sampled; logs still name the trace."""
    caplog.set_level(logging.INFO, logger="orpheus_ws")
    async with traced() as (started, spans), peer(started.address.url) as connected:
        await connected.send(m.Open(context="a", traceparent=UNSAMPLED))
        await connected.say("a", SENTENCE)
        assert isinstance((await connected.utterance("a"))[-1], m.Done)
        assert not spans.tracer._live
    assert not spans.named("utterance")
    assert not spans.named("segment")
    assert ended(caplog)["trace_id"] == UNSAMPLED[3:35]


async def test_logs_name_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    """The line of a context has the id of its trace, also of one that begins with it; without traces none."""
    caplog.set_level(logging.INFO, logger="orpheus_ws")
    async with traced() as (started, spans), peer(started.address.url) as connected:
        await connected.say("a", SENTENCE)
        await connected.utterance("a")
    context = spans.utterance.context
    assert context is not None
    assert ended(caplog)["trace_id"] == f"{context.trace_id:032x}"
    caplog.clear()
    async with one() as (_, connected):
        await connected.say("a", SENTENCE)
        await connected.utterance("a")
    assert ended(caplog)["trace_id"] is None


def ended(caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    """The only line about a context that has ended."""
    (record,) = [record for record in caplog.records if record.message == "context ended"]
    line: dict[str, object] = json.loads(Formatter().format(record))
    return line


# However it ends ----------------------------------------------------------------------------------


async def test_a_cancelled_segment_ends_when_its_slot_is_free() -> None:
    """The utterance ends when it is cancelled, and its segment later, when the engine is free."""
    async with (
        traced(STEPPED, "engine.options.fault=never_stops") as (started, spans),
        peer(started.address.url) as connected,
    ):
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Audio)
        await connected.send(m.Cancel(context="a"))
        await connected.wait_for(m.Cancelled)
        await turns_until(lambda: bool(spans.named("segment")))
        assert started.engine.statistics().active == 0
    utterance = spans.utterance
    (segment,) = spans.below(utterance, "segment")
    assert duration(segment)[1] > duration(utterance)[1] == events(utterance)["cancel"]
    for span in (utterance, segment):
        assert attributes(span)["orpheus.outcome"] == "cancelled"
        assert span.status.status_code is StatusCode.UNSET


async def test_a_failed_utterance_has_its_wire_code() -> None:
    """The status of an utterance and of its segment that failed is an error, with the wire code."""
    settings = ("engine.options.fault=raises", "engine.options.fault_requests=2")
    async with traced(*settings) as (started, spans), peer(started.address.url) as connected:
        await connected.say("a", f"{SENTENCE} {SENTENCE}")
        failed = (await connected.utterance("a"))[-1]
    assert isinstance(failed, m.Error)
    good, bad = spans.below(spans.utterance, "segment")
    assert good.status.status_code is StatusCode.UNSET
    for span in (spans.utterance, bad):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == failed.code == "engine_failed"
        assert attributes(span)["error.type"] == failed.code
        assert attributes(span)["orpheus.outcome"] == "failed"


async def test_who_waited_in_vain() -> None:
    """A context that got no turn has waited to its end, and has no segment."""
    settings = (
        "engine.capacity=1", "server.oversubscription=2", "server.max_queue_ms=1",
        "engine.options.fault=stalls", "engine.options.fault_requests=1",
    )  # fmt: skip
    async with traced(*settings) as (started, spans), peer(started.address.url) as first:
        await first.say("a", SENTENCE)
        await first.wait_for(m.Started)
        async with peer(started.address.url) as second:
            await second.say("b", SENTENCE)
            await second.wait_for(m.Error)
        waited = spans.utterance
    assert attributes(waited)["error.type"] == "overloaded"
    (queue,) = spans.below(waited, "queue")
    assert duration(queue)[1] == duration(waited)[1]
    assert not spans.below(waited, "segment")


NAMES = st.sampled_from(["a", "b", "c"])
MESSAGES: st.SearchStrategy[m.ClientMessage] = st.one_of(
    st.builds(
        m.Open,
        context=NAMES,
        voice=st.sampled_from(["tara", "nobody"]),
        traceparent=st.sampled_from([AGENT, UNSAMPLED.replace("-00", "-03")]),
    ),
    st.builds(m.Text, context=NAMES, text=st.sampled_from([SENTENCE, "Well, ", "x" * 300])),
    st.builds(m.Flush, context=NAMES),
    st.builds(m.End, context=NAMES),
    st.builds(m.Cancel, context=st.sampled_from(["a", "b", "c", "*"])),
)
FAULTS = st.sampled_from(["none", "none", "empty", "raises", "stalls", "never_stops", "dies"])
ENDINGS = st.sampled_from(["leave", "vanish", "cut"])


@settings(max_examples=40, deadline=None)
@given(st.lists(MESSAGES, max_size=12), FAULTS, ENDINGS, st.integers(0, 100))
def test_exactly_one_span(
    messages: list[m.ClientMessage], fault: str, ending: str, turns: int
) -> None:
    """Whatever happens to contexts, each has one span with its outcome, and nothing is kept of it."""

    async def scenario() -> None:
        limit = "limits.text_chars=400"
        faults = (f"engine.options.fault={fault}", "engine.options.fault_requests=1,3")
        async with contextlib.AsyncExitStack() as socket:
            async with traced(limit, *faults) as (started, spans):
                connected = await socket.enter_async_context(peer(started.address.url))
                with contextlib.suppress(ConnectionClosed):
                    await connected.send(*messages)
                    await connected.fence()
                # A client that does not read does not see either that its socket is closed.
                hearing = asyncio.create_task(rest(connected))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await end(connected, ending)
                if ending != "cut":
                    await turns_until(lambda: not started._connections)
            (counted,) = started.metrics.contexts_ended.collect()
            assert_told(spans, counted.samples)
            await hearing

    asyncio.run(scenario())


async def end(connected: Peer, how: str) -> None:
    """End a socket, unless the server is to do it."""
    if how == "leave":
        await connected.socket.close()
    elif how == "vanish":
        connected.socket.transport.abort()


def assert_told(spans: Spans, counted: list[Sample]) -> None:
    """That the spans are of those contexts that the metrics have counted, each with its children."""
    outcomes = Counter[object](
        attributes(span)["orpheus.outcome"] for span in spans.named("utterance")
    )
    assert outcomes == Counter(
        {
            sample.labels["outcome"]: int(sample.value)
            for sample in counted
            if sample.name.endswith("_total") and sample.value
        }
    )
    assert not spans.tracer._live
    for name in ("queue", "segment"):
        below = [spans.below(utterance, name) for utterance in spans.named("utterance")]
        assert sum(map(len, below)) == len(spans.named(name))
    for utterance in spans.named("utterance"):
        ready = "ready" in events(utterance)
        assert len(spans.below(utterance, "queue")) == ready
        failed = attributes(utterance)["orpheus.outcome"] == "failed"
        assert ("error.type" in attributes(utterance)) is failed


# Whoever listens to it ----------------------------------------------------------------------------


class Deaf(SpanExporter):
    """A collector's end that does not come back before it is let go, or that raises."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.let_go = threading.Event()

    def export(self, _spans: object) -> SpanExportResult:
        """Wait."""
        self.asked.set()
        self.let_go.wait()
        raise OSError("marked words")

    def shutdown(self) -> None:
        """Wait as well."""
        self.let_go.wait()


async def test_nobody_waits_for_a_collector(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While an export hangs, speech goes on, and the end of the server does not wait for it."""
    monkeypatch.setattr(otel, "FLUSH_SECONDS", 0.05)
    deaf = Deaf()
    provider = TracerProvider(shutdown_on_exit=False)
    # A queue of one, so that it is full at the second span.
    provider.add_span_processor(
        BatchSpanProcessor(deaf, max_queue_size=1, max_export_batch_size=1, schedule_delay_millis=1)
    )
    tracer = OtelTracer(provider)
    async with one() as (started, _):
        started.tracer = tracer
        async with peer(started.address.url) as connected:
            for name in ("a", "b", "c"):
                await connected.say(name, SENTENCE)
                assert isinstance((await connected.utterance(name))[-1], m.Done)
                await asyncio.to_thread(deaf.asked.wait)
        await tracer.close()
    assert not deaf.let_go.is_set()
    assert "traces were lost" in caplog.messages
    deaf.let_go.set()
    await turns_until(lambda: not _flushing())


def _flushing() -> bool:
    return any(thread.name == "tracing-flush" for thread in threading.enumerate())
