"""What a storm of connections does to those who are being spoken to, and to those who want to come in.

Rule: every part is a fresh server with the same speakers, its attackers in a process of their own; the
first has no storm, and is what the others are compared with. What a refusal costs the WebSocket library
alone is measured in the same run. Meanwhile a client with a key comes again and again.
"""

import asyncio
import contextlib
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final, NamedTuple, Self

import msgspec
import uvloop
from websockets.asyncio.server import serve

from orpheus_ws import config as configuration
from orpheus_ws.bench import attackers, listeners, servers
from orpheus_ws.errors import BenchFailed
from orpheus_ws.hardware import usable_processors
from orpheus_ws.processes import child
from orpheus_ws.server import running
from orpheus_ws.server.loop_monitor import spare_collections
from orpheus_ws.tokens import CODES_PER_FRAME, FRAME_SECONDS
from orpheus_ws.trace import clock

PACE: Final = 1.05
KEY: Final = "a-key-of-the-benchmark"
ROOM: Final = 8
"""Slots beyond the speakers', for that client and for handshakes of the storm that get in."""
RAMP_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.005
VISIT_SECONDS: Final = 0.2
"""Between one visit and the next, and the least that the client waits once refused, beside what
`Retry-After` says."""


class Storm(NamedTuple):
    """What comes, and where."""

    name: str
    port: str
    """Which of the server's."""
    request: bytes = b""
    anonymous: bool = False
    """The server has no keys: nobody can be told from the storm."""
    full: bool = False
    """No slot is free."""


