"""`serve` as a process whose surroundings fail it: while it starts, where its log goes, as it ends."""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orpheus_ws import messages as m
from orpheus_ws.cli.exits import Exit
from tests.server_peers import SENTENCE
from tests.test_cli import FREE_PORTS, SIMULATED, command
from tests.test_exits import Caller, calling, left

# Each starts processes, which take their time.
pytestmark = pytest.mark.slow


def read_when_there(file: Path, process: "subprocess.Popen[str]") -> str:
    """What is in a file, once a process has made it."""
    while not file.exists():
        assert process.poll() is None
        time.sleep(0.01)
    return file.read_text()


@contextlib.contextmanager
def loading(where: str, begun: Path, *settings: str) -> Iterator["subprocess.Popen[str]"]:
    """`serve` with an engine that makes a file and then does not finish loading."""
    of_the_engine = (
        "name=tests.loading_engine",
        f"options.where={where}",
        f"options.begun={begun}",
    )
    given = [*(f"engine.{setting}" for setting in of_the_engine), *settings]
    flags = [part for setting in given for part in ("--set", setting)]
    with subprocess.Popen(
        command("serve", *SIMULATED[2:], *FREE_PORTS, *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("where", ["thread", "loop", "process"])
def test_a_signal_while_it_loads(where: str, number: signal.Signals, tmp_path: Path) -> None:
    """It ends at once, as a server does that nobody has used, and leaves no process behind."""
    begun = tmp_path / "begun"
    with loading(where, begun) as process:
        child = int(read_when_there(begun, process))
        process.send_signal(number)
        # As a terminal and a supervisor may at one moment; it is not taken in the middle of the first.
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        assert left(process) is Exit.DONE
    if child:
        # Whoever has adopted it may not have asked for its end yet.
        assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


@pytest.mark.parametrize("where", ["thread", "loop"])
def test_a_signal_that_another_thread_gets(where: str, tmp_path: Path) -> None:
    """It ends at once as well, although that does not wake the main thread, which answers signals."""
    begun = tmp_path / "begun"
    with loading(where, begun) as process:
        read_when_there(begun, process)
        *_, other = psutil.Process(process.pid).threads()
        assert other.id != process.pid
        assert ctypes.CDLL(None).tgkill(process.pid, other.id, signal.SIGTERM) == 0
        assert left(process) is Exit.DONE


def test_hung_up_while_it_loads(tmp_path: Path) -> None:
    """Keys are read again once it serves."""
    begun, keys = tmp_path / "begun", tmp_path / "keys.toml"
    keys.write_text('[alice]\nkeys = ["one"]\n')
    with loading("file", begun, f"auth.file={keys}") as process:
        read_when_there(begun, process)
        process.send_signal(signal.SIGHUP)
        begun.unlink()
        assert process.stderr is not None
        while json.loads(process.stderr.readline())["event"] != "read again":
            pass
        process.send_signal(signal.SIGTERM)
        assert left(process) is Exit.DONE


def said(caller: Caller, context: str) -> int:
    """Say something; how long the audio is that comes of it."""
    caller.send(m.Text(context=context, text=SENTENCE), m.End(context=context))
    size = 0
    while not isinstance(message := caller.receive(), m.Done):
        size += len(message.pcm) if isinstance(message, m.Audio) else 0
    return size


def metric(announced: dict[str, str], name: str) -> float:
    """A metric without labels."""
    with urllib.request.urlopen(announced["metrics"], timeout=30) as response:
        for line in response.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(name)


@pytest.mark.parametrize("log", ["nobody reads", "no reader", "no space"])
def test_where_the_log_goes(log: str) -> None:
    """A log that nobody takes costs its lines: speech, signals and the exit code are as always."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    if log == "no reader":
        os.close(reading)
    if log == "no space":
        os.close(writing)
        writing = os.open("/dev/full", os.O_WRONLY)
    with subprocess.Popen(
        command("serve", *SIMULATED, *FREE_PORTS, "--set", "log.level=debug"),
        stdout=subprocess.PIPE,
        stderr=writing,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            announced = json.loads(process.stdout.readline())
            with calling(announced) as caller:
                size = said(caller, "first")
                assert size > 0
                while metric(announced, "orpheus_log_lines_dropped_total") == 0:
                    for _ in range(200):
                        # Each is a line, and the pipe holds a few hundred of them.
                        caller.send(m.Open(context="b"), m.Cancel(context="b"))
                    caller.send(m.Ping(id="fence"))
                    caller.wait_for(m.Pong)
                assert said(caller, "last") == size
            process.send_signal(signal.SIGTERM)
            assert left(process) is Exit.DONE
        finally:
            process.kill()
            os.close(writing)
            if log != "no reader":
                os.close(reading)


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed(closed: str, tmp_path: Path) -> None:
    """It serves all the same, and no socket has the number of one of them."""
    announced = tmp_path / "port"
    program = (
        "import os, sys\n"
        "from orpheus_ws.cli import exits\n"
        "exits.open_standard_streams()\n"
        "sys.stdout.write('x'); sys.stdout.flush(); sys.stderr.write('x'); sys.stderr.flush()\n"
        "import socket\n"
        "number = socket.socket().fileno()\n"
        f"open({str(announced)!r}, 'w').write(str(number))\n"
        "exits.leave(exits.Exit.STOPPED)\n"
    )
    shell = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, program], check=False
    )
    assert shell.returncode == Exit.STOPPED
    assert int(announced.read_text()) > 2


def test_a_part_that_does_not_close() -> None:
    """What hangs as it is closed ends with the process, which says how serving had ended."""
    program = (
        "import threading\n"
        "from orpheus_ws.cli.exits import Exit, leave_anyway\n"
        "leave_anyway(Exit.CUT_OFF, 0.0)\n"
        "threading.Event().wait()\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == Exit.CUT_OFF
