"""The server: one engine, one codec, many sockets.

Rule: this is where the parts are put together and taken apart, in an order that leaves nothing half
started: decoder before engine (it allocates first), a spoken probe before the port opens, and on the
way down admission first, sockets next, engine and codec last. When engine or codec dies, every open
context is told so once and every socket closed; nothing is restarted inside a process.
"""

import asyncio
import contextlib
import logging
import random
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry
from websockets.asyncio.server import Server as Listener
from websockets.asyncio.server import ServerConnection, serve

from orpheus_ws import messages as m
from orpheus_ws import pcm
from orpheus_ws.capacity import Capacity
from orpheus_ws.codec import weights_advice
from orpheus_ws.config import Config
from orpheus_ws.context import Moved
from orpheus_ws.errors import EngineFailed, Internal, OrpheusError, StartupError
from orpheus_ws.keys import Key, KeyRing, read_keys
from orpheus_ws.metrics import Metrics
from orpheus_ws.named_parts import load_part
from orpheus_ws.server import auth, tls
from orpheus_ws.server.admission import Admission, abandoned_after, sockets_for
from orpheus_ws.server.connection import Connection
from orpheus_ws.server.entrance import Entrance
from orpheus_ws.server.handshake import AdmittedConnection, Handshake
from orpheus_ws.server.health import PROBE_SECONDS, Health
from orpheus_ws.server.outbox import Outbox
from orpheus_ws.server.parts import Parts, open_parts
from orpheus_ws.server.peer import Peer
from orpheus_ws.server.ports import Address, binding, serve_metrics, tls_arguments, try_ports
from orpheus_ws.server.quotas import Quotas
from orpheus_ws.server.reload import Reloading, sources
from orpheus_ws.server.tcp import tune
from orpheus_ws.server.turns import Turns
from orpheus_ws.server.websocket import CLOSE_SECONDS, WebSocketPeer, close_code, traceparent
from orpheus_ws.session import Allowance, Session
from orpheus_ws.surfaces import Routes, http_surfaces, surfaces
from orpheus_ws.synthesis import Synthesis
from orpheus_ws.trace import clock
from orpheus_ws.tracing import Tracer, open_tracer

HARD_SIZE_FACTOR = 4
"""Up to this many times `message_bytes` a message is read and answered with a typed error; beyond
it the connection is failed with 1009 before the message is in memory."""

RESTART_SPREAD_SECONDS: Final = 5.0
RESTART_SPREAD_SHARE: Final = 0.25
"""Of the drain's time. Idle sockets are closed at random moments of the shorter of the two, so that
their clients do not all come back in the same instant."""

_REMOVED: Final = (1008, "key_removed")

_log = logging.getLogger("orpheus_ws.server")


