"""What happens before a socket is open: routes, authentication, admission.

Rule: everything that can refuse a client refuses it here with an HTTP status; nothing is accepted
and then closed. The slot is reserved when the answer is certain to be 101, and given back when the
TCP connection is lost, whichever way that happens.
"""

import asyncio
import http
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import parse_qsl

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import InvalidMessage, NegotiationError
from websockets.http11 import Request, Response
from websockets.protocol import Event, State
from websockets.typing import Subprotocol

from orpheus_ws.errors import OrpheusError
from orpheus_ws.keys import Key
from orpheus_ws.server import auth
from orpheus_ws.server.access_control import JSON_TYPE, AccessControl, Refusal
from orpheus_ws.server.admission import Admission
from orpheus_ws.server.connection import Connection
from orpheus_ws.server.handshake_queue import (
    BODY_BYTES,
    HandshakeQueue,
    PendingConnection,
    response,
)
from orpheus_ws.server.inflow import Inflow
from orpheus_ws.server.page import Page
from orpheus_ws.server.tls_queue import TlsQueue
from orpheus_ws.surfaces import Opening, Routes, Surface, Translator, our_refusal
from orpheus_ws.surfaces.native import PATH
from orpheus_ws.trace import clock

MAX_UNSENT_BYTES: Final = 1_048_576
"""What we send waits far below this; only answers to pings that nobody reads grow beyond."""

_UNREADABLE: Final = response(
    "400 Bad Request",
    b'{"error":"request","message":"send a GET of HTTP/1.1 without a body, to open a WebSocket; speech over HTTP has '
    b'a port of its own, server.http_port"}\n',
)
"""The library itself answers nothing to a head that it cannot read, or with a body behind it."""


