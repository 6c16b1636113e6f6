"""One connection over HTTP, below the requests.

Rule: the one place that builds on the inside of uvicorn. A connection waits in the handshake queue
first, what it sends is taken a little at a time, and it has to come to the end of what it sends.
"""

import asyncio
import sys
from typing import Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from orpheus_ws.server.handshake_queue import HandshakeQueue, PendingConnection
from orpheus_ws.server.inflow import Inflow
from orpheus_ws.server.tcp import TELLS, is_reset, tune
from orpheus_ws.server.tls_queue import Accepted, TlsQueue

WRITE_BUFFER_BYTES: Final = 32_768
LOOK_SECONDS: Final = 0.1
"""How often it is looked whether somebody who sends no more requests still listens."""


class Protocol(H11Protocol):
    """A connection whose peer has to come to the end of what it sends, within `head_seconds`.

    It waits in the `handshake_queue` first. The library limits how long nothing may come, but not how
    long a request may take to come; and only its parser knows what is still owed. It has no public way to
    ask, so this is the one place that builds on the inside of uvicorn, whose version is bounded for
    that.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        handshake_queue: HandshakeQueue,
        tls_queue: TlsQueue | None,
        head_seconds: float,
    ) -> None:
        super().__init__(config, state, {})
        self._handshake_queue = handshake_queue
        self._tls_queue = tls_queue
        self.established = False
        self.received = 0
        """See `Sender`."""
        self._pending: PendingConnection | None = None
        self._inflow: Inflow | None = None
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._head_seconds = head_seconds
        self._deadline: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        """There while the client has said that it sends no more, and is owed something."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the event loop."""
        if self._tls_queue is not None and self._tls_queue.add(transport, cast(Accepted, self)):
            return

        def begin(head: bytes, behind: bytes) -> None:
            self._pending = None
            super(Protocol, self).connection_made(transport)
            tune(transport)
            transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
            # Where an application finds the connection: each request gets a copy.
            self.app_state = {"transport": transport}
            self._inflow = Inflow(transport, self._take)
            self.flow = FlowControl(cast(asyncio.Transport, self._inflow))
            self._inflow.feed(head + behind)

        self.established = True
        self._pending = self._handshake_queue.add(transport, begin)

    @property
    def held_back(self) -> bool:
        """See `Sender`."""
        return self._inflow is not None and self._inflow.paused

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self.received += len(data)
        if self._pending is not None:
            self._pending.feed(data)
        elif self._inflow is not None:
            self._inflow.feed(data)

    def _take(self, data: bytes) -> int:
        super().data_received(data)
        self._expect(more=self._owed)
        return 0

    def _should_upgrade(self) -> bool:
        """Called for each request. Many offer HTTP/2, which HTTP lets us take no notice of."""
        return False

    def on_response_complete(self) -> None:
        """Called at the end of a response: a part of the next request may be here already."""
        super().on_response_complete()
        self._expect(more=self._owed)
        if self._looking is not None and not self._answering:
            self._looking.cancel()
            self._look()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Called by the event loop when the client sends no more; true: it may still listen.

        Somebody who has gone looks the same until something is written: the other system answers that
        with a reset. So an answer that has not begun is preceded by an interim response, which HTTP/1.1
        has for every purpose. Over TLS the event loop knows no half of a connection, and HTTP/1.0 has no
        interim responses: there the client counts as gone.
        """
        if self._inflow is None or self.scheme == "https" or not TELLS:
            return None
        if not self._answering and not self._inflow.holds:
            return None
        if self.conn.our_state is h11.SEND_RESPONSE:
            if self.conn.their_http_version == b"1.0":
                return None
            interim = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(interim))
        self._looking = self.loop.call_later(LOOK_SECONDS, self._look)
        return True

    def _look(self) -> None:
        """Whether somebody who sends no more is there, and is owed something."""
        assert self._inflow is not None
        if self.transport.is_closing():
            return
        if is_reset(self.transport):
            self.transport.abort()
        elif self._answering or self._inflow.holds:
            self._looking = self.loop.call_later(LOOK_SECONDS, self._look)
        else:
            self.transport.close()

    @property
    def _answering(self) -> bool:
        """Whether a request that is all there has not been answered to its end."""
        whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        return whole and self.cycle is not None and not self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        """Called for bytes that are no HTTP: in the rest of a body that was answered, too late for 400."""
        error = sys.exception()
        if error is not None:
            # h11's refers to itself, and so would wait for the collector.
            error.__traceback__ = None
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        if self._inflow is None:
            if self._pending is not None:
                self._pending.leave()
                self._pending = None
            return
        self._inflow.stop()
        self._expect(more=False)
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)
        self.closed.set_result(None)

    @property
    def _owed(self) -> bool:
        """A head of which a part has come, or the rest of a body that was answered already."""
        part, _ = self.conn.trailing_data
        begun = self.conn.their_state is h11.IDLE and bool(part)
        return begun or self.conn.our_state is h11.DONE

    def _expect(self, *, more: bool) -> None:
        if not more and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif more and self._deadline is None:
            self._deadline = self.loop.call_later(self._head_seconds, self.transport.abort)
