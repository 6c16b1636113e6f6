"""What tests of the server ask of it from outside."""

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator

from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import ConnectionClosed

from orpheus_ws.server import Server
from tests.harness import MSGPACK, Peer, peer, server

SENTENCE = "The quick brown fox jumps over the lazy dog."
STEPPED = "engine.options.step_seconds=0.03"
"""The engine takes time, so that something can happen in the middle of a segment."""


async def http(started: Server, path: str, *, port: int | None = None) -> tuple[int, str]:
    """GET a path with an HTTP client that knows nothing of websockets."""

    def get() -> tuple[int, str]:
        url = f"http://127.0.0.1:{port or started.address.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def metric(started: Server, name: str, **labels: str) -> float:
    """A metric as a scraper reads it."""
    _, text = await http(started, "/metrics", port=started.address.metrics_port)
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def closed(connected: Peer) -> tuple[int, str]:
    """Wait for the server to close and return its code and reason."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await connected.receive()
    close = connected.socket.protocol.close_rcvd
    assert close is not None
    return close.code, close.reason


@contextlib.asynccontextmanager
async def one(*settings: str, subprotocol: str = MSGPACK) -> AsyncIterator[tuple[Server, Peer]]:
    """A server and one socket to it."""
    async with (
        server(*settings) as started,
        peer(started.address.url, subprotocol) as connected,
    ):
        yield started, connected
