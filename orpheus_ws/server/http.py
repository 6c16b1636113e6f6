"""HTTP on a port of its own, in the same event loop: requests that are answered with speech.

Rule: a request holds a slot while it is answered, as a socket does, and is a conversation like any other.
Its body is read before it is refused, so that a client that is still sending hears why. uvicorn parses
and Starlette routes; what they have no limit for, a client that never finishes its request, is here.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import parse_qsl

import h11
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState
from websockets.datastructures import Headers

from orpheus_ws.config import AuthConfig, Config
from orpheus_ws.errors import OrpheusError
from orpheus_ws.keys import Key
from orpheus_ws.server import auth, entrance
from orpheus_ws.server.entrance import JSON_TYPE, Entrance, Refusal
from orpheus_ws.server.http_peer import CLOSE_SECONDS, HttpPeer
from orpheus_ws.server.ports import tls_arguments
from orpheus_ws.server.tcp import tune
from orpheus_ws.surfaces import HttpSurface, Opening, http_surfaces, our_refusal

HEAD_BYTES: Final = 16_384
"""How long a request's line and headers may be; longer ones are answered with 400."""
WRITE_BUFFER_BYTES: Final = 32_768
KEEP_ALIVE_SECONDS: Final = 150
"""An idle connection is closed after so long. Load balancers (60 s) and clients (LiveKit: 120 s) leave
earlier, so nobody sends a request to a server that closes in that instant."""

Serve = Callable[[HttpPeer, Key], Awaitable[None]]
"""Serve a conversation to its end, of whoever has the key."""


