"""One connection over HTTP, below the requests.

Rule: the one place that builds on the inside of uvicorn. A connection waits at the door first, what it
sends is taken a little at a time, and it has to come to the end of what it sends.
"""

import asyncio
from typing import Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from orpheus_ws.server.door import Door, Guest
from orpheus_ws.server.inflow import Inflow
from orpheus_ws.server.porch import Porch, Visitor
from orpheus_ws.server.tcp import tune

WRITE_BUFFER_BYTES: Final = 32_768


class Protocol(H11Protocol):
    """A connection whose peer has to come to the end of what it sends, within `head_seconds`.

    It is a guest at `door` first. The library limits how long nothing may come, but not how long a
    request may take to come; and only its parser knows what is still owed. It has no public way to
    ask, so this is the one place that builds on the inside of uvicorn, whose version is bounded for
    that.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        door: Door,
        porch: Porch | None,
        head_seconds: float,
    ) -> None:
        super().__init__(config, state, {})
        self._door = door
        self._porch = porch
        self.inside = False
        self._guest: Guest | None = None
        self._inflow: Inflow | None = None
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._head_seconds = head_seconds
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the event loop."""
        if self._porch is not None and self._porch.arrive(transport, cast(Visitor, self)):
            return

        def enter(sent: bytes) -> None:
            self._guest = None
            super(Protocol, self).connection_made(transport)
            tune(transport)
            transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
            # Where an application finds the connection: each request gets a copy.
            self.app_state = {"transport": transport}
            self._inflow = Inflow(transport, self._take)
            self.flow = FlowControl(cast(asyncio.Transport, self._inflow))
            self._inflow.feed(sent)

        self.inside = True
        self._guest = self._door.arrive(transport, enter)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._guest is not None:
            self._guest.feed(data)
        elif self._inflow is not None:
            self._inflow.feed(data)

    def _take(self, data: bytes) -> int:
        super().data_received(data)
        self._expect(more=self._owed)
        return 0

    def on_response_complete(self) -> None:
        """Called at the end of a response: a part of the next request may be here already."""
        super().on_response_complete()
        self._expect(more=self._owed)

    def send_400_response(self, msg: str) -> None:
        """Called for bytes that are no HTTP: in the rest of a body that was answered, too late for 400."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        if self._inflow is None:
            if self._guest is not None:
                self._guest.leave()
                self._guest = None
            return
        self._inflow.stop()
        self._expect(more=False)
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
