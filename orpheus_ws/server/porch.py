"""Before the handshake queue, where it is TLS: whoever has connected waits here until its TLS handshake may begin.

Rule: TLS costs more than anything else that a stranger can ask for, so nothing of it exists for a
connection that has said nothing, and the others have their turn at the rate of the handshake queue. Nobody's key is
known yet, so all have one line, and whoever finds it full is cut off: without TLS there are no words to
refuse it with.
"""

import asyncio
import functools
import os
import socket
import ssl
from typing import Final, Protocol, cast

from orpheus_ws.config import ServerConfig
from orpheus_ws.server.bucket import Bucket
from orpheus_ws.server.chaff import Chaff, Sender
from orpheus_ws.server.handshake_queue import BURST_SECONDS, TICK_SECONDS, Screening
from orpheus_ws.server.websocket import CLOSE_SECONDS
from orpheus_ws.trace import clock

SILENT: Final = 128
"""Connections at once that have said nothing. One more, and the one that is silent for longest goes."""
LINE: Final = 64
"""Connections at once that wait for their turn: 0.32 s at 200 a second."""
SHAKING: Final = 64
"""TLS handshakes at once that are not over. One more, and the oldest is broken off: it has had 0.32 s at
200 a second, for its one round trip. All of them with those in the handshake queue, and the engine's sockets, fit
into the 1024 open files that many systems allow."""


class Visitor(Sender, Protocol):
    """What `create_server` makes for a connection: a protocol of asyncio's.

    Its `connection_made` is called once more with the transport of TLS, or its `connection_lost` if it
    never comes to that.
    """

    inside: bool
    """Whether `connection_made` was called with that."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        ...


class _Knock:
    """A connection without TLS yet."""

    __slots__ = ("deadline", "socket", "timer", "visitor")

    def __init__(
        self,
        visitor: Visitor,
        connected: socket.socket,
        deadline: float,
        timer: asyncio.TimerHandle | None = None,
    ) -> None:
        self.visitor = visitor
        self.socket = connected
        self.deadline = deadline
        self.timer = timer


class Porch:
    """See the module. One for each event loop; `close` cuts off everybody who is not inside."""

    def __init__(self, context: ssl.SSLContext, config: ServerConfig, screening: Screening) -> None:
        rate = config.handshakes_per_second
        self._context = context
        self._bucket = Bucket(rate, max(1.0, rate * BURST_SECONDS))
        self._seconds = config.handshake_seconds
        self._screening = screening
        self._chaff = Chaff()
        self._loop = asyncio.get_running_loop()
        self._silent: dict[_Knock, None] = {}
        self._line: dict[_Knock, None] = {}
        self._shaking: dict[asyncio.Task[None], None] = {}
        self._ticking: asyncio.TimerHandle | None = None

    def certify(self, context: ssl.SSLContext) -> None:
        """Handshakes that begin from now on are of this context."""
        self._context = context

    @property
    def waiting(self) -> int:
        """Connections that are not inside."""
        return len(self._silent) + len(self._line) + len(self._shaking)

    def arrive(self, transport: asyncio.Transport, visitor: Visitor) -> bool:
        """Take a connection over if TLS is still to come on it; whether that was so.

        What is sent stays with the kernel: nothing is read before TLS reads it.
        """
        if transport.get_extra_info("sslcontext") is not None:
            self._chaff.watch(visitor, transport)
            return False
        try:
            connected = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError:  # no more files may be open
            connected = None
        transport.set_protocol(asyncio.Protocol())
        transport.abort()
        if connected is None:
            visitor.connection_lost(None)
            return True
        connected.setblocking(False)
        if len(self._silent) >= SILENT:
            self._turn_away(next(iter(self._silent)))
        knock = _Knock(visitor, connected, clock() + self._seconds)
        knock.timer = self._loop.call_later(self._seconds, self._drop, knock)
        self._silent[knock] = None
        self._loop.add_reader(connected, self._heard, knock)
        return True

    def close(self) -> None:
        """Let nobody in any more."""
        self._chaff.close()
        if self._ticking is not None:
            self._ticking.cancel()
        for knock in (*self._silent, *self._line):
            self._drop(knock)
        for shaking in tuple(self._shaking):
            shaking.cancel()

    def _heard(self, knock: _Knock) -> None:
        """Something has come, if only the end."""
        self._loop.remove_reader(knock.socket)
        del self._silent[knock]
        self._line[knock] = None
        try:
            left = not knock.socket.recv(1, socket.MSG_PEEK)
        except OSError:
            left = True
        if left:
            self._drop(knock)
        elif len(self._line) == 1 and self._bucket.take(clock()):
            self._begin(knock)
        elif len(self._line) > LINE:
            self._turn_away(knock)
        else:
            self._tick_later()

    def _turn_away(self, knock: _Knock) -> None:
        self._screening.count_busy()
        self._drop(knock)

    def _drop(self, knock: _Knock) -> None:
        self._forget(knock)
        knock.socket.close()
        knock.visitor.connection_lost(None)

    def _forget(self, knock: _Knock) -> None:
        if knock.timer is not None:
            knock.timer.cancel()
        if knock in self._silent:
            self._loop.remove_reader(knock.socket)
            del self._silent[knock]
        self._line.pop(knock, None)

    def _tick_later(self) -> None:
        if self._ticking is None and self._line:
            self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        now = clock()
        while self._line and self._bucket.take(now):
            self._begin(next(iter(self._line)))
        self._tick_later()

    def _begin(self, knock: _Knock) -> None:
        """It is its turn."""
        self._forget(knock)
        if len(self._shaking) >= SHAKING:
            self._screening.count_busy()
            oldest = next(iter(self._shaking))
            del self._shaking[oldest]
            oldest.cancel()
        shaking = self._loop.create_task(self._shake(knock))
        self._shaking[shaking] = None
        shaking.add_done_callback(functools.partial(self._shook, knock))

    async def _shake(self, knock: _Knock) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: cast(asyncio.Protocol, knock.visitor),
                knock.socket,
                ssl=self._context,
                ssl_handshake_timeout=max(0.001, knock.deadline - clock()),
                ssl_shutdown_timeout=CLOSE_SECONDS,
            )
        except OSError as error:  # no TLS, or none in time, or gone
            # With asyncio's loop it refers to itself, and so would wait for the collector.
            error.__traceback__ = None

    def _shook(self, knock: _Knock, shaking: asyncio.Task[None]) -> None:
        """A handshake is over; its task may have ended before it began."""
        self._shaking.pop(shaking, None)
        if not knock.visitor.inside:
            knock.socket.close()
            knock.visitor.connection_lost(None)
