"""Traces as an operator has them: a real server process, a real collector, and neither."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.tracing.otel import FIGURES, FLUSH_SECONDS
from tests.doctor_runs import command, doctor, settings, without
from tests.harness import MSGPACK
from tests.server_peers import SENTENCE
from tests.spans import Collector, collecting, values
from tests.test_cli import FREE_PORTS, SIMULATED, run, serving
from tests.test_exits import Caller

AGENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TURN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MARKED = "Marked words are spoken here, and there are enough of them."
ALLOWED = {
    "orpheus.voice", "orpheus.surface", "orpheus.outcome", "orpheus.reason", "error.type",
}  # fmt: skip
"""The attributes that may be text."""


PATIENT = partial(command, prelude="from orpheus_ws.tracing import otel; otel.FLUSH_SECONDS = 60")
"""A process that waits for its collector on the busiest of machines."""


def to(collector: Collector) -> tuple[str, ...]:
    """Arguments of `serve` that export to this collector."""
    return ("--set", f"tracing.endpoint={collector.endpoint}")


def test_what_a_collector_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended utterances are with the collector when the process has ended, and nothing that was said."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "speech")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=pod-7")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=collectors-own")
    with collecting() as collector:
        keys = ("--set", "auth.keys.marked-name=marked-secret")
        with serving(*to(collector), *keys, program=PATIENT) as (process, announced):
            speak_marked_words(announced["url"])
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
    assert set(collector.paths) == {"/v1/traces"}
    assert {headers["authorization"] for headers in collector.headers} == {"collectors-own"}
    resource = values(collector.exports[0].resource_spans[0].resource.attributes)
    assert (resource["service.name"], resource["k8s.pod.name"]) == ("speech", "pod-7")
    assert "service.version" in resource
    own, inherited, failed = collector.spans("utterance")
    assert own.trace_id.hex() == TURN[3:35]
    assert own.parent_span_id.hex() == TURN[36:52]
    assert [link.trace_id.hex() for link in own.links] == [AGENT[3:35]]
    assert inherited.trace_id.hex() == failed.trace_id.hex() == AGENT[3:35]
    assert (failed.status.code, failed.status.message) == (2, "text_too_long")
    segments = collector.spans("segment")
    parents = {span.parent_span_id for span in segments}
    assert (
        {own.span_id, inherited.span_id}
        <= parents
        <= {own.span_id, inherited.span_id, failed.span_id}
    )
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in segments)
    for span in [*segments, *collector.spans("utterance"), *collector.spans("queue")]:
        assert not span.trace_state
        texts = {name for name, value in values(span.attributes).items() if isinstance(value, str)}
        assert texts <= ALLOWED
    for body in collector.bodies:
        assert b"marked" not in body.lower()


def speak_marked_words(url: str) -> None:
    """Put the word that is looked for wherever a client can, and see two contexts end and one fail."""
    with connect(
        url,
        subprotocols=[Subprotocol(MSGPACK)],
        additional_headers={
            "X-API-Key": "marked-secret",
            "traceparent": AGENT,
            "tracestate": "marked=words",
            "baggage": "marked=words",
            "User-Agent": "marked/1",
        },
        compression=None,
        max_size=None,
    ) as opened:
        caller = Caller(opened)
        caller.send(m.Config(lead_ms=10_000))
        caller.send(m.Open(context="marked-1", traceparent=TURN))
        for name in ("marked-1", "marked-2"):
            caller.send(m.Text(context=name, text=MARKED), m.End(context=name))
            caller.wait_for(m.Done)
        caller.send(m.Open(context="marked-3", voice="marked"))
        caller.wait_for(m.Error)
        caller.send(*[m.Text(context="marked-4", text="marked " * 1000)] * 3)
        caller.wait_for(m.Error)


@pytest.fixture
def hanging() -> Iterator[str]:
    """The address of a collector that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def refusing() -> Iterator[str]:
    """The address of a collector that is not there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def failing() -> Iterator[str]:
    """The address of a collector that answers with 400 to everything."""
    with collecting(400) as collector:
        yield collector.endpoint


@pytest.mark.parametrize("kind", ["hanging", "refusing", "failing"])
def test_a_bad_collector_harms_nobody(kind: str, request: pytest.FixtureRequest) -> None:
    """Speech is as ever, the process ends with 0, and lines of JSON say what was lost."""
    endpoint: str = request.getfixturevalue(kind)
    with serving("--set", f"tracing.endpoint={endpoint}") as (process, announced):
        with connect(announced["url"], subprotocols=[Subprotocol(MSGPACK)]) as opened:
            caller = Caller(opened)
            caller.send(m.Text(context="marked", text=SENTENCE), m.End(context="marked"))
            caller.wait_for(m.Done)
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=60)
        assert process.returncode == 0
    lines = [json.loads(line) for line in logged.splitlines()]
    told = [line for line in lines if line["logger"].startswith(("opentelemetry", "orpheus_ws.tr"))]
    assert told
    assert "fox" not in logged
    assert "marked" not in logged


def test_without_the_extra() -> None:
    """An endpoint without the extra is one line that names it, for `serve` and for `doctor`."""
    wanted = settings("tracing.endpoint=http://127.0.0.1:4318")
    prelude = without("opentelemetry")
    refused = subprocess.run(
        command("serve", *SIMULATED, *FREE_PORTS, *wanted, prelude=prelude),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("orpheus-ws: ")
    assert "pip install 'orpheus-ws[otel]'" in line
    parts = settings("engine.name=simulated", "codec.name=simulated")
    ports = settings("server.port=0", "server.metrics_port=0")
    examined = doctor(*parts, *ports, *wanted, prelude=without("opentelemetry", "torch"))
    assert examined.checks["tracing"]["status"] == "problem"
    assert examined.checks["tracing"]["advice"] in line


@pytest.mark.parametrize(
    ("endpoint", "variables", "advice"),
    [
        ("127.0.0.1:4318", {}, "must begin with http://"),
        ("", {}, "tracing.endpoint"),
        ("http://127.0.0.1:1", {"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "OTEL_*"),
    ],
)
def test_mistakes(
    endpoint: str, variables: dict[str, str], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tracing cannot work with is one line that says what to change, and exit code 1."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refused = run("serve", *SIMULATED, *FREE_PORTS, *settings(f"tracing.endpoint={endpoint}"))
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert advice in line


def test_off_is_off() -> None:
    """A server that traces nothing has nothing of OpenTelemetry in it."""
    program = (
        "import asyncio, sys\n"
        "from orpheus_ws import config\n"
        "from orpheus_ws.server import running\n"
        "async def main():\n"
        "    ports = ('server.port=0', 'server.metrics_port=0')\n"
        "    parts = ('engine.name=simulated', 'codec.name=simulated')\n"
        "    async with running(config.load(flags=[*ports, *parts])):\n"
        "        print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
        "asyncio.run(main())\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert printed.strip() == "[]"


def test_what_is_documented() -> None:
    """The page of operations names every figure of an utterance, and how long the end waits."""
    page = (Path(__file__).parents[1] / "docs" / "operations.md").read_text()
    for name in FIGURES:
        assert f"`orpheus.{name}`" in page
    assert f"waits at most {FLUSH_SECONDS:g} s" in page
