"""Hostile clients on a socket, and a server that somebody else is spoken to by meanwhile.

Rule: what comes back is read by the protocol's own grammar. Afterwards the server holds nothing and is well.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Final

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from orpheus_ws.server import Server
from tests.conformance.speakers import client_of, speaking
from tests.harness import server, turns_until
from tests.server_peers import held, http, listening
from tests.surface_grammars import GRAMMARS

LIMITS = ("limits.text_chars=1000", "limits.message_bytes=4000", "limits.contexts=4")
every_surface = pytest.mark.parametrize("surface", GRAMMARS)
SHORT = "It was cold."

TURNS: Final[dict[str, tuple[str, str]]] = {
    "baseten": ("{text}", "__END__"),
    "vllm_omni": ('{"type": "input.text", "text": "{text}"}', '{"type": "input.done"}'),
    "cartesia": (
        '{"context_id": "t", "transcript": "{text}", "continue": true}',
        '{"context_id": "t", "transcript": ""}',
    ),
    "deepgram": ('{"type": "Speak", "text": "{text}"}', '{"type": "Flush"}'),
}
"""Text, and the end of a turn."""


def say(frame: str, text: str) -> str:
    """A frame of `TURNS` with a text in it."""
    return frame.replace("{text}", text)


class Socket:
    """A hostile client's end; what comes is read by the grammar."""

    def __init__(self, surface: str, socket: ClientConnection) -> None:
        self.socket = socket
        self._grammar = GRAMMARS[surface]()

    async def send(self, *frames: str | bytes) -> None:
        """Send frames, as long as anybody takes them."""
        for frame in frames:
            self._grammar.sent(frame)
            with contextlib.suppress(ConnectionClosed):
                await self.socket.send(frame)

    async def rest(self) -> int | None:
        """Hear everything that was sent for what the server got; the code if it has closed meanwhile."""
        await self.send(self._grammar.fence)
        try:
            passed = False
            while not passed:
                frame = await self.socket.recv()
                self._grammar.got(frame)
                passed = self._grammar.passed(frame)
        except ConnectionClosed:
            return self.socket.close_code
        return None


@contextlib.asynccontextmanager
async def hostile(started: Server, surface: str, *, greet: bool) -> AsyncIterator[Socket]:
    """A socket to a surface, before its first message or after."""
    client = client_of(surface)
    url = f"ws://127.0.0.1:{started.address.port}{client.path}"
    async with connect(url, compression=None, ping_interval=None, max_size=None) as socket:
        if greet:
            await client(socket).greet()
        yield Socket(surface, socket)
        socket.transport.abort()


@contextlib.asynccontextmanager
async def besieged(surface: str, *settings: str) -> AsyncIterator[Server]:
    """A server that is attacked while somebody listens; afterwards it is as it was."""
    async with server(*LIMITS, *settings) as started:
        async with listening(started, 1) as (listener,):
            yield started
            assert listener.player.underruns == 0
        await turns_until(lambda: not started._connections)
        await turns_until(lambda: held(started)[2:] == (0,) * 5)
        async with speaking(started, surface) as speaker:
            assert await speaker.turn(SHORT)
        assert await http(started, "/healthz") == (200, '{"alive":true}\n')
