"""Servers and clients as processes, and what a client is found to do with our server.

Rule: the server is `orpheus-ws serve`, the client a program of `tests/clients` in its own environment.
Nothing here knows a client or a protocol.
"""

import base64
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import psutil
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families
from scipy.signal import resample_poly
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.slow.environments import ROOT, python_of

RATE: Final = 24_000
PING_SECONDS: Final = 0.1
ACTION_SECONDS: Final = 60.0
"""Far more than any action takes; what hangs is ended then."""
VOICE: Final = ("--engine", "pocket")
SIMULATED: Final = ("--engine", "simulated", "--set", "codec.name=simulated")
PATIENT: Final = ("--set", f"server.ping_seconds={PING_SECONDS}", "--set", "server.drain_seconds=5")


class Served(NamedTuple):
    """A server that runs."""

    process: "subprocess.Popen[str]"
    announced: dict[str, str]

    @property
    def ws(self) -> str:
        """Its address without a path."""
        return self.announced["url"].removesuffix("/v1/tts")

    @property
    def http(self) -> str:
        """The same of its HTTP."""
        return self.announced.get("http", "")

    def metric(self, name: str, **labels: str) -> float:
        """A metric, summed over the labels that are not given."""
        with urllib.request.urlopen(self.announced["metrics"], timeout=10) as response:
            text = response.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    @property
    def opened(self) -> int:
        """Sockets opened so far; exact while none is being opened or closed."""
        return int(self.metric("orpheus_socket_closes_total") + self.metric("orpheus_sockets"))

    @contextlib.contextmanager
    def occupied(self) -> Iterator[None]:
        """One more socket, of somebody else's. After the block its slot is free, or another's already."""
        closed = self.metric("orpheus_socket_closes_total")
        with connect(f"{self.ws}/v1/tts", subprotocols=[Subprotocol("tts.v1.json")], proxy=None):
            yield
        # Counted once the slot has been given back.
        while self.metric("orpheus_socket_closes_total") == closed:
            pass

    def stop(self) -> None:
        """As an operator does: open utterances are finished."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


@contextlib.contextmanager
def serving(*arguments: str, port: int = 0, http_port: int = 0) -> Iterator[Served]:
    """`orpheus-ws serve`, ready, until the block ends."""
    command = [sys.executable, "-m", "orpheus_ws", "serve", "--port", str(port)]
    command += ["--http-port", str(http_port)]
    with subprocess.Popen(
        [*command, "--metrics-port", "0", *PATIENT, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield Served(process, json.loads(process.stdout.readline()))
        finally:
            process.kill()


class Answer(NamedTuple):
    """What a client says of a turn; `tests.clients.acting` has the meaning."""

    pcm: bytes = b""
    sample_rate: int = RATE
    words: Sequence[tuple[str, float]] = ()
    facts: Mapping[str, Any] = MappingProxyType({})
    error: str | None = None
    status: int | None = None
    retryable: bool | None = None

    @property
    def seconds(self) -> float:
        """How long its audio is."""
        return len(self.pcm) / 2 / self.sample_rate

    @property
    def samples(self) -> NDArray[np.int16]:
        """Its audio at 24 kHz."""
        samples: NDArray[np.int16] = np.frombuffer(self.pcm, "<i2")
        if self.sample_rate == RATE:
            return samples
        common = math.gcd(RATE, self.sample_rate)
        resampled = resample_poly(
            samples.astype(np.float64), RATE // common, self.sample_rate // common
        )
        clipped: NDArray[np.int16] = np.clip(resampled, -32768, 32767).astype(np.int16)
        return clipped


class Actor:
    """A client's program; it does one thing at a time."""

    def __init__(self, environment: str, *command: str) -> None:
        self._process = subprocess.Popen(
            [python_of(environment), "-m", f"tests.clients.{command[0]}", *command[1:]],
            cwd=ROOT,
            # Pipecat tells everything it does.
            env=os.environ | {"LOGURU_LEVEL": "WARNING"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def open(self, served: Served, **more: str | bool) -> None:
        """Make a client of this server's; `more` as in `Opening`."""
        self._do(do="open", ws=served.ws, http=served.http, **more)

    def say(self, text: str) -> Answer:
        """A turn, to its end."""
        return self._do(do="say", text=text)

    def interrupt(self, text: str) -> Answer:
        """A turn that is left in the middle."""
        return self._do(do="interrupt", text=text)

    def sockets(self, served: Served) -> set[int]:
        """Its open WebSockets at this moment: the ports that they come from.

        The client's own kernel is asked, as the server learns later of what was closed.
        """
        port = urllib.parse.urlsplit(served.ws).port
        return {
            each.laddr.port
            for each in psutil.Process(self._process.pid).net_connections("tcp")
            if each.status == psutil.CONN_ESTABLISHED and each.raddr.port == port
        }

    def _do(self, **asked: str | bool) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        hanging = threading.Timer(ACTION_SECONDS, self._process.kill)
        hanging.start()
        line = self._process.stdout.readline()
        hanging.cancel()
        assert line, "the client has died or hung; what it said is on standard error"
        answer = json.loads(line)
        return Answer(**(answer | {"pcm": base64.b64decode(answer.get("pcm", ""))}))
