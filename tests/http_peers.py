"""A client over HTTP for tests: one connection, what is on the wire and when.

Rule: h11 on a socket and nothing else, so that a test can stop reading, leave in the middle, or send half
of a request.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import h11
import msgspec
import pytest

from orpheus_ws.server import Server
from orpheus_ws.surfaces import http_surfaces
from tests.harness import Reachable, server
from tests.server_peers import SENTENCE

SPEECH = "/v1/audio/speech"
PREDICT = "/v1/baseten/predict"
PATHS = {surface.name: surface.paths[0] for surface in http_surfaces()}
every_surface = pytest.mark.parametrize("surface", PATHS)
"""For a test of what all of them promise."""

SHORT = "Good morning. Nice day."
LONG = f"{SENTENCE} " * 20


class CutOff(Exception):
    """The response ended before it was complete: what was `heard` of its body in one call."""

    heard = b""


class Caller:
    """The client's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self._protocol = h11.Connection(h11.CLIENT)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> int:
        """Send a request, and wait for the status of its response."""
        if self._protocol.our_state is h11.DONE:
            self._protocol.start_next_cycle()
        length = {"Content-Length": str(len(body))} if method == "POST" else {}
        head = {"Host": "test", **length, **(headers or {})}
        request = h11.Request(method=method, target=path, headers=list(head.items()))
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            self.writer.write(self._protocol.send(event) or b"")
        return await self.answered()

    async def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> int:
        """Send JSON, and wait for the status of the response."""
        return await self.ask("POST", path, json.dumps(body).encode(), headers)

    async def answered(self) -> int:
        """Wait for the head of the response."""
        while isinstance(event := await self._event(), h11.InformationalResponse):
            pass
        assert isinstance(event, h11.Response), event
        self.status = event.status_code
        self.headers = {name.decode(): text.decode() for name, text in event.headers}
        return self.status

    async def hear(self) -> bytes:
        """The next part of the body, or nothing once it is complete. Raises `CutOff`."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def rest(self) -> bytes:
        """The body to its end. Raises `CutOff`."""
        parts = []
        try:
            while part := await self.hear():
                parts.append(part)
        except CutOff as cut:
            cut.heard = b"".join(parts)
            raise
        return b"".join(parts)

    async def json(self) -> Any:
        """The body, read."""
        return json.loads(await self.rest())

    def end(self) -> None:
        """Send no more, and go on listening."""
        self.writer.write_eof()

    def leave(self) -> None:
        """Be gone at once."""
        self.writer.transport.abort()

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            try:
                data = await self.reader.read(65_536)
            except ConnectionError:
                data = b""
            if not data and self._protocol.trailing_data[1]:
                raise CutOff
            try:
                self._protocol.receive_data(data)
                if not data:
                    self._protocol.next_event()
            except h11.RemoteProtocolError:
                raise CutOff from None
        return event


def speech(text: str, **options: Any) -> dict[str, Any]:
    """What OpenAI's clients send."""
    return {"model": "tts-1", "input": text, "voice": "alloy", "response_format": "pcm"} | options


def body(surface: str, text: str) -> dict[str, Any]:
    """A request for raw PCM."""
    return {"openai": speech(text), "baseten_http": {"prompt": text, "voice": "tara"}}[surface]


async def ask(caller: Caller, surface: str, text: str, **headers: str) -> int:
    """Ask for a text's speech, and wait for the status."""
    return await caller.post(PATHS[surface], body(surface, text), headers)


@contextlib.asynccontextmanager
async def calling(started: Reachable, *, receive_buffer: int = 0) -> AsyncIterator[Caller]:
    """A connection to the server's port of HTTP."""
    connecting = socket.socket()
    connecting.setblocking(False)
    if receive_buffer:
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    address = ("127.0.0.1", started.address.http_port)
    await asyncio.get_running_loop().sock_connect(connecting, address)
    reader, writer = await asyncio.open_connection(sock=connecting, limit=4096)
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()


def lose_patience(started: Server, seconds: float) -> None:
    """Whoever connects from now on may owe a part of a request for so long. His first head has its time."""
    msgspec.structs.force_setattr(started.config.server, "handshake_seconds", seconds)


@contextlib.asynccontextmanager
async def http_server(*settings: str) -> AsyncIterator[Server]:
    """A server that also speaks HTTP."""
    async with server("server.http_port=0", *settings) as started:
        yield started


@contextlib.asynccontextmanager
async def one_call(*settings: str) -> AsyncIterator[tuple[Server, Caller]]:
    """A server and one connection to it."""
    async with http_server(*settings) as started, calling(started) as caller:
        yield started, caller