class AdmittedConnection(ServerConnection):
    """A connection that gives its slot back when it is lost, and may be evicted from it before.

    It waits in the `handshake_queue` first, and the library hears of it when its turn has come. With TLS it
    has waited in the `tls_queue` before.
    """

    admission: Admission | None = None
    """Who to give the slot back to; set when one is reserved."""
    key: Key | None = None
    """What the request carried; set before a slot is reserved."""
    surface: Surface | None = None
    """What is spoken at the path that was asked for."""
    parameters: Mapping[str, str] = {}
    """What the path has for the names of the route."""
    translator: Translator | None = None
    """Set before a slot is reserved."""
    serving: Connection | None = None
    """What serves it, from the handshake's end to its own."""
    established = False
    """See `Accepted`."""
    received = 0
    """See `Sender`."""
    lost = False
    _heard_at = 0.0
    _frames = 0
    _pending: PendingConnection | None = None
    _early: bytearray | None = None
    """What has come behind the request, until that is answered: the library would answer a ping in it first."""
    _inflow: Inflow | None = None

    def __init__(
        self,
        *options: Any,
        handshake_queue: HandshakeQueue,
        tls_queue: TlsQueue | None,
        frames_per_second: float,
        **named: Any,
    ) -> None:
        super().__init__(*options, **named)
        self._handshake_queue = handshake_queue
        self._tls_queue = tls_queue
        self._frames_per_second = frames_per_second

    @property
    def tenant(self) -> str:
        """See `Holder`."""
        assert self.key is not None
        return self.key.tenant

    @property
    def silent_since(self) -> float | None:
        """See `Holder`. Whatever arrives is a sign of life: a message, a pong, a part of either."""
        idle_since = None if self.serving is None else self.serving.idle_since
        return None if idle_since is None else max(idle_since, self._heard_at)

    @property
    def held_back(self) -> bool:
        """See `Sender`."""
        return self._inflow is not None and self._inflow.paused

    def evict(self) -> None:
        """See `Holder`."""
        assert self.serving is not None
        self.serving.leave(1001, "idle_evicted")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        transport = cast(asyncio.Transport, transport)  # uvloop's only behaves like one
        if self._tls_queue is not None and self._tls_queue.add(transport, self):
            return

        def begin(head: bytes, behind: bytes) -> None:
            self._pending = None
            self._early = bytearray()
            super(AdmittedConnection, self).connection_made(transport)
            self._inflow = Inflow(transport, self._take, self._frames_per_second)
            self.recv_messages.pause = self._inflow.pause_reading
            self.recv_messages.resume = self._inflow.resume_reading
            self._inflow.feed(head)
            self._follow(behind)

        self.established = True
        self._pending = self._handshake_queue.add(transport, begin)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._heard_at = clock()
        self.received += len(data)
        if self._pending is not None:
            self._pending.feed(data)
        elif self._inflow is not None:
            self._follow(data)

    def _follow(self, data: bytes) -> None:
        """Something has come behind the head."""
        assert self._inflow is not None
        if self._early is None:
            self._inflow.feed(data)
            return
        self._early += data
        if len(self._early) > BODY_BYTES:
            self.transport.abort()

    async def handshake(self, *arguments: Any, **named: Any) -> None:
        """Called by the library, to answer the request."""
        await super().handshake(*arguments, **named)
        early, self._early = self._early, None
        if early and self._inflow is not None and self.state is State.OPEN:
            self._inflow.feed(bytes(early))

    def _take(self, data: bytes) -> int:
        """See `Inflow`. The library answers pings without waiting for room to send."""
        self._frames = 0
        super().data_received(data)
        if self.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.transport.abort()
        return self._frames

    def send_data(self) -> None:
        """Called by the library when there is something to send, if only the end."""
        if self._early is not None and isinstance(self.protocol.handshake_exc, InvalidMessage):
            self._early = None  # the library takes no notice of it, however much it is
            self.transport.write(_UNREADABLE)
            self._handshake_queue.screening.count_refused("request")
        super().send_data()

    def process_event(self, event: Event) -> None:
        """Called by the library for the request and for each frame."""
        self._frames += 1
        super().process_event(event)

    def eof_received(self) -> None:
        """Called by the event loop when the peer has left. What it did not read is for nobody.

        asyncio would still write it, and a transport that has done so fails when it is aborted.
        """
        if self._pending is not None:
            return
        super().eof_received()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop exactly once for every accepted TCP connection."""
        self.lost = True
        if self._inflow is None:
            if self._pending is not None:
                self._pending.leave()
                self._pending = None
            # Never begun, so it never ended: it would refer to its protocol for ever.
            self.protocol.parser.close()
        else:
            self._inflow.stop()
            if self.admission is not None:
                self.admission.release(self)
            super().connection_lost(exc)
            for error in (exc, self.protocol.parser_exc, self.protocol.handshake_exc):
                if error is not None:
                    error.__traceback__ = None
        # What refers to itself waits for the collector, which would stop everybody for 100 ms once a
        # storm has left enough of it.
        self.protocol.select_subprotocol = _no_subprotocol  # type: ignore[assignment, method-assign]


class Handshake:
    """The callbacks of `websockets.serve`."""

    def __init__(
        self,
        access_control: AccessControl,
        routes: Routes,
        voices: tuple[str, ...],
        page: Page | None,
    ) -> None:
        self._access_control = access_control
        self._page = page
        self._routes = routes
        self._voices = voices

    async def request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer plain HTTP, refuse requests without a valid key; None lets the upgrade go on."""
        path = request.path.partition("?")[0]
        page = await self._access_control.page(path)
        if connection.protocol.eof_sent:
            # The client sends no more. The library has closed its side for that, and would fail in answering.
            connection.transport.abort()
            await asyncio.wait([connection.connection_lost_waiter])
            return self._refuse(connection, Refusal(400, "handshake", "send a request alone"))
        if page is not None:
            status, body = page
            return _answer(connection, status, msgspec.json.encode(body) + b"\n")
        if self._page is not None and "Upgrade" not in request.headers:
            found_there = self._page.answer(path, request.headers)
            if isinstance(found_there, Refusal):
                return self._refuse(connection, found_there)
            if found_there is not None:
                return found_there
        found = self._routes.find(path)
        if found is None:
            advice = (
                f"there is {PATH} here; docs/surfaces.md has the paths of other protocols, of which those over "
                "HTTP are at server.http_port"
            )
            return self._refuse(connection, Refusal(404, "path", advice))
        assert isinstance(connection, AdmittedConnection)
        connection.surface, connection.parameters = found
        key = self._access_control.identify(request.headers, request.path)
        if isinstance(key, Refusal):
            return self._refuse(connection, key)
        connection.key = key
        return None

    def response(
        self, connection: ServerConnection, request: Request, response: Response
    ) -> Response | None:
        """Reserve the slot of an upgrade that nothing else refuses; 503 when there is none."""
        if response.status_code != http.HTTPStatus.SWITCHING_PROTOCOLS:
            answer = self._explained(connection, response) or response
            if request.method == "HEAD":
                answer.body = b""
            return answer
        assert isinstance(connection, AdmittedConnection)
        if connection.lost:
            # The client left during the handshake. A slot taken now would never come back.
            return None
        try:
            connection.translator = self._translator(connection, request)
        except OrpheusError as error:
            return self._refuse(connection, Refusal(400, "request", str(error)))
        refusal = self._access_control.admit(connection)
        if refusal is not None:
            return self._refuse(connection, refusal)
        connection.admission = self._access_control.admission
        return None

    def subprotocol(
        self, connection: ServerConnection, offered: Sequence[Subprotocol]
    ) -> Subprotocol | None:
        """The client's first choice that the surface has; none offered means its default."""
        spoken = _surface(connection).subprotocols
        for name in offered:
            if name in spoken:
                return name
        if offered and spoken:
            raise NegotiationError(f"use one of the subprotocols {', '.join(spoken)}")
        return None

    def _translator(self, connection: AdmittedConnection, request: Request) -> Translator:
        query = request.path.partition("?")[2]
        opening = Opening(
            parameters=connection.parameters,
            query=auth.without_secrets(parse_qsl(query, keep_blank_values=True)),
            headers=auth.without_secrets(request.headers.raw_items()),
            subprotocol=connection.subprotocol,
            voices=self._voices,
        )
        return _surface(connection).open(opening)

    def _explained(self, connection: ServerConnection, response: Response) -> Response | None:
        """A refusal of the library's (no upgrade, no subprotocol in common) as one of ours."""
        if (
            response.status_code == http.HTTPStatus.OK
            or response.headers["Content-Type"] == JSON_TYPE
        ):
            return None
        advice = "open a WebSocket here"
        if isinstance(connection, AdmittedConnection) and connection.surface is not None:
            subprotocols = connection.surface.subprotocols
            advice += f", with the subprotocol {' or '.join(subprotocols)}" if subprotocols else ""
        names = ("Upgrade", "Allow")
        kept = {name: response.headers[name] for name in names if name in response.headers}
        # RFC 6455 wants it where that was what is wrong, and the library does not say it.
        kept["Sec-WebSocket-Version"] = "13"
        return self._refuse(connection, Refusal(response.status_code, "handshake", advice, kept))

    def _refuse(self, connection: ServerConnection, refusal: Refusal) -> Response:
        key = connection.key if isinstance(connection, AdmittedConnection) else None
        self._access_control.count(refusal, None if key is None else key.tenant)
        surface = connection.surface if isinstance(connection, AdmittedConnection) else None
        body = our_refusal if surface is None else surface.refusal
        response = _answer(
            connection, refusal.status, body(refusal.status, refusal.reason, refusal.advice)
        )
        response.headers.update(refusal.headers)
        return response


def _no_subprotocol(_offered: Sequence[Subprotocol]) -> None:
    """For a connection that is gone, whose handshake may still be under way."""


def _surface(connection: ServerConnection) -> Surface:
    assert isinstance(connection, AdmittedConnection)
    assert connection.surface is not None
    return connection.surface


def _answer(connection: ServerConnection, status: int, body: bytes) -> Response:
    response = connection.respond(http.HTTPStatus(status), body.decode())
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = JSON_TYPE
    return response
