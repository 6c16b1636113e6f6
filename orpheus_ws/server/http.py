"""HTTP on a port of its own, in the same event loop: requests that are answered with speech.

Rule: a request holds a slot while it is answered, as a socket does, and is a conversation like any other.
Its body is read before it is refused, so that a client that is still sending hears why. uvicorn parses
and Starlette routes; what they have no limit for, a client that never finishes its request, is here.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from typing import Final
from urllib.parse import parse_qsl

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
from uvicorn.server import ServerState
from websockets.datastructures import Headers

from orpheus_ws.config import AuthConfig, Config
from orpheus_ws.errors import OrpheusError
from orpheus_ws.keys import Key
from orpheus_ws.server import auth
from orpheus_ws.server.access_control import (
    ALIVE_PATHS,
    CAPACITY_PATH,
    JSON_TYPE,
    READY_PATHS,
    AccessControl,
    Refusal,
    traceparent,
)
from orpheus_ws.server.handshake_queue import BACKLOG, HEAD_BYTES, HandshakeQueue
from orpheus_ws.server.http_peer import CLOSE_SECONDS, HttpPeer
from orpheus_ws.server.http_protocol import Protocol
from orpheus_ws.server.tls_queue import TlsQueue
from orpheus_ws.surfaces import HttpSurface, Opening, http_surfaces, our_refusal

KEEP_ALIVE_SECONDS: Final = 150
"""An idle connection is closed after so long. Load balancers (60 s) and clients (LiveKit: 120 s) leave
earlier, so nobody sends a request to a server that closes in that instant."""

_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTHS: Final = frozenset((b"content-length", b"transfer-encoding"))

Serve = Callable[[HttpPeer, Key, str | None], Awaitable[None]]
"""Serve a conversation to its end, of whoever has the key, with the request's `traceparent`."""


