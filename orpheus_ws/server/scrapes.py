"""The port of the metrics: an event loop on a thread of its own, so that scrapes work while the server's
does not.

Rule: a scrape is one response to one request. It waits in a queue like that of the other ports, at a rate
that no Prometheus comes near, because what it costs is taken from the interpreter that speaks. Whether the
server's event loop turns is told here as well, without TLS and however many wait at the other ports.
"""

import asyncio
import functools
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Final, cast

from prometheus_client import CollectorRegistry, make_wsgi_app

from orpheus_ws.server.access_control import ALIVE, ALIVE_PATHS, target
from orpheus_ws.server.handshake_queue import (
    BACKLOG,
    HandshakeQueue,
    PendingConnection,
    bodiless,
    response,
)

SCRAPES_PER_SECOND: Final = 10
"""A page takes some 3 ms to write, so this is 3 % of a core. Prometheus asks every 15 s or so."""
SCRAPE_SECONDS: Final = 10.0
"""How long a scraper may take to ask and to read: Prometheus gives up after as long by default."""

STOPPED_SECONDS: Final = 4.0
"""An event loop that has stood still for so long answers nobody: a probe there would have given up at 5 s."""

_STOPPED: Final = response("503 Service Unavailable", b'{"alive":false}\n')

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Scrapes:
    """The thread. Raises `OSError` where the port cannot be had.

    `late` says for how many seconds the server's event loop has not turned though it should.
    """

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, late: Callable[[], float]
    ) -> None:
        self._late = late
        self._page = cast(WsgiApp, make_wsgi_app(registry))
        self._loop = _new_event_loop()
        try:
            self._server = self._loop.run_until_complete(self._listen(host, port))
        except BaseException:
            self._loop.close()
            raise
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        self._handshake_queue = HandshakeQueue(
            SCRAPES_PER_SECOND, SCRAPE_SECONDS, _Screening(self._late)
        )
        factory = functools.partial(_Scrape, self._handshake_queue, self._respond)
        return await self._loop.create_server(factory, host, port, backlog=BACKLOG)

    def _respond(self, sent: bytes) -> bytes:
        return _health(sent, self._late) or _respond(self._page, sent)

    def _run(self) -> None:
        self._loop.run_forever()
        self._server.close()
        self._handshake_queue.close()
        # What was cut off is told so in the next turn.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def close(self) -> None:
        """Answer nobody any more. Waits for the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Screening:
    """No key is asked for here, and one page costs nothing."""

    def __init__(self, late: Callable[[], float]) -> None:
        self._late = late

    def has_valid_key(self, head: bytes) -> bool:
        return False

    def immediate_response(self, head: bytes) -> bytes | None:
        return _health(head, self._late)

    def count_refused(self, reason: str) -> None:
        """The registry belongs to another thread's loop; the log has it."""


class _Scrape(asyncio.Protocol):
    def __init__(self, handshake_queue: HandshakeQueue, respond: Callable[[bytes], bytes]) -> None:
        self._handshake_queue = handshake_queue
        self._respond = respond
        self._pending: PendingConnection | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._pending = self._handshake_queue.add(self._transport, self._answer)

    def data_received(self, data: bytes) -> None:
        if self._pending is not None:
            self._pending.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pending is not None:
            self._pending.leave()
        if self._deadline is not None:
            self._deadline.cancel()

    def _answer(self, head: bytes, _behind: bytes) -> None:
        """Write it all, for a while; the library finds out which format is asked for."""
        self._pending = None
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(SCRAPE_SECONDS, self._transport.abort)
        self._transport.write(bodiless(head, self._respond(head)))
        self._transport.close()


def _health(sent: bytes, late: Callable[[], float]) -> bytes | None:
    """The answer to a question for the server's health; None: this is none."""
    if target(sent) not in ALIVE_PATHS:
        return None
    return ALIVE if late() < STOPPED_SECONDS else _STOPPED


def _respond(page: WsgiApp, sent: bytes) -> bytes:
    """The response to a request by a WSGI application that needs little of it."""
    request, *lines = sent.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    method = request.partition(" ")[0]
    path, _, query = target(sent).partition("?")
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}
    for line in lines:
        name, _, value = line.partition(":")
        environ["HTTP_" + name.upper().replace("-", "_")] = value.strip()
    head: list[str] = []

    def start(status: str, headers: list[tuple[str, str]]) -> None:
        head.append(f"HTTP/1.1 {status}")
        head.extend(f"{name}: {value}" for name, value in headers)

    try:
        body = b"".join(page(environ, start))
    except Exception:  # noqa: BLE001 - whatever does not fit in a request is the scraper's affair
        return f"HTTP/1.1 400 {HTTPStatus.BAD_REQUEST.phrase}\r\n\r\n".encode()
    head += [f"Content-Length: {len(body)}", "Connection: close"]
    return ("\r\n".join(head) + "\r\n\r\n").encode("latin-1") + body


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ModuleNotFoundError:  # not made for Windows
        return asyncio.SelectorEventLoop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
