"""What tests of the server ask of it from outside."""

import asyncio
import contextlib
import urllib.request
import weakref
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from orpheus_ws import messages as m
from orpheus_ws.audio import Player
from orpheus_ws.engine.simulated import Options, SimulatedEngine
from orpheus_ws.server import Server
from orpheus_ws.server.connection import Connection
from orpheus_ws.server.websocket import WebSocketPeer
from orpheus_ws.trace import clock
from tests.harness import MSGPACK, Peer, peer, server, turns_until

SENTENCE = "The quick brown fox jumps over the lazy dog."
STEPPED = "engine.options.step_seconds=0.03"
"""The engine takes time, so that something can happen in the middle of a segment."""
STEPS = "simulated engine steps"
"""Its task, which lasts for as long as it has a request."""
AT_ONCE = 10
"""Turns of the event loop, which are far less than two steps of any engine.

Steps are not counted for it: what a machine that stood still owes of them comes in those same turns.
"""
LISTENER_LEAD_MS = 2000
MOST_OF_LEAD = 0.7
"""Little enough for a server that stands still to be heard, and more than a busy machine takes."""


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


def stepped_by_hand(started: Server) -> SimulatedEngine:
    """The engine, which from now on does nothing by itself: a test calls its `_step`."""
    assert isinstance(started.engine, SimulatedEngine)
    started.engine._options = Options(step_seconds=3600.0)
    return started.engine


async def rest(connected: Peer) -> list[m.ServerMessage]:
    """Every message until the server closes."""
    received: list[m.ServerMessage] = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            received.append(await connected.receive())
    return received


async def closed(connected: Peer) -> tuple[int, str]:
    """Wait for the server to close and return its code and reason."""
    await rest(connected)
    close = connected.socket.protocol.close_rcvd
    assert close is not None
    return close.code, close.reason


def held(started: Server) -> tuple[int, ...]:
    """What this process holds: tasks, descriptors, sockets, slots of engine and codec, turns."""
    return (
        len(asyncio.all_tasks()),
        len(list(Path("/proc/self/fd").iterdir())),
        started.admission.active,
        started.engine.statistics().active,
        started.codec.statistics().streams,
        started.turns.taken,
        started.turns.waiting,
    )


async def at_rest(started: Server) -> tuple[int, ...]:
    """What it holds before anybody came.

    The step in which the server's own test word left the simulated engine may be under way when it starts.
    """
    await turns_until(lambda: not any(t.get_name() == STEPS for t in asyncio.all_tasks()))
    return held(started)


def socket_of(connection: Connection) -> ServerConnection:
    """The server's end of the WebSocket that a conversation goes over."""
    assert isinstance(connection.peer, WebSocketPeer)
    return connection.peer.socket


def references(started: Server, others: AbstractSet[Connection]) -> list[weakref.ref[object]]:
    """Weak references to the server's end of the one socket that is none of `others`."""
    (connection,) = started._connections - others
    return [weakref.ref(connection), weakref.ref(socket_of(connection))]


class Listener:
    """Somebody who is spoken to without end, and hears it through the virtual player."""

    def __init__(self, connected: Peer, lead_ms: int) -> None:
        self.player = Player()
        self.messages = 0
        """Of audio, received."""
        self._connected = connected
        self._lead_ms = lead_ms
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        await self._connected.send(m.Config(lead_ms=self._lead_ms))
        await self._connected.send(m.Text(context="a", text=f"{SENTENCE} " * 20))
        while True:
            chunk = await self._connected.wait_for(m.Audio)
            self.player.receive(len(chunk.pcm) / 48_000, clock())
            self.messages += 1

    @property
    def in_hand(self) -> float:
        """Seconds of audio that are still to be heard."""
        return self.player.in_hand(clock())

    async def stop(self) -> None:
        """Listen no more. Whatever went wrong with the listening is raised."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@contextlib.asynccontextmanager
async def listening(
    started: Server, count: int, lead_ms: int = LISTENER_LEAD_MS
) -> AsyncIterator[list[Listener]]:
    """So many sockets in the middle of their speech, with most of the lead in hand each.

    How they began, all at once on a machine that may be busy, is not held against the server.
    """
    async with contextlib.AsyncExitStack() as stack:
        listeners = []
        for _ in range(count):
            connected = await stack.enter_async_context(peer(started.address.url))
            listeners.append(Listener(connected, lead_ms))
            stack.push_async_callback(listeners[-1].stop)
        most = MOST_OF_LEAD * lead_ms / 1000
        await turns_until(lambda: all(listener.in_hand > most for listener in listeners))
        for listener in listeners:
            listener.player.underruns = 0
        yield listeners


@contextlib.asynccontextmanager
async def one(*settings: str, subprotocol: str = MSGPACK) -> AsyncIterator[tuple[Server, Peer]]:
    """A server and one socket to it."""
    async with (
        server(*settings) as started,
        peer(started.address.url, subprotocol) as connected,
    ):
        yield started, connected
