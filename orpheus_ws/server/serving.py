"""The server: who is connected, what each conversation is given, and how all of it ends.

Rule: it opens no port; whatever lets somebody in hands over a peer who has a slot.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable
from typing import Final

from websockets.asyncio.server import ServerConnection

from orpheus_ws import logs, pcm
from orpheus_ws import messages as m
from orpheus_ws.capacity import Capacity
from orpheus_ws.config import Config
from orpheus_ws.context import Moved, Silence
from orpheus_ws.errors import EngineFailed, Internal, OrpheusError
from orpheus_ws.keys import Key, KeyRing
from orpheus_ws.metrics import Metrics
from orpheus_ws.server.access_control import AccessControl, traceparent
from orpheus_ws.server.admission import Admission, abandoned_after, sockets_for
from orpheus_ws.server.connection import Connection
from orpheus_ws.server.handshake import AdmittedConnection
from orpheus_ws.server.handshake_queue import HandshakeQueue
from orpheus_ws.server.health import Health
from orpheus_ws.server.outbox import Outbox
from orpheus_ws.server.parts import Parts
from orpheus_ws.server.peer import Peer
from orpheus_ws.server.ports import Address
from orpheus_ws.server.quotas import Quotas
from orpheus_ws.server.reload import Reloading, sources
from orpheus_ws.server.tcp import tune
from orpheus_ws.server.tls import Certificate
from orpheus_ws.server.tls_queue import TlsQueue
from orpheus_ws.server.turns import Turns
from orpheus_ws.server.websocket import WebSocketPeer, close_code
from orpheus_ws.session import Allowance, Session
from orpheus_ws.surfaces import Routes
from orpheus_ws.synthesis import Synthesis
from orpheus_ws.trace import clock
from orpheus_ws.tracing import Tracer

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
        certificate: Certificate | None,
    ) -> None:
        self.config = config
        self.routes = routes
        engine, codec, self.capacity = parts
        self.engine, self.codec = engine, codec
        self.metrics = metrics
        self.tracer = tracer
        self.turns = Turns(engine.capacity)
        self.admission = Admission(
            sockets_for(engine.capacity, config.server.oversubscription),
            abandoned_after(config.server.ping_seconds),
        )
        self.synthesis = Synthesis(engine, codec, metrics)
        self.health = Health(engine, codec, self.admission)
        self.access_control = self._access_control(keys)
        self.handshake_queue = self._handshake_queue()
        self.tls_queue = None if certificate is None else self._tls_queue(certificate)
        """Of the ports of sockets and of HTTP, where they speak TLS."""
        self.address: Address
        """There once the ports are open."""
        self.quotas = self._quotas(keys)
        self.reloading = Reloading(
            sources(config, self.rekey, certificate and self.certify), metrics
        )
        self._connections: set[Connection] = set()
        self._sockets: dict[Connection, Key] = {}
        self._outbox = Outbox()
        self._empty = asyncio.Event()
        self._empty.set()
        self._dead = asyncio.Event()
        self._show()

    def _access_control(self, keys: KeyRing) -> AccessControl:
        return AccessControl(
            server=self.config.server,
            access=self.config.auth,
            keys=keys,
            admission=self.admission,
            health=self.health,
            capacity=Capacity(self.engine.capacity, self.capacity.source),
            metrics=self.metrics,
        )

    def _handshake_queue(self) -> HandshakeQueue:
        server = self.config.server
        return HandshakeQueue(
            server.handshakes_per_second,
            server.handshake_seconds,
            self.access_control,
            server.retry_after_seconds,
        )

    def _quotas(self, keys: KeyRing) -> Quotas:
        metrics = self.metrics
        return Quotas(
            keys,
            lambda name, limit: metrics.key_limited.labels(name, limit).inc(),
            lambda name, chars: metrics.key_characters.labels(name).inc(chars),
        )

    def _tls_queue(self, certificate: Certificate) -> TlsQueue:
        self.metrics.certificate_ends.set(certificate.ends.timestamp())
        return TlsQueue(certificate.context, self.config.server, self.access_control)

    def _show(self) -> None:
        """Have everything in the metrics that is looked at when they are asked for."""
        config, engine, codec, metrics = self.config, self.engine, self.codec, self.metrics
        metrics.show_keys(self.access_control.keys.tenants)
        metrics.set_capacity(engine.capacity, self.capacity.source)
        metrics.sockets.set_function(lambda: self.admission.active)
        metrics.sockets_admitted.set(self.admission.capacity)
        metrics.watch_turns(lambda: self.turns.taken, lambda: self.turns.waiting)
        metrics.drain_limit.set(config.server.drain_seconds)
        metrics.watch_parts(engine=lambda: engine.alive, codec=lambda: codec.alive)
        metrics.watch_process(logs.dropped)
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
        assert socket.request is not None
        connection = self.converse(
            peer,
            socket.key,
            traceparent(socket.request.headers),
            silence=socket.surface.silence,
        )
        socket.serving = connection
        self._sockets[connection] = socket.key
        if socket.key not in self.access_control.keys:  # removed since the handshake
            connection.leave(*_REMOVED)
        try:
            await self.serve(connection)
        finally:
            socket.serving = None
            del self._sockets[connection]
            self.metrics.socket_closes.labels(close_code(socket)).inc()

    def converse(
        self,
        peer: Peer,
        key: Key,
        traceparent: str | None,
        *,
        silence: Silence,
    ) -> Connection:
        """A conversation with somebody who has a slot and this key.

        `traceparent` is what came with the request, in whatever form; `silence` as in `Surface`.
        """
        allowance = self.quotas.of(key.tenant)
        return Connection(
            peer,
            open_session=lambda moved: self._open_session(moved, allowance, silence=silence),
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
        self.access_control.keys = keys
        self.quotas.renew(keys)
        self.metrics.show_keys(keys.tenants)
        for connection, key in self._sockets.items():
            if key not in keys:
                connection.leave(*_REMOVED)

    def certify(self, certificate: Certificate) -> None:
        """Handshakes that begin from now on are with this certificate."""
        assert self.tls_queue is not None
        self.tls_queue.certify(certificate.context)
        self.metrics.certificate_ends.set(certificate.ends.timestamp())

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

    def _open_session(self, moved: Moved, allowance: Allowance, *, silence: Silence) -> Session:
        return Session(
            voices=self.engine.voices,
            limits=self._limits,
            context_idle_seconds=self.config.limits.context_idle_seconds,
            new_seed=lambda: secrets.randbelow(2**31),
            moved=moved,
            allowance=allowance,
            silence=silence,
        )

    @property
    def _limits(self) -> m.Limits:
        limits = self.config.limits
        return m.Limits(
            contexts=limits.contexts,
            text_chars=limits.text_chars,
            message_bytes=limits.message_bytes,
            messages_per_second=limits.messages_per_second,
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
