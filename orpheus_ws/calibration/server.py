"""The server that is measured: `orpheus-ws serve` in a process of its own, as in production.

Rule: it is started with the caller's configuration and the number of streams that is tried, listens on
loopback alone, and has ended when the block is left.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from orpheus_ws.errors import BenchFailed, StartupError
from orpheus_ws.settings import ENVIRONMENT_PREFIX

STOP_SECONDS: Final = 15.0
"""Nobody speaks any more when it is told to stop; after so long it is killed."""
ANSWER_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.05
"""Between looks whether it listens."""

_OWN: Final = (
    "server.host=127.0.0.1",
    "server.port=0",
    "server.metrics_host=127.0.0.1",
    "server.metrics_port=0",
    "server.oversubscription=1",
    "server.drain_seconds=2",
    "server.tls_certificate=",
    "server.tls_key=",
    "auth.file=",
    *(f"auth.{limit}={2**31}" for limit in ("sockets", "contexts", "text_per_minute")),
)
"""What a calibration must have its own way, whatever the configuration says."""
_KEY: Final = f"{ENVIRONMENT_PREFIX}AUTH__KEYS__CALIBRATION"
"""Where others who use the machine do not see it, as they see a command line."""
_PREFIX: Final = "orpheus-ws: "


class Server:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, announced: Any) -> None:
        self.url: str = announced["url"]
        self._metrics: str = announced["metrics"]
        self._process, self._log = process, log

    def check(self) -> None:
        """Raise `BenchFailed` if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise BenchFailed(
                f"the server ended with exit code {code} while it was measured: {_reason(self._log)}"
            )

    def is_simulated(self) -> bool:
        """Whether its engine says that there is no model."""
        with urllib.request.urlopen(self._metrics, timeout=ANSWER_SECONDS) as answer:
            text: str = answer.read().decode()
        return "\norpheus_engine_simulated 1.0\n" in text


@contextlib.contextmanager
def serving(arguments: Sequence[str], streams: int, api_key: str) -> Iterator[Server]:
    """`orpheus-ws serve` with the arguments and so many streams, which lets `api_key` in.

    Raises `StartupError`, with the server's own line, when it cannot start. An engine may take
    minutes to load, and nothing limits that but Ctrl-C.
    """
    settings = [*_OWN, f"engine.capacity_override={streams}"]
    command = [sys.executable, "-m", f"{__package__}.guard", "serve", *arguments]
    command += [part for setting in settings for part in ("--set", setting)]
    with contextlib.ExitStack() as stack:
        # Files and not pipes: nobody need read them for the server to go on.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orpheus-ws-")))
        output, log = folder / "output", folder / "log"
        process = stack.enter_context(
            subprocess.Popen(
                command,
                env={**os.environ, _KEY: api_key},
                stdin=subprocess.PIPE,
                stdout=stack.enter_context(output.open("wb")),
                stderr=stack.enter_context(log.open("wb")),
                # A Ctrl-C at the terminal is ours alone to answer.
                start_new_session=True,
            )
        )
        stack.callback(_stop, process)
        announced = _announcement(process, output)
        if announced is None:
            raise StartupError(f"no server with {streams} streams: {_reason(log)}")
        yield Server(process, log, announced)


def _announcement(process: "subprocess.Popen[bytes]", output: Path) -> Any:
    """What it says when it listens; None if it ends before. What libraries print is passed over."""
    while True:
        ended = True
        try:
            process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            ended = False
        for line in output.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                announced = json.loads(line)
                if isinstance(announced, dict) and "metrics" in announced:
                    return announced
        if ended:
            return None


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End it, at the latest after `STOP_SECONDS`, and whatever it has started with it."""
    process.terminate()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    finally:
        if process.poll() is None:
            # It is the first of its session, and its workers are of it.
            os.killpg(process.pid, signal.SIGKILL)


def _reason(log: Path) -> str:
    """Its own line of why it ended, or how to see what there is."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    own = [line.removeprefix(_PREFIX) for line in lines if line.startswith(_PREFIX)]
    return own[-1] if own else "start `orpheus-ws serve` with the same options to see why"
