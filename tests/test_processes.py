"""Starting processes: what must not be cut in two."""

import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import FrameType

import pytest

from orpheus_ws import processes


class Stopped(Exception):
    """A signal was answered."""


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT])
def interrupt(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal whose answer is an exception."""

    def answer(_number: int, _frame: FrameType | None) -> None:
        raise Stopped

    number: signal.Signals = request.param
    before = signal.signal(number, answer)
    yield number
    signal.signal(number, before)


def _echo(pipe: Connection) -> None:
    pipe.send(pipe.recv())


def test_a_signal_while_a_child_is_started(
    interrupt: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered when the child has been told all it must know, and the child ends cleanly."""
    kind = multiprocessing.get_context("spawn").Process
    start = kind.start
    started: list[multiprocessing.process.BaseProcess] = []

    def interrupted(process: multiprocessing.process.BaseProcess) -> None:
        signal.raise_signal(interrupt)
        start(process)
        started.append(process)

    monkeypatch.setattr(multiprocessing.get_context("spawn").Process, "start", interrupted)
    with pytest.raises(Stopped), processes.child("echo", _echo):
        pytest.fail("the signal was lost")
    (process,) = started
    assert process.exitcode == -signal.SIGKILL


def test_signals_reach_a_child(capfd: pytest.CaptureFixture[str]) -> None:
    """It can be told to end: what was held back while it was started is not held back in it."""
    with processes.child("echo", _echo) as child:
        child.tell("ready")
        assert child.hear() == "ready"
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert capfd.readouterr().err == ""
