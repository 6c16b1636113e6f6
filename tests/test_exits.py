"""Signals and exit codes: a server process, what its clients are told, and how it ends."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.cli.exits import Exit
from orpheus_ws.wire import wires
from tests.harness import MSGPACK, TERMINAL
from tests.server_peers import SENTENCE
from tests.test_cli import serving

_M = TypeVar("_M")
_WIRE = wires()[MSGPACK]
FOREVER = ("--set", "server.drain_seconds=3600")


class Caller:
    """A client in this process, without an event loop."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    def send(self, *messages: m.ClientMessage) -> None:
        """Send messages in order."""
        for message in messages:
            self._socket.send(_WIRE.encode_request(message))

    def receive(self) -> m.ServerMessage:
        """The next message."""
        return _WIRE.decode_reply(self._socket.recv(decode=False))

    def wait_for(self, kind: type[_M]) -> _M:
        """Skip to the next message of a kind."""
        while not isinstance(message := self.receive(), kind):
            pass
        return message

    def endings(self) -> list[tuple[str | None, str]]:
        """Terminal messages until the server closes: of which context, and which or what code."""
        found = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                message = self.receive()
                if isinstance(message, TERMINAL):
                    code = message.code if isinstance(message, m.Error) else type(message).__name__
                    found.append((message.context, code))
        return found

    @property
    def close(self) -> tuple[int, str]:
        """Code and reason of the server's close frame."""
        close = self._socket.protocol.close_rcvd
        assert close is not None
        return close.code, close.reason


@contextlib.contextmanager
def calling(announced: dict[str, str]) -> Iterator[Caller]:
    """A client that has been greeted."""
    with connect(
        announced["url"],
        subprotocols=[Subprotocol(MSGPACK)],
        compression=None,
        ping_interval=None,
        max_size=None,
    ) as socket:
        caller = Caller(socket)
        caller.wait_for(m.Ready)
        yield caller


def fence(caller: Caller) -> None:
    """Wait until the server has seen everything."""
    caller.send(m.Ping(id="fence"))
    caller.wait_for(m.Pong)


def idle(caller: Caller) -> None:
    """Do nothing."""
    fence(caller)


def silent(caller: Caller) -> None:
    """Have a context wait for its text."""
    caller.send(m.Open(context="silent"))
    fence(caller)


def speaking(caller: Caller) -> None:
    """Bring a context to the middle of its speech. It does not end before it is told to."""
    caller.send(m.Text(context="speaking", text=SENTENCE), m.Flush(context="speaking"))
    caller.wait_for(m.Audio)


def queued(caller: Caller) -> None:
    """Have a context wait for its turn behind another."""
    speaking(caller)
    caller.send(m.Text(context="queued", text=SENTENCE))
    fence(caller)


def left(process: "subprocess.Popen[str]") -> Exit:
    """How the process ended."""
    return Exit(process.wait(timeout=30))


