"""Before a handshake: whoever has connected waits here, at next to no cost, until it may ask.

Rule: a connection costs a protocol's machinery only after its whole head has come and it is its turn.
Turns come at `server.handshakes_per_second`, whoever asks, so that a storm of connections takes no
more of the event loop than that and a few microseconds each. Those who show a valid key have a line of
their own, which is served first. Those for whom no line has room are refused with bytes that were made
beforehand. All ports of an event loop share one door.
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
SILENT: Final = 256
"""Connections at once whose head has not come. One more, and the one that is silent for longest is
closed: an honest client says what it wants within a round trip, and one that has come to stay must not
keep it out. In a storm of 2000 silent ones a second that leaves it 128 ms."""
LINE: Final = 128
"""Connections at once that wait for their turn in each line: 0.64 s at 200 a second. With `SILENT`
and the engine's sockets they fit into the 1024 open files that many systems allow."""
BURST_SECONDS: Final = 0.1
"""Of the rate, may come at once: 20 handshakes of half a millisecond. A virtual player has 80 ms."""
BACKLOG: Final = 64
"""Connections that the kernel keeps for one port while the event loop is at something else. The loop
takes them all in one turn, at some 0.1 ms each."""
TICK_SECONDS: Final = 0.01
STRANGERS_EVERY: Final = 4
"""One turn in so many is a stranger's, though somebody with a key waits."""
LOG_SECONDS: Final = 10.0
"""A storm is told to the log no oftener."""

_END: Final = re.compile(rb"\r?\n\r?\n")
_END_BYTES: Final = 4

_log = logging.getLogger("orpheus_ws.server")


class Porter(Protocol):
    """Who knows the guests."""

    def knows(self, head: bytes) -> bool:
        """Whether a request carries a valid key."""
        ...

    def page_now(self, head: bytes) -> bytes | None:
        """The whole response to a request that can be answered at once, key or no key."""
        ...

    def turned_away(self) -> None:
        """Somebody was refused."""
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


class Guest:
    """A connection that has not had its turn. `enter` takes it over, with what it has sent."""

    __slots__ = ("_deadline", "_door", "_enter", "_head", "_sent", "transport")

    def __init__(
        self,
        door: "Door",
        transport: asyncio.Transport,
        enter: Callable[[bytes], None],
        deadline: asyncio.TimerHandle,
    ) -> None:
        self.transport = transport
        self._door = door
        self._enter: Callable[[bytes], None] | None = enter
        self._sent = bytearray()
        self._head: int | None = None
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
                self._door.refuse(self)
            return
        end = _END.search(self._sent, looked_at)
        self._head = None if end is None else end.start()
        self._door.heard(self)

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

    def enter(self) -> None:
        """It is its turn."""
        self._deadline.cancel()
        enter, self._enter = self._enter, None
        assert enter is not None
        sent, self._sent = bytes(self._sent), bytearray()
        enter(sent)

    def leave(self) -> None:
        """It is gone, or has to go: nothing more is done for it."""
        self._deadline.cancel()
        self._enter = None
        self._door.forget(self)


class Door:
    """See the module. One for each event loop; `close` sends everybody away who still waits.

    `seconds` is how long a guest may take, to ask and to have its turn.
    """

    def __init__(
        self, per_second: float, seconds: float, porter: Porter, retry_after_seconds: int = 1
    ) -> None:
        self._bucket = Bucket(per_second, max(1.0, per_second * BURST_SECONDS))
        self._seconds = seconds
        self._porter = porter
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
        self._silent: dict[Guest, None] = {}
        self._known: dict[Guest, None] = {}
        self._strangers: dict[Guest, None] = {}
        self._turns = 0
        self._ticking: asyncio.TimerHandle | None = None
        self._refused = 0
        self._logged_at: float | None = None

    @property
    def waiting(self) -> int:
        """Guests there are."""
        return len(self._silent) + len(self._known) + len(self._strangers)

    @property
    def crowded(self) -> bool:
        """Whether somebody waits for a turn."""
        return bool(self._known or self._strangers)

    def arrive(self, transport: asyncio.Transport, enter: Callable[[bytes], None]) -> Guest:
        """Somebody has connected."""
        if len(self._silent) >= SILENT:
            self.refuse(next(iter(self._silent)))
        guest = Guest(self, transport, enter, self._loop.call_later(self._seconds, transport.abort))
        self._silent[guest] = None
        return guest

    def spend(self) -> bool:
        """Count a request on a connection that is in already; true if it is beyond the rate."""
        return self._bucket.spend(1, clock()) > 0

    def heard(self, guest: Guest) -> None:
        """A guest that was silent has said something."""
        if guest.head_size > HEAD_BYTES:
            self._answer(guest, self._too_long)
            return
        if not guest.asked:
            return
        if not self.crowded and self._bucket.take(clock()):
            self.forget(guest)
            guest.enter()
            return
        head = guest.head
        page = self._porter.page_now(head)
        if page is not None:
            self._answer(guest, page)
            return
        line = self._known if self._porter.knows(head) else self._strangers
        if len(line) >= LINE or guest.size > HEAD_BYTES + BODY_BYTES:
            self.refuse(guest)
            return
        self.forget(guest)
        line[guest] = None
        self._tick_later()

    def refuse(self, guest: Guest) -> None:
        """Tell a guest to come again."""
        self._porter.turned_away()
        self._refused += 1
        now = clock()
        if self._logged_at is None or now - self._logged_at >= LOG_SECONDS:
            _log.warning("too many connections at once", extra={"refused": self._refused})
            self._logged_at, self._refused = now, 0
        self._answer(guest, self._busy)

    def forget(self, guest: Guest) -> None:
        """A guest is none any more."""
        for line in (self._silent, self._known, self._strangers):
            line.pop(guest, None)

    def close(self) -> None:
        """Cut off whoever waits."""
        if self._ticking is not None:
            self._ticking.cancel()
        for guest in (*self._silent, *self._known, *self._strangers):
            guest.leave()
            guest.transport.abort()

    def _answer(self, guest: Guest, answer: bytes) -> None:
        guest.leave()
        guest.transport.write(answer)
        guest.transport.close()

    def _tick_later(self) -> None:
        if self._ticking is None and self.crowded:
            self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        now = clock()
        while self.crowded and self._bucket.take(now):
            self._turns += 1
            strangers_first = self._turns % STRANGERS_EVERY == 0
            line = self._strangers if strangers_first or not self._known else self._known
            guest = next(iter(line or self._known))
            self.forget(guest)
            guest.enter()
        self._tick_later()
