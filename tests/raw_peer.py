"""A WebSocket client that cuts what it sends anywhere: messages into fragments, frames into TCP segments.

Rule: frames are made and read by the sans-I/O half of `websockets`; every byte goes over a real socket,
in the pieces that a test asks for.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from orpheus_ws import messages as m
from orpheus_ws.wire import Wire, wires

Cuts = Sequence[int]
"""Where to cut, in any numbers: each counts modulo what is left."""


class Closed(Exception):
    """The server has closed the socket, with this code and reason; None: it was cut off."""

    def __init__(self, code: int | None, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class RawPeer:
    """One socket. Get it from `RawPeer.connect`."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        protocol: ClientProtocol,
        wire: Wire,
    ) -> None:
        self.wire = wire
        self._reader, self._writer = streams
        self._protocol = protocol
        self._frames: deque[Frame] = deque()

    @classmethod
    async def connect(cls, url: str, subprotocol: str, cuts: Cuts = ()) -> "RawPeer":
        """Shake hands, with the request in these pieces, and skip the greeting."""
        address = parse_uri(url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol = ClientProtocol(address, subprotocols=[Subprotocol(subprotocol)], max_size=None)
        peer = cls((reader, writer), protocol, wires()[subprotocol])
        protocol.send_request(protocol.connect())
        await peer._flush(cuts)
        while protocol.state is State.CONNECTING:
            await peer._read()
        if protocol.handshake_exc is not None:
            peer.abort()
            raise protocol.handshake_exc
        assert isinstance(await peer.receive(), m.Ready)
        return peer

    async def send(self, content: str | bytes, fragments: Cuts = (), pieces: Cuts = ()) -> None:
        """Send one message in so many fragments, and all its bytes in so many pieces."""
        data = content.encode() if isinstance(content, str) else content
        first, *rest = _cut(data, fragments)
        begin = self._protocol.send_text if isinstance(content, str) else self._protocol.send_binary
        begin(first, fin=not rest)
        for index, part in enumerate(rest):
            self._protocol.send_continuation(part, fin=index == len(rest) - 1)
        await self._flush(pieces)

    async def send_bytes(self, data: bytes, pieces: Cuts = ()) -> None:
        """Send what need not be WebSocket's at all."""
        for piece in _cut(data, pieces):
            self._writer.write(piece)
            await asyncio.sleep(0)

    async def receive(self) -> m.ServerMessage:
        """The next message. Raises `Closed`."""
        while not self._frames:
            if self._protocol.state is State.CLOSED or self._reader.at_eof():
                self._writer.close()
                close = self._protocol.close_rcvd
                raise Closed(*((None, "") if close is None else (close.code, close.reason)))
            await self._read()
        frame = self._frames.popleft()
        return self.wire.decode_reply(
            bytes(frame.data).decode() if frame.opcode is Opcode.TEXT else bytes(frame.data)
        )

    def abort(self) -> None:
        """Be gone, without a word."""
        self._writer.transport.abort()

    async def _read(self) -> None:
        data = await self._reader.read(65_536)
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY):
                assert event.fin, "the server cuts messages"
                self._frames.append(event)
        await self._flush(())

    async def _flush(self, pieces: Cuts) -> None:
        for data in self._protocol.data_to_send():
            if data:
                await self.send_bytes(data, pieces)
            elif self._writer.can_write_eof() and not self._writer.is_closing():
                self._writer.close()


def _cut(data: bytes, cuts: Cuts) -> list[bytes]:
    """Pieces of `data` that are not empty, or the one that is."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)] or [b""]