@pytest.mark.parametrize(
    ("number", "stage", "spoken"),
    [
        (signal.SIGTERM, idle, []),
        (signal.SIGTERM, silent, ["silent"]),
        (signal.SIGTERM, speaking, ["speaking"]),
        (signal.SIGINT, queued, ["speaking", "queued"]),
    ],
)
def test_a_signal_drains(
    number: signal.Signals, stage: Callable[[Caller], None], spoken: list[str]
) -> None:
    """After one signal everything that is open is spoken to its end, and the exit code is 0."""
    with serving("--set", "server.drain_seconds=20") as (process, announced):
        with calling(announced) as caller:
            stage(caller)
            process.send_signal(number)
            assert caller.wait_for(m.Draining).deadline_ms == 20_000
            if stage is silent:
                caller.send(m.Text(context="silent", text=SENTENCE))
            caller.send(*(m.End(context=context) for context in spoken))
            assert caller.endings() == [(context, "Done") for context in spoken]
            assert caller.close == (1012, "restart")
        assert left(process) is Exit.DONE


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service of Type=notify says when it can speak and when it begins to drain."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(30)
        name = f"orpheus-ws-{os.getpid()}" if abstract else str(tmp_path / "notify")
        systemd.bind(f"\0{name}" if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        with serving() as (process, announced):
            assert systemd.recv(64) == b"READY=1"
            with calling(announced) as caller:
                idle(caller)
            process.send_signal(signal.SIGTERM)
            assert systemd.recv(64) == b"STOPPING=1"
            assert left(process) is Exit.DONE


@pytest.mark.parametrize(
    ("stage", "ending"),
    [(idle, Exit.DONE), (silent, Exit.CUT_OFF), (speaking, Exit.CUT_OFF), (queued, Exit.CUT_OFF)],
)
def test_the_deadline_cuts_off(stage: Callable[[Caller], None], ending: Exit) -> None:
    """What is not over in time is closed with 1001, and the exit code says so."""
    # Who can be seen off in time is given more of it than a busy machine may take.
    seconds = 10 if ending is Exit.DONE else 0.3
    with serving("--set", f"server.drain_seconds={seconds}") as (process, announced):
        with calling(announced) as caller:
            stage(caller)
            process.send_signal(signal.SIGTERM)
            caller.wait_for(m.Draining)
            assert caller.endings() == []
            drained = (1012, "restart")
            assert caller.close == (drained if ending is Exit.DONE else (1001, "shutdown"))
        assert left(process) is ending


@pytest.mark.parametrize(
    ("first", "second", "stage"),
    [
        (signal.SIGTERM, signal.SIGTERM, speaking),
        (signal.SIGINT, signal.SIGINT, silent),
        (signal.SIGTERM, signal.SIGINT, queued),
        (signal.SIGINT, signal.SIGTERM, speaking),
    ],
)
def test_a_second_signal_stops(
    first: signal.Signals, second: signal.Signals, stage: Callable[[Caller], None]
) -> None:
    """A second signal, the same or the other, ends the drain at once; a third changes nothing."""
    with serving(*FOREVER) as (process, announced):
        with calling(announced) as other, calling(announced) as caller:
            silent(other)
            stage(caller)
            process.send_signal(first)
            for told in (other, caller):
                told.wait_for(m.Draining)
            process.send_signal(second)
            process.send_signal(first)
            for told in (other, caller):
                assert told.endings() == []
                assert told.close == (1001, "shutdown")
        assert left(process) is Exit.STOPPED


DIES = ("--set", "engine.options.fault=dies", "--set", "engine.options.fault_requests=2")
"""Request 0 is the probe at start-up, 1 that of whoever speaks first."""


@pytest.mark.parametrize("draining", [False, True])
def test_the_engine_dies(draining: bool) -> None:
    """Every context fails once, every socket closes, and the exit code asks for a new process."""
    slow = ("--set", "engine.options.step_seconds=0.05")
    with serving(*DIES, *slow, *FOREVER) as (process, announced):
        with contextlib.ExitStack() as callers:
            stages = (queued, silent, silent, silent)
            called = [callers.enter_context(calling(announced)) for _ in stages]
            for caller, stage in zip(called, stages, strict=True):
                stage(caller)
            if draining:
                process.send_signal(signal.SIGTERM)
                called[1].wait_for(m.Draining)
            called[-1].send(m.Text(context="silent", text=SENTENCE), m.End(context="silent"))
            endings = [sorted(caller.endings()) for caller in called]
            assert endings == [
                [("queued", "engine_failed"), ("speaking", "engine_failed")],
                *[[("silent", "engine_failed")]] * 3,
            ]
            assert {caller.close for caller in called} == {(1011, "engine_failed")}
        assert left(process) is Exit.DIED


def test_the_codec_dies() -> None:
    """A codec whose thread has ended is as fatal as an engine."""
    with serving("--set", "codec.name=tests.mortal_codec") as (process, announced):
        with calling(announced) as caller, calling(announced) as other:
            silent(other)
            # At once, or the codec may be dead before the second comes.
            caller.send(
                *(m.Text(context=name, text=SENTENCE) for name in ("speaking", "queued")),
                *(m.End(context=name) for name in ("speaking", "queued")),
            )
            assert sorted(caller.endings()) == [("queued", "internal"), ("speaking", "internal")]
            assert other.endings() == [("silent", "internal")]
            assert {caller.close, other.close} == {(1011, "internal")}
        assert left(process) is Exit.DIED
