"""The server: one engine, one codec, many sockets.

Rule: this is where the parts are put together and taken apart, in an order that leaves nothing half
started: decoder before engine (it allocates first), a spoken probe before the port opens, and on the
way down admission first, sockets next, engine and codec last. When engine or codec dies, every open
context is told so once and every socket closed; nothing is restarted inside a process.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client import CollectorRegistry
from websockets.asyncio.server import Server as Listener
from websockets.asyncio.server import serve

from orpheus_ws.codec import weights_advice
from orpheus_ws.config import Config
from orpheus_ws.context import Silence
from orpheus_ws.errors import StartupError
from orpheus_ws.keys import read_keys
from orpheus_ws.metrics import Metrics
from orpheus_ws.named_parts import load_part
from orpheus_ws.server import auth, tls
from orpheus_ws.server.handshake import AdmittedConnection, Handshake
from orpheus_ws.server.handshake_queue import BACKLOG
from orpheus_ws.server.health import PROBE_SECONDS
from orpheus_ws.server.loop_monitor import monitoring
from orpheus_ws.server.page import Page
from orpheus_ws.server.parts import open_parts
from orpheus_ws.server.ports import Address, binding, serve_metrics, try_ports
from orpheus_ws.server.reload import look
from orpheus_ws.server.serving import Server
from orpheus_ws.server.websocket import CLOSE_SECONDS
from orpheus_ws.surfaces import Routes, http_surfaces, surfaces
from orpheus_ws.tracing import open_tracer

if TYPE_CHECKING:
    from orpheus_ws.server.http import HttpFront

__all__ = ["Address", "Server", "running"]

HARD_SIZE_FACTOR = 4
"""Up to this many times `message_bytes` a message is read and answered with a typed error; beyond
it the connection is failed with 1009 before the message is in memory."""

_log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def running(config: Config) -> AsyncIterator[Server]:
    """Start a server; it serves until the block is left, which closes what is open with 1001.

    Raises `StartupError` when a part cannot start or does not speak. Await `Server.drain` first to
    let open contexts finish.
    """
    auth.check_exposure(config.auth, config.server.host)
    seen = await asyncio.to_thread(look, config)
    keys = await asyncio.to_thread(read_keys, config.auth)
    asked_tls = tls.is_on(config.server)
    certificate = await asyncio.to_thread(tls.read, config.server) if asked_tls else None
    await try_ports(config.server)
    if advice := weights_advice(config.codec, config.engine.name):
        _log.warning(advice)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    routes = Routes(surfaces())
    asked = () if config.server.http_port is None else http_surfaces()
    names = [*routes.names, *(surface.name for surface in asked)]
    metrics = Metrics(CollectorRegistry(), surfaces=names)
    async with contextlib.AsyncExitStack() as stack:
        tracer = await open_tracer(config.tracing)
        stack.push_async_callback(tracer.close)
        parts = await open_parts(config, metrics, stack)
        server = Server(config, parts, metrics, tracer, routes, keys, certificate)
        await stack.enter_async_context(_beside(server.watch()))
        await stack.enter_async_context(_beside(server.reloading.watch(seen)))
        monitor = await stack.enter_async_context(monitoring(metrics))
        if not await server.health.probe():
            raise StartupError(
                "engine and codec started, but a test word gave no sound within "
                f"{PROBE_SECONDS:g} s"
            )
        metrics_port = await serve_metrics(config.server, metrics, monitor, stack)
        port = await _listen(server, stack)
        http_port = await _listen_http(server, stack)
        server.address = Address(
            config.server.host, port, metrics_port, http_port, tls=certificate is not None
        )
        yield server


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    watching = asyncio.create_task(work)
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        if not watching.cancelled():
            watching.result()


async def _listen(server: Server, stack: contextlib.AsyncExitStack) -> int:
    """Open the port; `stack` closes it and every socket."""
    config = server.config.server
    page = await asyncio.to_thread(Page, server.access_control) if config.page else None
    handshake = Handshake(server.access_control, server.routes, server.engine.voices, page)
    with binding(config.host, config.port, "server.port"):
        listener = await serve(
            server.serve_socket,
            config.host,
            config.port,
            process_request=handshake.request,
            process_response=handshake.response,
            select_subprotocol=handshake.subprotocol,
            create_connection=functools.partial(  # type: ignore[arg-type] # any factory will do
                AdmittedConnection,
                handshake_queue=server.handshake_queue,
                tls_queue=server.tls_queue,
                frames_per_second=server.config.limits.messages_per_second,
            ),
            compression=None,
            server_header=None,
            open_timeout=config.handshake_seconds,
            close_timeout=CLOSE_SECONDS,
            ping_interval=config.ping_seconds,
            ping_timeout=None,
            max_size=HARD_SIZE_FACTOR * server.config.limits.message_bytes,
            backlog=BACKLOG,
        )
    stack.push_async_callback(_close, server, listener)
    return int(listener.sockets[0].getsockname()[1])


async def _listen_http(server: Server, stack: contextlib.AsyncExitStack) -> int | None:
    """Open the port of HTTP, if one is wanted; `stack` closes it and what is not answered yet."""
    config = server.config.server
    if config.http_port is None:
        return None
    kind: type[HttpFront] = load_part("orpheus_ws.server", "http", "HttpFront", extra="http")
    front = kind(
        server.config,
        server.access_control,
        server.handshake_queue,
        server.engine.voices,
        lambda peer, key, traceparent: server.serve(
            server.converse(peer, key, traceparent, silence=Silence.ALWAYS)
        ),
        server.tls_queue,
    )
    stack.push_async_callback(front.close)
    with binding(config.host, config.http_port, "server.http_port"):
        return await front.listen()


async def _close(server: Server, listener: Listener) -> None:
    """Admit nobody any more, and close every socket with 1001."""
    server.admission.draining = True
    if server.tls_queue is not None:
        server.tls_queue.close()
    server.handshake_queue.close()
    listener.close(code=1001, reason="shutdown")
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await listener.wait_closed()
    except TimeoutError:
        # Peers that do not read do not see the close frame either.
        for socket in list(listener.all_connections):
            socket.transport.abort()
        await listener.wait_closed()
