"""Command lines of a process that has already imported what takes long: it forks once for each.

Rule: what runs in the fork is the program itself, from its arguments to its exit code; only the
imports of torch and transformers are shared. `python -m tests.voice.warm_commands` is that process.
"""

import contextlib
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

PROGRAMS = {"orpheus-ws": "orpheus_ws", "engine_build": "engine_build"}
"""The modules that the programs are."""


class Ended(NamedTuple):
    """How a command ended. `left` says whether a process of its group has outlived it."""

    code: int
    stdout: str
    stderr: str
    left: bool


class Running(NamedTuple):
    """One that was started."""

    pid: int
    out: Path
    err: Path

    def stop(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)


class WarmCommands:
    """Starts commands. Make one for many tests, and close it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self, program: str, *arguments: str, prelude: str = "", pipe: bool = False
    ) -> Running:
        """Start it, after a few lines of Python of the test's own. `pipe`: `out` is a named pipe."""
        self._count += 1
        out, err = (self._folder / f"{self._count}.{name}" for name in ("out", "err"))
        if pipe:
            os.mkfifo(out)
        asked = {"program": PROGRAMS[program], "arguments": arguments, "prelude": prelude}
        return Running(self._ask(**asked, out=str(out), err=str(err)), out, err)

    def wait(self, running: Running) -> Ended:
        """Wait until it ends."""
        status = self._ask(wait=running.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, 0)
            return self._ended(status, running, left=True)
        return self._ended(status, running, left=False)

    def run(self, program: str, *arguments: str, prelude: str = "") -> Ended:
        """Run it to its end."""
        return self.wait(self.start(program, *arguments, prelude=prelude))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait() == 0

    def _ended(self, status: int, running: Running, *, left: bool) -> Ended:
        out = "" if running.out.is_fifo() else running.out.read_text(encoding="utf-8")
        error = running.err.read_text(encoding="utf-8")
        return Ended(os.waitstatus_to_exitcode(status), out, error, left)

    def _ask(self, **question: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


def _serve() -> None:
    """Answer questions on standard input; return in a fork whose turn it is to run."""
    import orpheus_ws.cli
    import orpheus_ws.engine.torch
    import orpheus_ws.server  # noqa: F401

    # So that no fork goes through all that was imported.
    gc.freeze()

    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            answer = os.waitpid(asked["wait"], 0)[1]
        elif not (answer := os.fork()):
            _become(**asked)
            return
        print(answer, flush=True)  # noqa: T201


def _become(*, program: str, arguments: list[str], prelude: str, out: str, err: str) -> None:
    os.setsid()
    for path, descriptor in ((os.devnull, 0), (out, 1), (err, 2)):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    exec(prelude, {})  # noqa: S102 - the test's own lines
    sys.argv = [program, *arguments]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve()
