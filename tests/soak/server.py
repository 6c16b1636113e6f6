"""The server under test, as a process, and what it holds."""

import contextlib
import json
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

from orpheus_ws.server import Address
from tests.slow.environments import ROOT

SIMULATED: Final = (
    "engine.name=tests.faulty_engine",
    "engine.capacity=24",
    # A frame takes 85 ms to hear and 20 ms to make.
    "engine.options.step_seconds=0.02",
    "codec.name=simulated",
)
COMMON: Final = (
    "server.port=0",
    "server.http_port=0",
    "server.metrics_port=0",
    # As little patience as leaves a client time that is held up by a busy machine.
    "server.write_seconds=5",
    "server.handshake_seconds=5",
    "limits.message_bytes=16384",
    "log.level=warning",
)

HELD: Final = {
    "tasks": "orpheus_tasks",
    "sockets": "orpheus_sockets",
    "contexts": "orpheus_live_contexts",
    "turns": "orpheus_slots_taken",
    "waiting": "orpheus_contexts_awaiting_turn",
    "engine_slots": "orpheus_engine_active",
    "codec_slots": "orpheus_codec_streams",
}
"""What must be as it was once everybody has left, beside descriptors, threads and TCP connections."""


class Held(NamedTuple):
    """What a server holds, and how much memory it takes."""

    seconds: float
    counts: dict[str, int]
    memory_bytes: int
    late_seconds: float
    """How long the event loop has stood still by now."""


class Subject:
    """The server that runs. Blocking; every call takes some milliseconds."""

    def __init__(self, process: "subprocess.Popen[str]", announced: dict[str, str]) -> None:
        port = urllib.parse.urlsplit(announced["url"]).port
        http_port = urllib.parse.urlsplit(announced["http"]).port
        assert port is not None
        self.address = Address("127.0.0.1", port, 0, http_port)
        self.process = process
        self._seen = psutil.Process(process.pid)
        self._metrics = announced["metrics"]

    def held(self, seconds: float) -> Held:
        """What it holds now. Raises `OSError` or `psutil.Error` when it is gone."""
        # Before the scrape, which takes a descriptor and a thread itself.
        counts = {
            "descriptors": self._seen.num_fds(),
            "threads": self._seen.num_threads(),
            "connections": sum(
                connection.status == psutil.CONN_ESTABLISHED
                for connection in self._seen.net_connections("tcp")
            ),
        }
        found = self.metrics()
        counts |= {name: int(found[metric]) for name, metric in HELD.items()}
        memory = int(found["process_resident_memory_bytes"])
        return Held(seconds, counts, memory, found["orpheus_event_loop_stopped_seconds"])

    def metrics(self) -> dict[str, float]:
        """Every metric, summed over its labels."""
        with urllib.request.urlopen(self._metrics, timeout=30) as response:
            text = response.read().decode()
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums


@contextlib.contextmanager
def subject(settings: Sequence[str], log: Path) -> Iterator[Subject]:
    """Start one and wait until it can speak; `log` gets what it logs. It is killed at the end."""
    flags: list[Any] = [part for setting in (*COMMON, *settings) for part in ("--set", setting)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "orpheus_ws", "serve", *flags],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"the server did not start; {log} says why"
            yield Subject(process, json.loads(line))
        finally:
            process.kill()
