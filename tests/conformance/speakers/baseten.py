"""Baseten's Orpheus, as LiveKit's plugin speaks it: it hears bytes until the socket closes."""

import json

import pytest
from websockets.exceptions import ConnectionClosed

from tests.conformance.speakers import Speaker, pieces


class Client(Speaker):
    """See `Speaker`."""

    path = "/v1/baseten/websocket"
    warm = False

    async def greet(self) -> None:
        """See `Speaker`."""
        options = {"voice": "tara", "max_tokens": 2000, "buffer_size": 10}
        await self.socket.send(json.dumps(options))

    async def write(self, text: str, *, complete: bool) -> None:
        """See `Speaker`."""
        for piece in pieces(text):
            await self.socket.send(piece)
        if complete:
            await self.socket.send("__END__")

    async def hear(self) -> bytes:
        """See `Speaker`."""
        try:
            frame = await self.socket.recv()
        except ConnectionClosed:
            return b""
        assert isinstance(frame, bytes)
        return frame

    async def fails(self) -> None:
        """See `Speaker`."""
        assert await self.hear() == b""

    async def offend(self) -> None:
        """See `Speaker`."""
        await self.socket.send(b"\x00\x01")
        with pytest.raises(ConnectionClosed):
            await self.socket.recv()
        assert self.socket.close_code == 1008
