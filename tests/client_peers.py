"""What tests of the client need on the other side: faults on purpose, addresses that move, time.

Rule: real sockets; only the waiting between attempts is virtual.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.client import Backoff, Utterance
from orpheus_ws.wire.native import MsgpackWire

READY = m.Ready(
    session="s",
    encodings=("pcm_s16le",),
    sample_rates=(24_000,),
    voices=("tara",),
    limits=m.Limits(
        contexts=32,
        text_chars=20_000,
        message_bytes=65_536,
        messages_per_second=500,
        idle_seconds=900,
        session_seconds=900,
    ),
)
WIRE = MsgpackWire()


async def heard(utterance: Utterance) -> int:
    """Listen to the end; how many samples that were."""
    return sum([len(chunk.pcm) // 2 async for chunk in utterance])


class VirtualTime:
    """Time that passes only when somebody sleeps, and what happens meanwhile."""

    def __init__(self, *, chance: float = 0.5) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.chance = chance
        self.meanwhile: Callable[[], Awaitable[object]] = _nothing

    async def sleep(self, seconds: float) -> None:
        """Pass over so many seconds."""
        self.slept.append(seconds)
        self.now += seconds
        await self.meanwhile()

    def backoff(self) -> Backoff:
        """A back-off on this time, with even chances."""
        return Backoff(clock=lambda: self.now, sleep=self.sleep, chance=lambda: self.chance)


async def _nothing() -> None:
    """Nothing happens."""


class FaultySocket:
    """The server's end of a socket, message by message."""

    def __init__(self, socket: ServerConnection, heard: list[m.ClientMessage]) -> None:
        self.heard = heard
        self._socket = socket

    async def send(self, *messages: m.ServerMessage) -> None:
        """Send messages in order."""
        for message in messages:
            await self._socket.send(WIRE.encode_reply(message))

    async def receive(self, kind: type[m.ClientMessage]) -> str:
        """Read up to a message of a kind; its context."""
        while True:
            message = WIRE.decode_request(await self._socket.recv(decode=None))
            self.heard.append(message)
            if isinstance(message, kind):
                return getattr(message, "context", "")

    async def speak(self) -> None:
        """Answer one whole utterance with one sample."""
        context = await self.receive(m.End)
        audio = m.Audio(context=context, seq=0, offset=0, pcm=b"\0\0")
        await self.send(audio, m.Done(context=context, reason="end", audio_ms=0.0, chars=1))

    async def lose(self) -> None:
        """Lose the connection without a word."""
        self._socket.transport.abort()

    async def close(self, code: int, reason: str) -> None:
        """Close the socket."""
        await self._socket.close(code, reason)


Behaviour = Callable[[FaultySocket], Awaitable[None]]


class Faulty:
    """A server that does what it is told with each socket. `heard` has the messages of each."""

    def __init__(self) -> None:
        self.url = ""
        self.heard: list[list[m.ClientMessage]] = []

    def text(self, socket: int) -> str:
        """All text that arrived on a socket."""
        return "".join(x.text for x in self.heard[socket] if isinstance(x, m.Text))


@contextlib.asynccontextmanager
async def faulty(*behaviours: Behaviour) -> AsyncIterator[Faulty]:
    """A server that greets and then behaves: the first socket like the first, and so on."""
    server = Faulty()

    async def handle(connection: ServerConnection) -> None:
        socket = FaultySocket(connection, [])
        server.heard.append(socket.heard)
        await socket.send(READY)
        with contextlib.suppress(ConnectionClosed):
            await behaviours[len(server.heard) - 1](socket)
            while True:
                await socket.receive(m.Close)

    async with serve(
        handle, "127.0.0.1", 0, subprotocols=[Subprotocol(WIRE.subprotocol)], compression=None
    ) as listener:
        server.url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1/tts"
        yield server


@contextlib.asynccontextmanager
async def refusing(
    *statuses: int,
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    body: str = "no\n",
) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that answers the handshake with each status in turn; then the last for ever.

    Yields its URL and what it has answered.
    """
    answered: list[int] = []

    def answer(connection: ServerConnection, _: Request) -> Response:
        status = statuses[min(len(answered), len(statuses) - 1)]
        answered.append(status)
        response = connection.respond(HTTPStatus(status), body)
        for name, value in Headers(headers or {}).raw_items():
            response.headers[name] = value
        return response

    async def never(_: ServerConnection) -> None:
        raise AssertionError

    async with serve(never, "127.0.0.1", 0, process_request=answer) as listener:
        yield f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1/tts", answered


class Address:
    """One TCP address whose connections go to whatever server stands behind it at the moment."""

    def __init__(self) -> None:
        self.url = ""
        self.behind: int | None = None
        """The port that new connections are passed to; None drops them."""
        self.accepted = 0

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on, in both directions, until either side ends it."""
        self.accepted += 1
        with contextlib.closing(writer):
            if self.behind is None:
                return
            there, back = await asyncio.open_connection("127.0.0.1", self.behind)
            with contextlib.closing(back):
                ways = [
                    asyncio.create_task(_pass_on(reader, back)),
                    asyncio.create_task(_pass_on(there, writer)),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)


@contextlib.asynccontextmanager
async def address(behind: int | None = None) -> AsyncIterator[Address]:
    """An `Address` on a free port."""
    moving = Address()
    moving.behind = behind
    listener = await asyncio.start_server(moving.forward, "127.0.0.1", 0)
    moving.url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1/tts"
    async with listener:
        yield moving


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
