"""A server in this process and raw sockets to it, for tests that need both sides.

Rule: real sockets on 127.0.0.1, no client SDK, so that what is tested is what is on the wire.
"""

import asyncio
import contextlib
import socket
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from orpheus_ws import config
from orpheus_ws import messages as m
from orpheus_ws.server import Address, Server, running
from orpheus_ws.wire import Wire, wires

MSGPACK = "tts.v1.msgpack"
JSON = "tts.v1.json"
TERMINAL = (m.Done, m.Cancelled, m.Error)

_M = TypeVar("_M")


@contextlib.asynccontextmanager
async def server(*settings: str) -> AsyncIterator[Server]:
    """A server with the simulated engine and codec, and with `settings` on top.

    It has all the patience that there is: on a busy machine a test may be held up for longer than a
    client may be, and what time does is said by the tests that are about it.
    """
    base = (
        "engine.name=simulated",
        "codec.name=simulated",
        "server.port=0",
        "server.metrics_port=0",
        "server.drain_seconds=5",
        "server.handshake_seconds=600",
        "server.write_seconds=600",
        "server.max_queue_ms=600000",
        "limits.context_idle_seconds=600",
    )
    async with running(config.load(flags=[*base, *settings])) as started:
        yield started


class Reachable(Protocol):
    """A server, in this process or in another."""

    @property
    def address(self) -> Address:
        """Where it listens."""
        ...


class Peer:
    """The client's end of a socket, message by message."""

    def __init__(self, socket: ClientConnection, wire: Wire) -> None:
        self.socket = socket
        self._wire = wire

    async def send(self, *messages: m.ClientMessage) -> None:
        """Send messages in order."""
        for message in messages:
            await self.socket.send(self._wire.encode_request(message))

    async def say(self, context: str, text: str) -> None:
        """Send the whole of an utterance."""
        await self.send(m.Text(context=context, text=text), m.End(context=context))

    async def receive(self) -> m.ServerMessage:
        """The next message, whatever it is."""
        return self._wire.decode_reply(await self.socket.recv(decode=None))

    async def wait_for(self, kind: type[_M]) -> _M:
        """Skip to the next message of a kind."""
        while not isinstance(message := await self.receive(), kind):
            pass
        return message

    async def utterance(self, context: str) -> list[m.ServerMessage]:
        """All messages up to and including the terminal one of `context`."""
        received: list[m.ServerMessage] = []
        while True:
            message = await self.receive()
            received.append(message)
            if isinstance(message, TERMINAL) and message.context == context:
                return received

    async def fence(self) -> list[m.ServerMessage]:
        """Everything the server had decided to send before it saw this."""
        await self.send(m.Ping(id="fence"))
        received: list[m.ServerMessage] = []
        while True:
            message = await self.receive()
            if message == m.Pong(id="fence"):
                return received
            received.append(message)


@contextlib.asynccontextmanager
async def peer(
    url: str,
    subprotocol: str = MSGPACK,
    *,
    headers: dict[str, str] | None = None,
    receive_buffer: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Peer]:
    """Connect and skip the greeting. `receive_buffer` bytes are unread at most, or the default.

    `tls` is for a `wss://` address.
    """
    async with connect(
        url,
        sock=await _tcp(url, receive_buffer),
        ssl=tls,
        subprotocols=[Subprotocol(subprotocol)],
        compression=None,
        additional_headers=headers,
        ping_interval=None,
        max_size=None,
    ) as opened:
        connected = Peer(opened, wires()[subprotocol])
        await connected.wait_for(m.Ready)
        # Most tests want the audio rather than its pace.
        await connected.send(m.Config(lead_ms=10_000))
        yield connected


async def _tcp(url: str, receive_buffer: int) -> socket.socket:
    """A TCP connection. The size of its buffer counts only if it is set before connecting."""
    address = urllib.parse.urlsplit(url)
    # Without the protocol's name asyncio leaves Nagle's algorithm on, and a message waits for another.
    connecting = socket.socket(proto=socket.IPPROTO_TCP)
    connecting.setblocking(False)
    if receive_buffer:
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(connecting, (address.hostname, address.port))
    return connecting


def audio(received: list[m.ServerMessage], context: str | None = None) -> list[m.Audio]:
    """The audio messages, of one context or of all."""
    return [
        message
        for message in received
        if isinstance(message, m.Audio) and context in (None, message.context)
    ]


def pcm(received: list[m.ServerMessage], context: str | None = None) -> bytes:
    """The PCM of all audio messages, checked to be gapless and in whole samples."""
    offsets: dict[object, tuple[int, int]] = {}
    data = b""
    for message in audio(received, context):
        seq, offset = offsets.get(message.context or message.handle, (0, 0))
        assert (message.seq, message.offset) == (seq, offset)
        assert message.pcm
        assert len(message.pcm) % 2 == 0
        offsets[message.context or message.handle] = (seq + 1, offset + len(message.pcm) // 2)
        data += message.pcm
    return data


async def turns_until(condition: Callable[[], bool]) -> int:
    """Let the event loop turn until something in this process has happened; how many turns that were.

    That it never does is noticed by the test's timeout alone: how many turns another thread or the
    network needs says nothing. What needs neither takes as many on a busy machine as on an idle one.
    """
    turns = 0
    while not condition():
        await asyncio.sleep(0)
        turns += 1
    return turns