def _upgrade(*headers: str) -> bytes:
    lines = ("GET /v1/tts HTTP/1.1", "Host: x", "Upgrade: websocket", "Connection: Upgrade",
             "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + "A" * 22 + "==", *headers)  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


STORMS: Final = (
    Storm("no key", "port", _upgrade()),
    Storm("wrong key", "port", _upgrade("Authorization: Bearer " + "x" * 40)),
    Storm("full", "port", _upgrade(), anonymous=True, full=True),
    Storm("come and go", "port", _upgrade(), anonymous=True),
    Storm("silent", "port"),
    Storm("health", "port", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    Storm("http", "http_port", b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\n\r\n"),
    Storm("metrics", "metrics_port", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
)


class Ports(NamedTuple):
    """A server is up."""

    port: int
    http_port: int = 0
    metrics_port: int = 0


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen in one part. Lateness is that of `listeners`."""

    name: str
    attempts_per_second: float = 0.0
    answers: dict[str, int] = {}
    """By HTTP status, as the attackers saw them."""
    cpu_share: float
    """Of one core, the server's process."""
    cpu_us_per_answer: float | None = None
    """Above what the speakers alone take; of the connections that the server came to."""
    underruns: int = 0
    lateness_ms_p99: float = 0.0
    lateness_ms_worst: float = 0.0
    turn_cpu_ms_p99: float = 0.0
    """CPU time of the event loop between two looks at it, `LOOK_SECONDS` apart if it is free. On a core
    of its own a frame is late by no more than this, so it tells a busy server from a busy machine."""
    turn_cpu_ms_worst: float = 0.0
    visits: int = 0
    """How often the client with a key got in, and how long that took, with its waiting once refused."""
    visit_seconds_median: float | None = None
    visit_seconds_worst: float | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of a run, and what it was a run of."""

    speakers: int
    per_second: int
    seconds: float
    simulated: str
    python: str
    cpus: int
    bare_us_per_refusal: float
    """CPU time of a refusal by the WebSocket library alone, at the same rate."""
    calm: Part
    storms: tuple[Part, ...]


def measure(
    speakers: int, per_second: int, seconds: float, only: str, progress: Callable[[str], None]
) -> Result:
    """Run all parts, or the storm called `only`. Raises `BenchFailed` when a process or stream fails."""
    progress("bare")
    bare = _bare(per_second, seconds)
    progress("calm")
    calm = _part(Storm("calm", "port"), speakers, 0, seconds, None)
    storms: list[Part] = []
    for storm in STORMS:
        if only in ("", storm.name):
            progress(storm.name)
            storms.append(_part(storm, speakers, per_second, seconds, calm))
    return Result(
        speakers=speakers,
        per_second=per_second,
        seconds=seconds,
        simulated="engine and codec",
        python=sys.version.split()[0],
        cpus=usable_processors(),
        bare_us_per_refusal=bare,
        calm=calm,
        storms=tuple(storms),
    )


def _bare(per_second: int, seconds: float) -> float:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(child("bare", run_bare))
        port = server.hear().port
        cpu = servers.cpu_seconds(server)
        seen = _storm(stack, attackers.Attack(port, _upgrade(), per_second, seconds))
        cpu = servers.cpu_seconds(server) - cpu
    return round(cpu / max(1, seen.answered) * 1e6, 1)


def _part(storm: Storm, speakers: int, per_second: int, seconds: float, calm: Part | None) -> Part:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(child(storm.name, run_server, storm, speakers))
        ports: Ports = server.hear()
        plan = listeners.Plan(
            f"ws://127.0.0.1:{ports.port}/v1/tts", speakers, PACE, RAMP_SECONDS, key=KEY
        )
        hearing = stack.enter_context(child("listeners", listeners.run, plan))
        hearing.hear()
        hearing.tell("begin")
        hearing.hear(RAMP_SECONDS)
        client = None if storm.full else stack.enter_context(_ReturningClient(ports.port))
        server.tell("look")
        began, cpu = clock(), servers.cpu_seconds(server)
        seen = attackers.Seen(0, 0.0, {})
        if per_second:
            port: int = getattr(ports, storm.port)
            attack = attackers.Attack(port, storm.request, per_second, seconds)
            seen = _storm(stack, attack)
        else:
            time.sleep(seconds)
        ended, cpu = clock(), servers.cpu_seconds(server) - cpu
        server.tell("enough")
        turns: list[float] = server.hear()
        visits = [] if client is None else client.stop()
        hearing.tell(listeners.Window(began, ended))
        heard: listeners.Heard = hearing.hear()
        server.tell("stop")
    return _figures(storm, seen, cpu, ended - began, turns, visits, heard, calm)


def _figures(
    storm: Storm,
    seen: attackers.Seen,
    cpu: float,
    seconds: float,
    turns: list[float],
    visits: list[float],
    heard: listeners.Heard,
    calm: Part | None,
) -> Part:
    """What one part comes to; `cpu` are the server's seconds of it, `calm` is what it costs without a storm."""
    if heard.failures or not heard.messages:
        raise BenchFailed(f"{heard.failures} streams ended early in {storm.name!r}")
    share = cpu / seconds
    extra = 0.0 if calm is None else (share - calm.cpu_share) * seconds
    return Part(
        name=storm.name,
        attempts_per_second=round(seen.attempts / seen.seconds, 1) if seen.attempts else 0.0,
        answers=seen.statuses,
        cpu_share=round(share, 3),
        cpu_us_per_answer=round(extra / seen.answered * 1e6, 1) if seen.answered else None,
        underruns=heard.underruns,
        lateness_ms_p99=round(_share(heard.lateness, 0.99) * 1000, 2),
        lateness_ms_worst=round(_share(heard.lateness, 1) * 1000, 2),
        turn_cpu_ms_p99=round(_share(turns, 0.99) * 1000, 2),
        turn_cpu_ms_worst=round(_share(turns, 1) * 1000, 2),
        visits=len(visits),
        visit_seconds_median=round(statistics.median(visits), 4) if visits else None,
        visit_seconds_worst=round(max(visits), 4) if visits else None,
    )


def _share(values: list[float], share: float) -> float:
    """Below which so great a share of them is; 0 if there are none."""
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0


def _storm(stack: contextlib.ExitStack, attack: attackers.Attack) -> attackers.Seen:
    attacker = stack.enter_context(child("attackers", attackers.run, attack))
    attacker.hear()
    attacker.tell("begin")
    seen: attackers.Seen = attacker.hear(attack.seconds)
    return seen


class _ReturningClient:
    """Somebody with a key who comes in and goes again, until stopped."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._took: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._visit, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> list[float]:
        """Seconds that each visit took to get in; one that is not in yet counts as long as it waits."""
        self._stopped.set()
        self._thread.join()
        return self._took

    def _visit(self) -> None:
        came = clock()
        while not self._stopped.is_set():
            status = self._ask()
            if status != "101":
                self._stopped.wait(1.0 if status == "503" else VISIT_SECONDS)
                if not self._stopped.is_set():
                    continue
            self._took.append(clock() - came)
            self._stopped.wait(VISIT_SECONDS)
            came = clock()

    def _ask(self) -> str:
        try:
            with socket.create_connection(self._address, timeout=5) as sock:
                sock.sendall(_upgrade(f"Authorization: Bearer {KEY}"))
                return sock.recv(4096)[9:12].decode("latin-1")
        except OSError:
            return ""


# Servers ------------------------------------------------------------------------------------------


def run_bare(pipe: Connection) -> None:
    """Body of a process: a server of the WebSocket library that refuses everybody."""

    async def main() -> None:
        async with serve(
            lambda _socket: asyncio.sleep(0),
            "127.0.0.1",
            0,
            compression=None,
            process_response=lambda connection, _request, _response: connection.respond(
                503, "full"
            ),
        ) as listener:
            pipe.send(Ports(listener.sockets[0].getsockname()[1]))
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    uvloop.run(main())


def run_server(storm: Storm, speakers: int, pipe: Connection) -> None:
    """Body of a process: the server as it is, over simulated parts."""
    uvloop.run(_serve(storm, speakers, pipe))


async def _serve(storm: Storm, speakers: int, pipe: Connection) -> None:
    flags = [
        "engine.name=simulated",
        f"engine.capacity={speakers if storm.full else speakers + ROOM}",
        f"engine.options.step_seconds={FRAME_SECONDS / PACE / CODES_PER_FRAME}",
        f"engine.options.steps_per_frame={CODES_PER_FRAME}",
        f"codec.name={servers.__name__}",
        f"codec.options.seconds={servers.DECODE_SECONDS}",
        "server.port=0",
        "server.http_port=0",
        "server.metrics_port=0",
    ]
    if not storm.anonymous:
        flags.append(f"auth.keys.bench={KEY}")
    async with running(configuration.load(flags=flags)) as server:
        spare_collections()  # as `serve` does
        address = server.address
        pipe.send(Ports(address.port, address.http_port or 0, address.metrics_port))
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, pipe.recv)
        turns: list[float] = []
        looking = asyncio.create_task(_look(turns))
        await loop.run_in_executor(None, pipe.recv)
        looking.cancel()
        pipe.send(turns)
        await loop.run_in_executor(None, pipe.recv)


async def _look(turns: list[float]) -> None:
    """Note the CPU time of this thread between one look and the next."""
    while True:
        before = time.thread_time()
        await asyncio.sleep(LOOK_SECONDS)
        turns.append(time.thread_time() - before)