class HttpFront:
    """What is behind the port. `serve` gets everybody who was admitted."""

    def __init__(
        self,
        config: Config,
        access_control: AccessControl,
        handshake_queue: HandshakeQueue,
        voices: tuple[str, ...],
        serve: Serve,
        tls_queue: TlsQueue | None,
    ) -> None:
        self._config = config
        self._access_control = access_control
        self._handshake_queue = handshake_queue
        self._voices = voices
        self._tls_queue = tls_queue
        self._peers: set[HttpPeer] = set()
        self._state = ServerState()
        self._listener: asyncio.Server | None = None
        self._surfaces = http_surfaces()
        self._speeches = {
            surface.name: _Speech(surface, config, access_control, voices, serve, self._peers)
            for surface in self._surfaces
        }

    async def listen(self) -> int:
        """Open the port and return which it is. Raises `OSError`."""
        config = uvicorn.Config(
            _dated(self._readable(self._application()), self._handshake_queue),
            http=Protocol,
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
            lambda: Protocol(
                config,
                self._state,
                self._handshake_queue,
                self._tls_queue,
                server.handshake_seconds,
            ),
            server.host,
            server.http_port,
            backlog=BACKLOG,
        )
        return int(self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Admit nobody any more, cut off what is not answered yet, and close every connection."""
        self._access_control.admission.draining = True
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
    def _protocols(self) -> list[Protocol]:
        return [each for each in self._state.connections if isinstance(each, Protocol)]

    # Pages ---------------------------------------------------------------------------------------

    def _application(self) -> ASGIApp:
        plain = (*ALIVE_PATHS, *READY_PATHS, CAPACITY_PATH)
        routes = [Route(path, self._plain) for path in plain]
        for surface in self._surfaces:
            routes += [Route(path, self._page(surface, path)) for path in surface.pages]
            speech = self._speeches[surface.name]
            routes += [Route(path, speech, methods=["POST"]) for path in surface.paths]
        application = Starlette(
            routes=routes,
            middleware=_cross_origin(self._config.auth),
            exception_handlers={HTTPException: self._unknown},
        )
        # It would send clients to whatever they said that this host is called.
        application.router.redirect_slashes = False
        return application

    def _readable(self, application: ASGIApp) -> ASGIApp:
        """Refuse what h11 lets through: control characters in headers, and a body whose length is told twice over.

        Where such a body ends a proxy may see differently, and take a part of it for somebody's request.
        """

        async def readable(scope: Scope, receive: Receive, send: Send) -> None:
            if any(_CONTROL.search(value) for _, value in scope["headers"]):
                advice = "send headers without control characters"
            elif {name for name, _ in scope["headers"]} >= _LENGTHS:
                advice = "send either Content-Length or Transfer-Encoding"
            else:
                await application(scope, receive, send)
                return
            refusal = Refusal(400, "request", advice, {"Connection": "close"})
            self._access_control.count(refusal, None)
            await _refused(refusal)(scope, receive, send)

        return readable

    async def _plain(self, request: Request) -> Response:
        page = await self._access_control.page(request.scope["path"])
        assert page is not None
        status, body = page
        return _json(status, msgspec.json.encode(body) + b"\n")

    def _page(self, surface: HttpSurface, path: str) -> Callable[[Request], Awaitable[Response]]:
        async def page(request: Request) -> Response:
            key = self._access_control.identify(_headers(request), _target(request))
            if isinstance(key, Refusal):
                self._access_control.count(key, None)
                return _refused(key, surface.refusal)
            return _json(200, surface.pages[path](self._voices))

        return page

    async def _unknown(self, _request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        paths = " ".join(path for surface in self._surfaces for path in surface.paths)
        refusal = Refusal(error.status_code, "path", f"POST to one of {paths}", error.headers or {})
        self._access_control.count(refusal, None)
        return _refused(refusal)


class _Speech:
    """Answers the requests to one surface, as an ASGI application."""

    def __init__(
        self,
        surface: HttpSurface,
        config: Config,
        access_control: AccessControl,
        voices: tuple[str, ...],
        serve: Serve,
        peers: set[HttpPeer],
    ) -> None:
        self._surface = surface
        self._config = config
        self._access_control = access_control
        self._voices = voices
        self._serve = serve
        self._peers = peers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)

        async def refuse(refusal: Refusal, key: Key | None = None) -> None:
            self._access_control.count(refusal, None if key is None else key.tenant)
            await _refused(refusal, self._surface.refusal)(scope, receive, send)

        try:
            body = await self._body(request)
        except ClientDisconnect:
            return
        if isinstance(body, Refusal):
            await refuse(body)
            return
        key = self._access_control.identify(_headers(request), _target(request))
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
            self._access_control.admission.release,
        )
        refusal = self._access_control.admit(peer)
        if refusal is not None:
            await refuse(refusal, key)
            return
        await self._answer(peer, key, traceparent(_headers(request)))

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
        query = parse_qsl(request.scope["query_string"].decode("ascii"), keep_blank_values=True)
        return Opening(
            parameters=request.path_params,
            query=auth.without_secrets(query),
            headers=auth.without_secrets(_headers(request).raw_items()),
            subprotocol=None,
            voices=self._voices,
        )

    async def _answer(self, peer: HttpPeer, key: Key, traceparent: str | None) -> None:
        self._peers.add(peer)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(peer.write())
                await self._serve(peer, key, traceparent)
        finally:
            self._peers.discard(peer)
            self._access_control.admission.release(peer)


def _headers(request: Request) -> Headers:
    return Headers(
        [(name.decode("latin-1"), text.decode("latin-1")) for name, text in request.headers.raw]
    )


def _target(request: Request) -> str:
    # Not `request.url`: that is put together with what the client says of its host.
    return f"{request.scope['path']}?{request.scope['query_string'].decode('ascii')}"


def _json(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, headers, JSON_TYPE)


def _refused(refusal: Refusal, body: Callable[[int, str, str], bytes] = our_refusal) -> Response:
    """A refusal as a surface has it, or as we have it where no surface was asked for."""
    told = body(refusal.status, refusal.code or refusal.reason, refusal.advice)
    return _json(refusal.status, told, refusal.headers)


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


def _dated(application: ASGIApp, handshake_queue: HandshakeQueue) -> ASGIApp:
    """Responses with the date, as RFC 9110 wants them.

    While other connections wait, one request is all that a connection gets before it has to wait again.
    """

    async def dated(scope: Scope, receive: Receive, send: Send) -> None:
        closing = [(b"connection", b"close")] if handshake_queue.spend() else []

        async def start(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"date", formatdate(usegmt=True).encode()),
                    *closing,
                ]
            await send(message)

        await application(scope, receive, start)

    return dated
