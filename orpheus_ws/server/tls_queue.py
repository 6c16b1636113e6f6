"""Before the handshake queue, where there is TLS: a new connection waits here until its TLS handshake may begin.

Rule: TLS costs more than anything else that somebody without a key can ask for, so nothing of it exists
for a connection that has said nothing, and the others have their turn at the rate of the handshake queue.
Nobody's key is known yet, so all have one line, and whoever finds it full is cut off: without TLS there
are no words to refuse it with.
"""

import asyncio
import functools
import os
import socket
import ssl
from typing import Final, Protocol, cast

from orpheus_ws.config import ServerConfig
from orpheus_ws.server.bucket import Bucket
from orpheus_ws.server.handshake_queue import BURST_SECONDS, TICK_SECONDS, Screening
from orpheus_ws.server.tls_flood import FloodGuard, Sender
from orpheus_ws.server.websocket import CLOSE_SECONDS
from orpheus_ws.trace import clock

MAX_SILENT: Final = 128
"""Connections at once that have said nothing. One more, and the one that is silent for longest goes."""
MAX_WAITING: Final = 64
"""Connections at once that wait for their turn: 0.32 s at 200 a second."""
MAX_HANDSHAKES: Final = 64
"""TLS handshakes at once that are not over. One more, and the oldest is broken off: it has had 0.32 s at
200 a second, for its one round trip. All of them with those in the handshake queue, and the engine's
sockets, fit into the 1024 open files that many systems allow."""


class Accepted(Sender, Protocol):
    """What `create_server` makes for a connection: a protocol of asyncio's.

    Its `connection_made` is called once more with the transport of TLS, or its `connection_lost` if it
    never comes to that.
    """

    established: bool
    """Whether `connection_made` was called with that."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        ...


class _Pending:
    """A connection without TLS yet."""

    __slots__ = ("accepted", "deadline", "socket", "timer")

    timer: asyncio.TimerHandle

    def __init__(self, accepted: Accepted, connected: socket.socket, deadline: float) -> None:
        self.accepted = accepted
        self.socket = connected
        self.deadline = deadline


class TlsQueue:
    """See the module. One for each event loop; `close` cuts off all without TLS yet."""

    def __init__(self, context: ssl.SSLContext, config: ServerConfig, screening: Screening) -> None:
        rate = config.handshakes_per_second
        self._context = context
        self._bucket = Bucket(rate, max(1.0, rate * BURST_SECONDS))
        self._seconds = config.handshake_seconds
        self._screening = screening
        self._flood_guard = FloodGuard()
        self._loop = asyncio.get_running_loop()
        self._silent: dict[_Pending, None] = {}
        self._line: dict[_Pending, None] = {}
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._ticking: asyncio.TimerHandle | None = None

    def certify(self, context: ssl.SSLContext) -> None:
        """Handshakes that begin from now on are of this context."""
        self._context = context

    @property
    def waiting(self) -> int:
        """Connections without TLS yet."""
        return len(self._silent) + len(self._line) + len(self._handshakes)

    def add(self, transport: asyncio.Transport, accepted: Accepted) -> bool:
        """Take a connection over if TLS is still to come on it; whether that was so.

        What is sent stays with the kernel: nothing is read before TLS reads it.
        """
        if transport.get_extra_info("sslcontext") is not None:
            self._flood_guard.watch(accepted, transport)
            return False
        try:
            connected = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError:  # no more files may be open
            connected = None
        transport.set_protocol(asyncio.Protocol())
        transport.abort()
        if connected is None:
            accepted.connection_lost(None)
            return True
        connected.setblocking(False)
        if len(self._silent) >= MAX_SILENT:
            self._refuse(next(iter(self._silent)))
        pending = _Pending(accepted, connected, clock() + self._seconds)
        pending.timer = self._loop.call_later(self._seconds, self._drop, pending)
        self._silent[pending] = None
        self._loop.add_reader(connected, self._readable, pending)
        return True

    def close(self) -> None:
        """Begin no handshake any more, and cut off all that wait for theirs or are at it."""
        self._flood_guard.close()
        if self._ticking is not None:
            self._ticking.cancel()
        for pending in (*self._silent, *self._line):
            self._drop(pending)
        for handshake in tuple(self._handshakes):
            handshake.cancel()

    def _readable(self, pending: _Pending) -> None:
        """Something has come, if only the end."""
        self._loop.remove_reader(pending.socket)
        del self._silent[pending]
        self._line[pending] = None
        try:
            left = not pending.socket.recv(1, socket.MSG_PEEK)
        except OSError:
            left = True
        if left:
            self._drop(pending)
        elif len(self._line) == 1 and self._bucket.take(clock()):
            self._begin(pending)
        elif len(self._line) > MAX_WAITING:
            self._refuse(pending)
        else:
            self._tick_later()

    def _refuse(self, pending: _Pending) -> None:
        self._screening.count_refused("busy")
        self._drop(pending)

    def _drop(self, pending: _Pending) -> None:
        self._remove(pending)
        pending.socket.close()
        pending.accepted.connection_lost(None)

    def _remove(self, pending: _Pending) -> None:
        pending.timer.cancel()
        if pending in self._silent:
            self._loop.remove_reader(pending.socket)
            del self._silent[pending]
        self._line.pop(pending, None)

    def _tick_later(self) -> None:
        if self._ticking is None and self._line:
            self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        now = clock()
        while self._line and self._bucket.take(now):
            self._begin(next(iter(self._line)))
        self._tick_later()

    def _begin(self, pending: _Pending) -> None:
        """It is its turn."""
        self._remove(pending)
        if len(self._handshakes) >= MAX_HANDSHAKES:
            self._screening.count_refused("busy")
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
        handshake = self._loop.create_task(self._handshake(pending))
        self._handshakes[handshake] = None
        handshake.add_done_callback(functools.partial(self._handshake_over, pending))

    async def _handshake(self, pending: _Pending) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: cast(asyncio.Protocol, pending.accepted),
                pending.socket,
                ssl=self._context,
                ssl_handshake_timeout=max(0.001, pending.deadline - clock()),
                ssl_shutdown_timeout=CLOSE_SECONDS,
            )
        except OSError as error:  # no TLS, or none in time, or gone
            # With asyncio's loop it refers to itself, and so would wait for the collector.
            error.__traceback__ = None

    def _handshake_over(self, pending: _Pending, handshake: asyncio.Task[None]) -> None:
        """A handshake is over; its task may have ended before it began."""
        self._handshakes.pop(handshake, None)
        if not pending.accepted.established:
            pending.socket.close()
            pending.accepted.connection_lost(None)