class Server:
    """A running server. Get one from `running`."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        metrics: Metrics,
        tracer: Tracer,
        routes: Routes,
        keys: KeyRing,
        context: ssl.SSLContext | None,
    ) -> None:
        self.context = context
        """Of TLS, on the ports of sockets and of HTTP."""
        self.config = config
        self.routes = routes
        self.engine, self.codec, self.capacity = engine, codec, _ = parts
        self.metrics = metrics
        self.tracer = tracer
        self.turns = Turns(engine.capacity)
        self.admission = Admission(
            sockets_for(engine.capacity, config.server.oversubscription),
            abandoned_after(config.server.ping_seconds),
        )
        self.synthesis = Synthesis(engine, codec, metrics)
        self.health = Health(engine, codec, self.admission)
        self.entrance = Entrance(
            server=config.server,
            access=config.auth,
            keys=keys,
            admission=self.admission,
            health=self.health,
            capacity=Capacity(engine.capacity, self.capacity.source),
            metrics=metrics,
        )
        self.address = Address(config.server.host, config.server.port, config.server.metrics_port)
        self.quotas = Quotas(
            keys,
            lambda name, limit: metrics.key_limited.labels(name, limit).inc(),
            lambda name, chars: metrics.key_characters.labels(name).inc(chars),
        )
        self.reloading = Reloading(sources(config, self.rekey, context), metrics)
        self._connections: set[Connection] = set()
        self._sockets: dict[Connection, Key] = {}
        self._outbox = Outbox()
        self._empty = asyncio.Event()
        self._empty.set()
        self._dead = asyncio.Event()
        metrics.show_keys(keys.tenants)
        metrics.set_capacity(engine.capacity, self.capacity.source)
        metrics.sockets.set_function(lambda: self.admission.active)
        metrics.sockets_admitted.set(self.admission.capacity)
        metrics.watch_turns(lambda: self.turns.taken, lambda: self.turns.waiting)
        metrics.drain_limit.set(config.server.drain_seconds)
        metrics.watch_parts(engine=lambda: engine.alive, codec=lambda: codec.alive)
        metrics.watch_process()
        metrics.watch_engine(engine.statistics)
        metrics.watch_codec(
            lambda: codec.statistics().streams, lambda: codec.statistics().busy_seconds
        )

    async def serve_socket(self, socket: ServerConnection) -> None:
        """Handle one accepted socket to its end."""
        assert isinstance(socket, AdmittedConnection)
        assert socket.surface is not None
        assert socket.translator is not None
        tune(socket.transport)
        assert socket.key is not None
        peer = WebSocketPeer(
            socket,
            socket.surface.name,
            socket.translator,
            self._outbox,
            self.config.limits.message_bytes,
        )
        connection = self.converse(peer, socket.key, traceparent(socket))
        socket.serving = connection
        self._sockets[connection] = socket.key
        if socket.key not in self.entrance.keys:  # removed since the handshake
            connection.leave(*_REMOVED)
        try:
            await self.serve(connection)
        finally:
            socket.serving = None
            del self._sockets[connection]
            self.metrics.socket_closes.labels(close_code(socket)).inc()

    def converse(self, peer: Peer, key: Key, traceparent: str | None = None) -> Connection:
        """A conversation with somebody who has a slot and this key.

        `traceparent` is what came with his request, in whatever form.
        """
        allowance = self.quotas.of(key.tenant)
        return Connection(
            peer,
            open_session=lambda moved: self._open_session(moved, allowance),
            synthesis=self.synthesis,
            turns=self.turns,
            health=self.health,
            metrics=self.metrics,
            tracer=self.tracer,
            server=self.config.server,
            limits=self.config.limits,
            key=key.tenant,
            traceparent=traceparent,
        )

    async def serve(self, connection: Connection) -> None:
        """Serve a conversation to its end, and let drain and death know of it until then."""
        self._connections.add(connection)
        self._empty.clear()
        try:
            await connection.run(self._ready())
        finally:
            self._connections.discard(connection)
            if not self._connections:
                self._empty.set()

    def rekey(self, keys: KeyRing) -> None:
        """Only these keys let somebody in from now on.

        A socket whose key is not among them takes no more text, speaks what it has and closes.
        """
        self.entrance.keys = keys
        self.quotas.renew(keys)
        self.metrics.show_keys(keys.tenants)
        for connection, key in self._sockets.items():
            if key not in keys:
                connection.leave(*_REMOVED)

    async def drain(self, uniform: Callable[[float, float], float] = random.uniform) -> int:
        """Admit nobody and wait until the open sockets are done, at most `drain_seconds`.

        Returns how many sockets still had an open context then; leaving `running` cuts them off.
        `uniform` draws when an idle socket is closed. Cancelling leaves the server draining.
        """
        self.admission.draining = True
        self.metrics.drains()
        seconds = self.config.server.drain_seconds
        spread = min(seconds * RESTART_SPREAD_SHARE, RESTART_SPREAD_SECONDS)
        _log.info("draining", extra={"sockets": len(self._connections), "seconds": seconds})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async with asyncio.TaskGroup() as tasks:
                    for connection in self._connections:
                        restart_at = clock() + uniform(0.0, spread)
                        tasks.create_task(connection.drain(int(seconds * 1000), restart_at))
                await self._empty.wait()
        cut_off = sum(connection.idle_since is None for connection in self._connections)
        _log.info("cut off" if cut_off else "drained", extra={"sockets_cut_off": cut_off})
        return cut_off

    async def wait_dead(self) -> None:
        """Return when engine or codec has died, and every socket was told so and closed."""
        await self._dead.wait()

    async def watch(self) -> None:
        """Wait for the death of engine or codec, and see every open context and socket off."""
        deaths = {
            asyncio.create_task(self.engine.wait_dead()),
            asyncio.create_task(self.codec.wait_dead()),
        }
        try:
            await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for death in deaths:
                death.cancel()
        cause: OrpheusError = Internal("the codec has died; try another server")
        if not self.engine.alive:
            cause = EngineFailed("the engine has died; try another server")
        _log.critical("dead", extra={"error": cause.code, "sockets": len(self._connections)})
        try:
            async with asyncio.TaskGroup() as tasks:
                for connection in self._connections:
                    tasks.create_task(connection.fail(cause))
        finally:
            self._dead.set()

    def _open_session(self, moved: Moved, allowance: Allowance) -> Session:
        return Session(
            voices=self.engine.voices,
            limits=self._limits,
            context_idle_seconds=self.config.limits.context_idle_seconds,
            new_seed=lambda: secrets.randbelow(2**31),
            moved=moved,
            allowance=allowance,
        )

    @property
    def _limits(self) -> m.Limits:
        limits = self.config.limits
        return m.Limits(
            contexts=limits.contexts,
            text_chars=limits.text_chars,
            message_bytes=limits.message_bytes,
            idle_seconds=limits.idle_seconds,
            session_seconds=limits.session_seconds,
        )

    def _ready(self) -> m.Ready:
        return m.Ready(
            session=secrets.token_hex(8),
            encodings=tuple(pcm.ENCODINGS),
            sample_rates=pcm.SAMPLE_RATES,
            voices=self.engine.voices,
            limits=self._limits,
        )


@contextlib.asynccontextmanager
async def running(config: Config) -> AsyncIterator[Server]:
    """Start a server; it serves until the block is left, which closes what is open with 1001.

    Raises `StartupError` when a part cannot start or does not speak. Await `Server.drain` first to
    let open contexts finish.
    """
    auth.check_exposure(config.auth, config.server.host)
    keys = await asyncio.to_thread(read_keys, config.auth)
    context = (
        await asyncio.to_thread(tls.read_context, config.server)
        if tls.is_on(config.server)
        else None
    )
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
        server = Server(config, parts, metrics, tracer, routes, keys, context)
        await stack.enter_async_context(_beside(server.watch()))
        await stack.enter_async_context(_beside(server.reloading.watch()))
        if not await server.health.probe():
            raise StartupError(
                "engine and codec started, but a test word gave no sound within "
                f"{PROBE_SECONDS:g} s"
            )
        metrics_port = serve_metrics(config.server, metrics, stack)
        port = await _listen(server, stack)
        http_port = await _listen_http(server, stack)
        server.address = Address(
            config.server.host, port, metrics_port, http_port, tls=context is not None
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
    handshake = Handshake(server.entrance, server.routes, server.engine.voices)
    with binding(config.host, config.port, "server.port"):
        listener = await serve(
            server.serve_socket,
            config.host,
            config.port,
            process_request=handshake.request,
            process_response=handshake.response,
            select_subprotocol=handshake.subprotocol,
            create_connection=AdmittedConnection,
            compression=None,
            server_header=None,
            open_timeout=config.handshake_seconds,
            **tls_arguments(server.context, config),
            ping_interval=config.ping_seconds,
            ping_timeout=None,
            max_size=HARD_SIZE_FACTOR * server.config.limits.message_bytes,
        )
    stack.push_async_callback(_close, server, listener)
    return int(listener.sockets[0].getsockname()[1])


async def _listen_http(server: Server, stack: contextlib.AsyncExitStack) -> int | None:
    """Open the port of HTTP, if one is wanted; `stack` closes it and what is not answered yet."""
    config = server.config.server
    if config.http_port is None:
        return None
    front = load_part("orpheus_ws.server", "http", "HttpFront", extra="http")(
        server.config,
        server.entrance,
        server.engine.voices,
        lambda peer, key: server.serve(server.converse(peer, key)),
        server.context,
    )
    stack.push_async_callback(front.close)
    with binding(config.host, config.http_port, "server.http_port"):
        port: int = await front.listen()
    return port


async def _close(server: Server, listener: Listener) -> None:
    """Admit nobody any more, and close every socket with 1001."""
    server.admission.draining = True
    listener.close(code=1001, reason="shutdown")
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await listener.wait_closed()
    except TimeoutError:
        # Peers that do not read do not see the close frame either.
        for socket in list(listener.all_connections):
            socket.transport.abort()
        await listener.wait_closed()
