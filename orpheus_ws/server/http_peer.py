"""A request over HTTP as the peer of a conversation: all its text at once, and speech as the response.

Rule: the status is sent with the first audio, so whatever fails before has a status of its own, and
whatever fails later cuts the connection: a response that ends is complete. What is put waits in a buffer
of bounded size, which one task sends as fast as the client reads. A client that leaves is gone at once.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from starlette.types import Receive, Send

from orpheus_ws import messages as m
from orpheus_ws.errors import PeerGone
from orpheus_ws.server.access_control import JSON_TYPE
from orpheus_ws.surfaces import HangUp, HttpSurface, Reply

BUFFER_BYTES: Final = 32_768
"""What may wait here, and as much again while it is being sent."""
CLOSE_SECONDS: Final = 2.0
"""How long a response that has failed may take to say so."""

_STATUSES: Final[Mapping[str, int]] = {
    "bad_message": 400,
    "unknown_voice": 400,
    "unsupported_format": 400,
    "text_too_long": 400,
    "context_limit": 429,
    "rate_limited": 429,
    "overloaded": 503,
    "shutdown": 503,
}
"""By the code of an error, or the reason of a close. Others are a fault of ours: 500."""


class _Failure(NamedTuple):
    code: str
    advice: str
    retry_after_ms: int | None

    @property
    def status(self) -> int:
        return _STATUSES.get(self.code, 500)

    @property
    def headers(self) -> dict[str, str]:
        if self.status not in (429, 503):
            return {}
        return {"Retry-After": str(math.ceil((self.retry_after_ms or 1000) / 1000))}


class HttpPeer:
    """See `Peer`; `write` is the task that sends. As a `Holder` of a slot it is never silent.

    `tenant` is whose request it is, `transport` is the connection, `write_seconds` how long the client may
    read nothing. `released` is called when the slot is not needed any more: before the response ends, so
    that the next request of this client, which comes at once, finds it free.
    """

    silent_since = None

    def __init__(
        self,
        surface: HttpSurface,
        reply: Reply,
        tenant: str,
        asgi: tuple[Receive, Send],
        transport: asyncio.Transport,
        write_seconds: float,
        released: Callable[["HttpPeer"], None],
    ) -> None:
        self.surface = surface.name
        self.tenant = tenant
        self.hang_up: HangUp | None = None
        self._refusal = surface.refusal
        self._reply = reply
        self._receive, self._send = asgi
        self._transport = transport
        self._write_seconds = write_seconds
        self._released = released
        self._messages: Sequence[m.ClientMessage] = reply.messages
        self._session = ""
        self._waiting: list[bytes] = []
        self._size = 0
        self._started = False
        self._closing = False
        self._gone = False
        self._failure: _Failure | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._over = asyncio.Event()

    def evict(self) -> None:
        """See `Holder`. A request is in use until it is answered."""
        raise AssertionError("requests are not evicted")

    # As a peer -----------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """See `Peer`."""
        return not self._gone and not self._closing

    @property
    def has_room(self) -> bool:
        """See `Peer`."""
        return self.open and self._size < BUFFER_BYTES

    async def receive(self) -> Sequence[m.ClientMessage]:
        """See `Peer`. All there is comes at once; after that, only the end."""
        messages, self._messages = self._messages, ()
        if messages:
            return messages
        await self._disconnected()
        self._leave()
        raise PeerGone("the response is over, or the client has left")

    def put(self, message: m.ServerMessage) -> None:
        """See `Peer`."""
        if isinstance(message, m.Ready):
            self._session = message.session
        if isinstance(message, m.Error):
            self._failure = _Failure(message.code, message.message, message.retry_after_ms)
            self.hang_up = HangUp(1011, message.code)
            if not self._started:
                return
        for part in self._reply.send(message):
            self._waiting.append(part)
            self._size += len(part)
        self._news.set()

    async def send(self, message: m.ServerMessage) -> None:
        """See `Peer`."""
        if self.open:
            self.put(message)
        while self.open and not self.has_room:
            self._room.clear()
            await self._room.wait()
        if not self.open:
            raise PeerGone("the response is over, or the client has left")

    def ping(self, answered: Callable[[], None]) -> None:
        """See `Peer`. HTTP has no way to ask."""

    async def close(self, code: int, reason: str) -> None:
        """See `Peer`. What was put is sent first; a client that does not take it is cut off."""
        if code != 1000 and self._failure is None:
            self._failure = _Failure(reason, "the server could not finish; try again", None)
        self._closing = True
        self._news.set()
        self._room.set()
        seconds = self._write_seconds if self._failure is None else CLOSE_SECONDS
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            self._failure = self._failure or _Failure(reason, "", None)
            self._transport.abort()

    def _leave(self) -> None:
        self._gone = True
        self._news.set()
        self._room.set()

    # As a response -------------------------------------------------------------------------------

    async def write(self) -> None:
        """Send what is put, until the peer is closed or gone."""
        try:
            await self._stream()
            await self._end()
        finally:
            self._over.set()

    async def _stream(self) -> None:
        while not self._gone:
            if self._failure is not None and not self._started:
                return
            if self._waiting:
                parts, self._waiting, self._size = self._waiting, [], 0
                self._room.set()
                await self._start()
                body = b"".join(parts)
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
            elif self._closing:
                return
            else:
                self._news.clear()
                await self._news.wait()

    async def _end(self) -> None:
        if self._gone:
            return
        self._released(self)
        if self._failure is None:
            await self._start()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        elif self._started:
            self._transport.abort()
            await self._disconnected()
        else:
            await self._refuse(self._failure)

    async def _start(self) -> None:
        if self._started:
            return
        self._started = True
        headers = {
            "Content-Type": self._reply.media_type,
            "Cache-Control": "no-cache",
            # Or nginx collects audio until it has a few seconds of it.
            "X-Accel-Buffering": "no",
        }
        await self._head(200, headers)

    async def _refuse(self, failure: _Failure) -> None:
        body = self._refusal(failure.status, failure.code, failure.advice)
        headers = {"Content-Type": JSON_TYPE, "Content-Length": str(len(body)), **failure.headers}
        await self._head(failure.status, headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _head(self, status: int, headers: dict[str, str]) -> None:
        headers["X-Request-Id"] = self._session
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _disconnected(self) -> None:
        """Wait until the response is complete or the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
