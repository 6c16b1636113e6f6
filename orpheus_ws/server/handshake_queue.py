"""Before a handshake: a new connection waits here, at next to no cost, until it is its turn.

Rule: a connection costs a protocol's machinery only after its whole head has come and it is its turn.
Turns come at `server.handshakes_per_second`, whoever asks, so that a storm of connections takes no
more of the event loop than that and a few microseconds each. Those who show a valid key have a line of
their own, which is served first. Those for whom no line has room are refused with bytes that were made
beforehand. All ports of an event loop share one queue.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final, Protocol

from orpheus_ws.server.bucket import Bucket
from orpheus_ws.trace import clock

HEAD_BYTES: Final = 16_384
"""How long a request's line and headers may be: twice what other servers let a line be (8 KiB)."""
BODY_BYTES: Final = 65_536
"""What may come behind a head that waits for its turn."""
MAX_SILENT: Final = 256
"""Connections at once whose head has not come. One more, and the one that is silent for longest is
closed: an honest client says what it wants within a round trip, and one that has come to stay must not
keep it out. In a storm of 2000 silent ones a second that leaves it 128 ms."""
MAX_WAITING: Final = 128
"""Connections at once that wait for their turn in each line: 0.64 s at 200 a second. With
`MAX_SILENT` and the engine's sockets they fit into the 1024 open files that many systems allow."""
BURST_SECONDS: Final = 0.1
"""Of the rate, may come at once: 20 handshakes of half a millisecond. A virtual player has 80 ms."""
BACKLOG: Final = 64
"""Connections that the kernel keeps for one port while the event loop is at something else. The loop
takes them all in one turn, at some 0.1 ms each."""
TICK_SECONDS: Final = 0.01
WITHOUT_KEY_EVERY: Final = 4
"""One turn in so many is for somebody without a valid key, though others with one wait."""
LOG_SECONDS: Final = 10.0
"""A storm is told to the log no oftener."""

_END: Final = re.compile(rb"\r?\n\r?\n")
_END_BYTES: Final = 4
_HEAD_END: Final = b"\r\n\r\n"

_log = logging.getLogger("orpheus_ws.server")


class Screening(Protocol):
    """What the queue asks about requests that have to wait."""

    def has_valid_key(self, head: bytes) -> bool:
        """Whether a request carries a valid key."""
        ...

    def immediate_response(self, head: bytes) -> bytes | None:
        """The whole response to a request that can be answered at once, key or no key."""
        ...

    def count_refused(self, reason: str) -> None:
        """A connection was refused: `busy`, as too many wait, or `request`, which cannot be read."""
        ...


