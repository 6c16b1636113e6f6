"""Replicas in processes of their own, and real proxies before them, all on 127.0.0.1.

Rule: what is tested are the files in `deploy/`; only addresses and the number of sockets are put in.
"""

import asyncio
import contextlib
import http.client
import os
import shutil
import sys
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.ports import free_port
from tests.test_cli import SIMULATED, command

DEPLOY = Path(__file__).parents[1] / "deploy"


def program(name: str) -> str:
    """Path of a program of this environment or of the system."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"))
    found = shutil.which(name, path=path)
    assert found is not None, f"install {name} (see .ci/run, and the extra `slow`)"
    return found


async def get(url: str) -> str:
    """The body of a page, read on another thread."""

    def read() -> str:
        with urllib.request.urlopen(url, timeout=10) as response:
            body: bytes = response.read()
            return body.decode()

    return await asyncio.to_thread(read)


async def ask(port: int, path: str, body: bytes) -> tuple[int, str | None, bytes]:
    """Status, `Retry-After` and body of what a POST is answered with, read on another thread."""

    def read() -> tuple[int, str | None, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.closing(connection):
            connection.request("POST", path, body)
            response = connection.getresponse()
            return response.status, response.getheader("Retry-After"), response.read()

    return await asyncio.to_thread(read)


async def sample(url: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples on a page for Prometheus."""
    return sum(
        found.value
        for family in text_string_to_metric_families(await get(url))
        for found in family.samples
        if found.name == name and labels.items() <= found.labels.items()
    )


class Replica:
    """`orpheus-ws serve` with engine and codec simulated; its ports outlast its process."""

    def __init__(self, capacity: int, *settings: str) -> None:
        self.port, self.http_port, self.metrics_port = (free_port() for _ in range(3))
        self._arguments = (
            *("--port", str(self.port), "--http-port", str(self.http_port)),
            *("--metrics-port", str(self.metrics_port), "--capacity", str(capacity)),
            *(part for setting in settings for part in ("--set", setting)),
        )
        self._process: Process | None = None

    @property
    def address(self) -> str:
        """Host and port of sockets."""
        return f"127.0.0.1:{self.port}"

    @property
    def http_address(self) -> str:
        """Host and port of requests."""
        return f"127.0.0.1:{self.http_port}"

    async def start(self) -> None:
        """Return when it has announced itself."""
        assert self._process is None
        self._process = await asyncio.create_subprocess_exec(
            *command("serve", *SIMULATED, *self._arguments), stdout=PIPE, stderr=DEVNULL
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline()

    def tell(self, number: int) -> None:
        """Send the process a signal."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def end(self, number: int) -> int:
        """Send the process a signal and return how it ended."""
        self.tell(number)
        return await self.ended()

    async def ended(self) -> int:
        """Wait for the process to end and return how it did."""
        assert self._process is not None
        ending = await self._process.wait()
        self._process = None
        return ending

    async def metric(self, name: str, **labels: str) -> float:
        """A metric as a scraper reads it."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        return await sample(url, name, **labels)


@contextlib.asynccontextmanager
async def replicas(count: int, capacity: int, *settings: str) -> AsyncIterator[list[Replica]]:
    """So many replicas, each with this capacity."""
    fleet = [Replica(capacity, *settings) for _ in range(count)]
    try:
        await asyncio.gather(*(replica.start() for replica in fleet))
        yield fleet
    finally:
        for replica in fleet:
            if replica._process is not None:
                await replica.end(9)


class Proxy:
    """A proxy that listens."""

    def __init__(self, port: int, observed: int) -> None:
        self.port = port
        self.url = f"ws://127.0.0.1:{port}/v1/tts"
        self.metrics = f"http://127.0.0.1:{observed}/metrics"

    async def up(self) -> float:
        """How many replicas HAProxy finds healthy."""
        return await sample(self.metrics, "haproxy_server_status", state="UP", proxy="replicas")


@contextlib.asynccontextmanager
async def _listening(port: int, *line: str, **environment: str) -> AsyncIterator[None]:
    """Run a program for as long as the block lasts, which begins when it listens on `port`."""
    process = await asyncio.create_subprocess_exec(
        *line, stdout=DEVNULL, stderr=DEVNULL, env={**os.environ, **environment}
    )
    try:
        while True:
            assert process.returncode is None, line
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def haproxy(fleet: Sequence[Replica], sockets: int, _folder: Path) -> AsyncIterator[Proxy]:
    """HAProxy, by environment variables alone."""
    port, observed = free_port(), free_port()
    environment = {f"REPLICA_{n}": replica.address for n, replica in enumerate(fleet, 1)}
    environment |= {f"HTTP_{n}": replica.http_address for n, replica in enumerate(fleet, 1)}
    environment |= {"SOCKETS": str(sockets), "LISTEN": f"127.0.0.1:{port}"}
    environment |= {"METRICS": f"127.0.0.1:{observed}"}
    line = (program("haproxy"), "-db", "-f", str(DEPLOY / "haproxy" / "haproxy.cfg"))
    async with _listening(port, *line, **environment):
        yield Proxy(port, observed)


@contextlib.asynccontextmanager
async def nginx(fleet: Sequence[Replica], sockets: int, folder: Path) -> AsyncIterator[Proxy]:
    """nginx, in the foreground and with its files in `folder`."""
    port = free_port()
    text = (DEPLOY / "nginx" / "nginx.conf").read_text(encoding="utf-8")
    for number, replica in enumerate(fleet, 1):
        text = text.replace(f"127.0.0.1:900{number}", replica.address)
        text = text.replace(f"127.0.0.1:901{number}", replica.http_address)
    text = text.replace("max_conns=64", f"max_conns={sockets}")
    text = text.replace("listen 8765", f"listen 127.0.0.1:{port}")
    text = text.replace("/run/nginx.pid", str(folder / "pid")).replace("/dev/stdout speech", "off")
    file = folder / "nginx.conf"
    file.write_text(f"daemon off;\n{text}", encoding="utf-8")
    async with _listening(port, program("nginx"), "-p", str(folder), "-c", str(file)):
        yield Proxy(port, 0)


@contextlib.asynccontextmanager
async def envoy(fleet: Sequence[Replica], _sockets: int, folder: Path) -> AsyncIterator[Proxy]:
    """Envoy, on one thread."""
    port, admin = free_port(), free_port()
    text = (DEPLOY / "envoy" / "envoy.yaml").read_text(encoding="utf-8")
    places = {"port_value: 9901": admin, "address: 0.0.0.0, port_value: 8765": port}
    for number, replica in enumerate(fleet, 1):
        places[f"port_value: 900{number}"] = replica.port
        places[f"port_value: 901{number}"] = replica.http_port
    for place, number in places.items():
        assert place in text
        text = text.replace(
            place, f"{place.rpartition(' ')[0].replace('0.0.0.0', '127.0.0.1')} {number}"
        )
    file = folder / "envoy.yaml"
    file.write_text(text, encoding="utf-8")
    line = (program("envoy"), "--config-path", str(file), "--concurrency", "1")
    async with _listening(port, *line, "--use-dynamic-base-id"):
        yield Proxy(port, admin)


PROXIES: dict[str, Callable[..., contextlib.AbstractAsyncContextManager[Proxy]]] = {
    "haproxy": haproxy,
    "nginx": nginx,
    "envoy": envoy,
}