class HttpFront:
    """What is behind the port. `serve` gets everybody who was admitted."""

    def __init__(
        self,
        config: Config,
        doors: Entrance,
        voices: tuple[str, ...],
        serve: Serve,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._config = config
        self._entrance = doors
        self._voices = voices
        self._tls = tls
        self._peers: set[HttpPeer] = set()
        self._state = ServerState()
        self._listener: asyncio.Server | None = None
        self._surfaces = http_surfaces()
        self._speeches = {
            surface.name: _Speech(surface, config, doors, voices, serve, self._peers)
            for surface in self._surfaces
        }

    async def listen(self) -> int:
        """Open the port and return which it is. Raises `OSError`."""
        config = uvicorn.Config(
            _dated(self._application()),
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        config.load()
        server = self._config.server
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: _Protocol(config, self._state, server.handshake_seconds),
            server.host,
            server.http_port,
            **tls_arguments(self._tls, server),
        )
        return int(self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Admit nobody any more, cut off what is not answered yet, and close every connection."""
        self._entrance.admission.draining = True
        if self._listener is not None:
            self._listener.close()
        await asyncio.gather(*(peer.close(1001, "shutdown") for peer in self._peers))
        for protocol in self._protocols:
            protocol.shutdown()
        if closed := [protocol.closed for protocol in self._protocols]:
            await asyncio.wait(closed, timeout=CLOSE_SECONDS)
        for protocol in self._protocols:
            protocol.transport.abort()
            await protocol.closed
        await asyncio.gather(*self._state.tasks)

    @property
    def _protocols(self) -> list["_Protocol"]:
        return [each for each in self._state.connections if isinstance(each, _Protocol)]

    # Pages ---------------------------------------------------------------------------------------

    def _application(self) -> ASGIApp:
        plain = (*entrance.ALIVE_PATHS, *entrance.READY_PATHS, entrance.CAPACITY_PATH)
        routes = [Route(path, self._plain) for path in plain]
        for surface in self._surfaces:
            routes += [Route(path, self._page(surface, path)) for path in surface.pages]
            speech = self._speeches[surface.name]
            routes += [Route(path, speech, methods=["POST"]) for path in surface.paths]
        return Starlette(
            routes=routes,
            middleware=_cross_origin(self._config.auth),
            exception_handlers={HTTPException: self._unknown},
        )

    async def _plain(self, request: Request) -> Response:
        page = await self._entrance.page(request.url.path)
        assert page is not None
        status, body = page
        return _json(status, msgspec.json.encode(body) + b"\n")

    def _page(self, surface: HttpSurface, path: str) -> Callable[[Request], Awaitable[Response]]:
        async def page(request: Request) -> Response:
            key = self._entrance.identify(_headers(request), _target(request))
            if isinstance(key, Refusal):
                self._entrance.count(key, None)
                return _refused(surface, key)
            return _json(200, surface.pages[path](self._voices))

        return page

    async def _unknown(self, _request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        paths = " ".join(path for surface in self._surfaces for path in surface.paths)
        refusal = Refusal(error.status_code, "path", f"POST to one of {paths}", error.headers or {})
        self._entrance.count(refusal, None)
        body = our_refusal(refusal.status, refusal.reason, refusal.advice)
        return _json(refusal.status, body, refusal.headers)


class _Speech:
    """Answers the requests to one surface, as an ASGI application."""

    def __init__(
        self,
        surface: HttpSurface,
        config: Config,
        doors: Entrance,
        voices: tuple[str, ...],
        serve: Serve,
        peers: set[HttpPeer],
    ) -> None:
        self._surface = surface
        self._config = config
        self._entrance = doors
        self._voices = voices
        self._serve = serve
        self._peers = peers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)

        async def refuse(refusal: Refusal, key: Key | None = None) -> None:
            self._entrance.count(refusal, None if key is None else key.tenant)
            await _refused(self._surface, refusal)(scope, receive, send)

        try:
            body = await self._body(request)
        except ClientDisconnect:
            return
        if isinstance(body, Refusal):
            await refuse(body)
            return
        key = self._entrance.identify(_headers(request), _target(request))
        if isinstance(key, Refusal):
            await refuse(key)
            return
        try:
            reply = self._surface.open(self._opening(request), body)
        except OrpheusError as error:
            await refuse(Refusal(400, "request", str(error), code=error.code), key)
            return
        peer = HttpPeer(
            self._surface,
            reply,
            key.tenant,
            (receive, send),
            scope["state"]["transport"],
            self._config.server.write_seconds,
            self._entrance.admission.release,
        )
        refusal = self._entrance.admit(peer)
        if refusal is not None:
            await refuse(refusal, key)
            return
        await self._answer(peer, key)

    async def _body(self, request: Request) -> bytes | Refusal:
        """The whole body. Raises `ClientDisconnect`."""
        most, closing = self._config.limits.message_bytes, {"Connection": "close"}
        body = bytearray()
        try:
            async with asyncio.timeout(self._config.server.handshake_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        return Refusal(413, "request", f"send at most {most} bytes", closing)
        except TimeoutError:
            return Refusal(408, "request", "send the whole request at once", closing)
        return bytes(body)

    def _opening(self, request: Request) -> Opening:
        query = parse_qsl(request.url.query, keep_blank_values=True)
        return Opening(
            parameters=request.path_params,
            query=auth.without_secrets(query),
            headers=auth.without_secrets(_headers(request).raw_items()),
            subprotocol=None,
            voices=self._voices,
        )

    async def _answer(self, peer: HttpPeer, key: Key) -> None:
        self._peers.add(peer)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(peer.write())
                await self._serve(peer, key)
        finally:
            self._peers.discard(peer)
            self._entrance.admission.release(peer)


class _Protocol(H11Protocol):
    """A connection whose peer has to come to the end of what it sends, within `head_seconds`.

    The library limits how long nothing may come, but not how long a request may take to come.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState, head_seconds: float) -> None:
        super().__init__(config, state, {})
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._head_seconds = head_seconds
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the event loop."""
        super().connection_made(transport)
        tune(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        # Where an application finds the connection: each request gets a copy.
        self.app_state = {"transport": transport}
        self._expect(more=True)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        super().data_received(data)
        # A head of which a part has come, or a body of a request that was refused already.
        part, _ = self.conn.trailing_data
        begun = self.conn.their_state is h11.IDLE and bool(part)
        self._expect(more=begun or self.conn.our_state is h11.DONE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._expect(more=False)
        super().connection_lost(exc)
        self.closed.set_result(None)

    def _expect(self, *, more: bool) -> None:
        if not more and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif more and self._deadline is None:
            self._deadline = self.loop.call_later(self._head_seconds, self.transport.abort)


def _headers(request: Request) -> Headers:
    return Headers(
        [(name.decode("latin-1"), text.decode("latin-1")) for name, text in request.headers.raw]
    )


def _target(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}"


def _json(status: int, body: bytes, headers: Any = None) -> Response:
    return Response(body, status, headers, JSON_TYPE)


def _refused(surface: HttpSurface, refusal: Refusal) -> Response:
    told = refusal.code or refusal.reason
    body = surface.refusal(refusal.status, told, refusal.advice)
    return _json(refusal.status, body, refusal.headers)


def _cross_origin(access: AuthConfig) -> list[Middleware]:
    """What lets pages of other hosts ask, where `auth.allows_origin` lets them in."""
    if not access.origins and not access.keys and not access.file:
        return []
    cors = Middleware(
        CORSMiddleware,
        allow_origins=access.origins or ("*",),
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=("Retry-After", "X-Request-Id"),
    )
    return [cors]


def _dated(application: ASGIApp) -> ASGIApp:
    """Responses with the date, as RFC 9110 wants them."""

    async def dated(scope: Scope, receive: Receive, send: Send) -> None:
        async def start(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"date", formatdate(usegmt=True).encode()),
                ]
            await send(message)

        await application(scope, receive, start)

    return dated