def response(status: str, body: bytes, *headers: str) -> bytes:
    """A whole HTTP response, after which the connection is closed."""
    lines = [
        f"HTTP/1.1 {status}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def bodiless(head: bytes, answer: bytes) -> bytes:
    """The answer to a request with this head: without its body if HEAD was asked for."""
    return b"".join(answer.partition(_HEAD_END)[:2]) if head.startswith(b"HEAD ") else answer


class PendingConnection:
    """A connection that has not had its turn. `begin` takes it over, with its head and what came behind that."""

    __slots__ = ("_begin", "_body", "_deadline", "_head", "_queue", "_sent", "transport")

    def __init__(
        self,
        queue: "HandshakeQueue",
        transport: asyncio.Transport,
        begin: Callable[[bytes, bytes], None],
        deadline: asyncio.TimerHandle,
    ) -> None:
        self.transport = transport
        self._queue = queue
        self._begin: Callable[[bytes, bytes], None] | None = begin
        self._sent = bytearray()
        self._head: int | None = None
        self._body = 0
        self._deadline = deadline

    @property
    def size(self) -> int:
        """Of everything that has come."""
        return len(self._sent)

    def feed(self, data: bytes) -> None:
        """More has come. What came before is not looked at again, or single bytes would cost the most."""
        looked_at = max(0, self.size - (_END_BYTES - 1))
        self._sent += data
        if self._head is not None:
            if self.size > HEAD_BYTES + BODY_BYTES:
                self._queue.refuse(self)
            return
        end = _END.search(self._sent, looked_at)
        if end is not None:
            self._head, self._body = end.span()
        self._queue.received(self)

    @property
    def asked(self) -> bool:
        """Whether a whole head has come."""
        return self._head is not None

    @property
    def head_size(self) -> int:
        """Of what has come of the head, without its end."""
        return self.size if self._head is None else self._head

    @property
    def head(self) -> bytes:
        """The head, without its end."""
        return bytes(self._sent[: self._head])

    def begin(self) -> None:
        """It is its turn."""
        self._deadline.cancel()
        begin, self._begin = self._begin, None
        assert begin is not None
        sent, self._sent = bytes(self._sent), bytearray()
        begin(sent[: self._body], sent[self._body :])

    def leave(self) -> None:
        """It is gone, or has to go: nothing more is done for it."""
        self._deadline.cancel()
        self._begin = None
        self._queue.remove(self)


class HandshakeQueue:
    """See the module. One for each event loop; `close` cuts off all that still wait.

    `seconds` is how long a connection may take, to ask and to have its turn.
    """

    def __init__(
        self, per_second: float, seconds: float, screening: Screening, retry_after_seconds: int = 1
    ) -> None:
        self._bucket = Bucket(per_second, max(1.0, per_second * BURST_SECONDS))
        self._seconds = seconds
        self.screening = screening
        """Whom it asks; also told of what those refuse that have had their turn."""
        self._busy = response(
            "503 Service Unavailable",
            b'{"error":"busy","message":"too many connections at once; try again shortly"}\n',
            f"Retry-After: {retry_after_seconds}",
        )
        self._too_long = response(
            "431 Request Header Fields Too Large",
            b'{"error":"request","message":"send a shorter head"}\n',
        )
        self._loop = asyncio.get_running_loop()
        self._silent: dict[PendingConnection, None] = {}
        self._with_key: dict[PendingConnection, None] = {}
        self._without_key: dict[PendingConnection, None] = {}
        self._turns = 0
        self._ticking: asyncio.TimerHandle | None = None
        self._refused = 0
        self._logged_at: float | None = None

    @property
    def waiting(self) -> int:
        """How many connections there are that have not had their turn."""
        return len(self._silent) + len(self._with_key) + len(self._without_key)

    @property
    def crowded(self) -> bool:
        """Whether somebody waits for a turn."""
        return bool(self._with_key or self._without_key)

    def add(
        self, transport: asyncio.Transport, begin: Callable[[bytes, bytes], None]
    ) -> PendingConnection:
        """Have a new connection wait. `begin` is called when it is its turn, with what it has sent."""
        if len(self._silent) >= MAX_SILENT:
            self.refuse(next(iter(self._silent)))
        deadline = self._loop.call_later(self._seconds, transport.abort)
        pending = PendingConnection(self, transport, begin, deadline)
        self._silent[pending] = None
        return pending

    def spend(self) -> bool:
        """Count a request on a connection that has had its turn; true if it is beyond the rate."""
        return self._bucket.spend(1, clock()) > 0

    def received(self, pending: PendingConnection) -> None:
        """Something has come on a connection whose head was not complete."""
        if pending.head_size > HEAD_BYTES:
            self.screening.count_refused("request")
            self._answer(pending, self._too_long)
            return
        if not pending.asked:
            return
        if not self.crowded and self._bucket.take(clock()):
            self.remove(pending)
            pending.begin()
            return
        head = pending.head
        page = self.screening.immediate_response(head)
        if page is not None:
            self._answer(pending, page)
            return
        has_key = self.screening.has_valid_key(head)
        line = self._with_key if has_key else self._without_key
        if len(line) >= MAX_WAITING or pending.size > HEAD_BYTES + BODY_BYTES:
            self.refuse(pending)
            return
        self.remove(pending)
        line[pending] = None
        self._tick_later()

    def refuse(self, pending: PendingConnection) -> None:
        """Tell a client to try again later."""
        self.screening.count_refused("busy")
        self._refused += 1
        now = clock()
        if self._logged_at is None or now - self._logged_at >= LOG_SECONDS:
            _log.warning("too many connections at once", extra={"refused": self._refused})
            self._logged_at, self._refused = now, 0
        self._answer(pending, self._busy)

    def remove(self, pending: PendingConnection) -> None:
        """It does not wait any more."""
        for line in (self._silent, self._with_key, self._without_key):
            line.pop(pending, None)

    def close(self) -> None:
        """Cut off all that wait."""
        if self._ticking is not None:
            self._ticking.cancel()
        for pending in (*self._silent, *self._with_key, *self._without_key):
            pending.leave()
            pending.transport.abort()

    def _answer(self, pending: PendingConnection, answer: bytes) -> None:
        pending.leave()
        pending.transport.write(bodiless(pending.head, answer))
        pending.transport.close()

    def _tick_later(self) -> None:
        if self._ticking is None and self.crowded:
            self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        now = clock()
        while self.crowded and self._bucket.take(now):
            self._turns += 1
            without_key_first = self._turns % WITHOUT_KEY_EVERY == 0
            line = self._without_key if without_key_first or not self._with_key else self._with_key
            pending = next(iter(line or self._with_key))
            self.remove(pending)
            pending.begin()
        self._tick_later()
