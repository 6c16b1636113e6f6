"""A WebSocket as the peer of a conversation.

Rule: the only file that moves frames. A translator makes messages of them; one message may be several
frames or none, which are in the socket's own buffer together before anybody waits.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.protocol import OPEN

from orpheus_ws import messages as m
from orpheus_ws.errors import MessageTooBig, PeerGone
from orpheus_ws.server.outbox import Outbox
from orpheus_ws.surfaces import HangUp, Translator

CLOSE_SECONDS: Final = 2.0
"""How long a peer may take to acknowledge that its socket is closed."""


class WebSocketPeer:
    """See `Peer`. `message_bytes` is how long a message may be."""

    def __init__(
        self,
        socket: ServerConnection,
        surface: str,
        translator: Translator,
        outbox: Outbox,
        message_bytes: int,
    ) -> None:
        self.socket = socket
        self._protocol = socket.protocol
        self.surface = surface
        self.hang_up: HangUp | None = None
        self._translator = translator
        self._outbox = outbox
        self._message_bytes = message_bytes
        self._pings = itertools.count()

    @property
    def open(self) -> bool:
        """See `Peer`."""
        return self._protocol.state is OPEN

    @property
    def has_room(self) -> bool:
        """See `Peer`."""
        socket = self.socket
        return self._protocol.state is OPEN and not socket.paused and self._outbox.has_room(socket)

    async def receive(self) -> Sequence[m.ClientMessage]:
        """See `Peer`."""
        try:
            frame = await self.socket.recv()
            while not self.open:  # what came too late stands before the peer's own close
                frame = await self.socket.recv()
        except ConnectionClosed:
            raise PeerGone("the socket is closed") from None
        size = len(frame.encode()) if isinstance(frame, str) else len(frame)
        if size > self._message_bytes:
            raise MessageTooBig(f"send at most {self._message_bytes} bytes in one message")
        return self._translator.receive(frame)

    def put(self, message: m.ServerMessage) -> None:
        """See `Peer`."""
        if size := self._write(message):
            self._outbox.post(self.socket, size)

    async def send(self, message: m.ServerMessage) -> None:
        """See `Peer`."""
        try:
            async with self.socket.send_context():
                self._write(message)
        except ConnectionClosed:
            raise PeerGone("the socket is closed") from None

    def _write(self, message: m.ServerMessage) -> int:
        """Put a message's frames into the socket's buffer; return how long they are."""
        size = 0
        for frame in self._translator.send(message):
            if isinstance(frame, bytes):
                self._protocol.send_binary(frame)
                size += len(frame)
            elif isinstance(frame, str):
                encoded = frame.encode()
                self._protocol.send_text(encoded)
                size += len(encoded)
            else:
                self.hang_up = frame
        return size

    def ping(self, answered: Callable[[], None]) -> None:
        """See `Peer`. The library's own `ping` could not be called without waiting for room."""
        if not self.open:
            return

        def done(pong: asyncio.Future[float]) -> None:
            if pong.exception() is None:  # else the socket was lost
                answered()

        data = b"read %d" % next(self._pings)
        pong: asyncio.Future[float] = self.socket.loop.create_future()
        pong.add_done_callback(done)
        self.socket.pending_pings[data] = (pong, self.socket.loop.time())
        self._protocol.send_ping(data)
        self._outbox.post(self.socket, len(data))

    async def close(self, code: int, reason: str) -> None:
        """See `Peer`. It may be that the close frame is never read."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.socket.close(code, reason)
        except TimeoutError:
            self.socket.transport.abort()


def close_code(socket: ServerConnection) -> str:
    """The code of whoever closed first; 1006 when the connection was simply lost.

    Codes that only a client can think of are one label together, or it could make thousands.
    """
    protocol = socket.protocol
    first = protocol.close_rcvd if protocol.close_rcvd_then_sent else protocol.close_sent
    if first is None:
        return "1006"
    return str(int(first.code)) if any(first.code == known for known in CloseCode) else "other"
