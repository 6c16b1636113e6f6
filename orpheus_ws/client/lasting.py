"""The client that an application keeps: one socket at a time, a fresh one when that is gone.

Rule: a socket is opened when somebody wants to speak, never merely because one was lost: a socket
holds one of the server's streams, and an idle client must not take one from those who speak. All who
wait for a socket wait for the same one, and when nobody waits any more the attempt ends.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count
from typing import Any, Final, TypedDict, Unpack

from msgspec import UNSET

from orpheus_ws import messages as m
from orpheus_ws.client.backoff import PATIENCE_SECONDS, Backoff
from orpheus_ws.client.connection import CLOSED, Connection, open_connection
from orpheus_ws.client.text import SpokenText, check_text
from orpheus_ws.client.utterance import Utterance
from orpheus_ws.errors import ClientError, Disconnected

OPEN_SECONDS: Final = 10.0
"""How long one attempt to open a socket may take."""

DEFAULT_BACKOFF: Final = Backoff()


class SpeakOptions(TypedDict, total=False):
    """How to speak; what is left out, or None, is the server's default."""

    voice: str | None
    encoding: str | None
    sample_rate: int | None
    sampling: m.Sampling | None
    segment: m.Segmentation | None
    lead_ms: int | None
    words: bool | None
    trace: bool | None
    traceparent: str | None


@contextlib.asynccontextmanager
async def connect(
    url: str,
    *,
    api_key: str | None = None,
    patience: float = PATIENCE_SECONDS,
    open_timeout: float = OPEN_SECONDS,
    backoff: Backoff = DEFAULT_BACKOFF,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncIterator["Client"]:
    """A client with an open socket, for as long as the block lasts; the end of it closes everything.

    When the socket is lost, closed, or about to be, the next utterance gets a fresh one. Opening,
    the first time too, is tried again for `patience` seconds if a moment later it may work: no
    answer, or HTTP 408, 429 or 5xx, waiting at least `Retry-After`. Then, or at once if it is not
    that kind, it raises `Refused` (with `status`, `reason` and `retry_after`), `Unreachable`, or
    `ClientError` when what answers does not speak the protocol. One attempt may take
    `open_timeout` seconds, the last one too. `patience=0` tries once. `ssl_context` says whose certificates are
    trusted at a `wss://` address; without it the system's are.
    """
    client = make_client(
        url,
        api_key=api_key,
        patience=patience,
        open_timeout=open_timeout,
        backoff=backoff,
        ssl_context=ssl_context,
    )
    try:
        await client.connection()
        yield client
    finally:
        await client.close()


def make_client(
    url: str,
    *,
    api_key: str | None = None,
    patience: float = PATIENCE_SECONDS,
    open_timeout: float = OPEN_SECONDS,
    backoff: Backoff = DEFAULT_BACKOFF,
    ssl_context: ssl.SSLContext | None = None,
) -> "Client":
    """The client of `connect` without a socket: the first utterance opens one, `close` ends it."""

    def attempt() -> Coroutine[Any, Any, Connection]:
        return open_connection(
            url, api_key=api_key, open_timeout=open_timeout, ssl_context=ssl_context
        )

    return Client(lambda: backoff.retry(attempt, patience))


class Client:
    """Speaks, on one socket at a time. Get one from `connect` or `make_client`. Not for several threads.

    Utterances are spoken one after the other in the order they start.
    """

    def __init__(self, open_connection: Callable[[], Coroutine[Any, Any, Connection]]) -> None:
        self._open_connection = open_connection
        self._numbers = count(1)
        self._connection: Connection | None = None
        self._connections: list[Connection] = []
        self._opening: _Shared | None = None
        self._closed = False

    @property
    def ready(self) -> m.Ready:
        """What the server offered last: voices, encodings, limits.

        Raises `ClientError` before the first socket: `connect` has opened one, `make_client` has not.
        """
        if self._connection is None:
            raise ClientError("no server was asked yet; await `connection()` first")
        return self._connection.ready

    @property
    def connected(self) -> bool:
        """Whether the next utterance finds an open socket."""
        return self._connection is not None and self._connection.usable

    def speak(self, text: SpokenText, **options: Unpack[SpeakOptions]) -> Utterance:
        """Prepare to speak `text`, whole or as it is written.

        Pieces are put together as they are, so they bring their own spaces; None among them, as
        language models' streams have it, is passed over. An ordinary iterator is read on a thread of
        its own. Nothing is sent before the utterance is iterated. A long text is handed over as it is
        spoken; more than `ready.limits.text_chars` characters without the end of a sentence are
        refused with `text_too_long`. Raises `ClientError` for what is no text.
        """
        check_text(text)
        given = {name: UNSET if value is None else value for name, value in options.items()}
        opening = m.Open(context=f"u{next(self._numbers)}", **given)  # type: ignore[arg-type]
        return Utterance(self.connection, opening, text)

    async def connection(self) -> Connection:
        """The socket to speak on, opened if need be. Raises what `connect` does.

        Cancelling leaves nothing behind, and does not disturb others who wait.
        """
        if self._closed:
            raise Disconnected(CLOSED)
        if self._connection is not None and self._connection.usable:
            return self._connection
        if self._opening is None or self._opening.over:
            self._opening = _Shared(self._open())
        return await self._opening.result()

    async def close(self) -> None:
        """Close every socket; what is being spoken, or waits to be, raises `Disconnected`."""
        self._closed = True
        if self._opening is not None:
            await self._opening.stop()
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def _open(self) -> Connection:
        connection = await self._open_connection()
        # The one before may still have something to say; its server closes it after that.
        self._connections = [old for old in self._connections if not old.closed]
        self._connections.append(connection)
        self._connection = connection
        return connection


class _Shared:
    """An attempt that several wait for; the last one to leave stops it."""

    def __init__(self, attempt: Coroutine[Any, Any, Connection]) -> None:
        self._task = asyncio.create_task(attempt)
        self._waiting = 0

    @property
    def over(self) -> bool:
        """Whether it has ended or is about to, so that waiting for it would be in vain."""
        return self._task.done() or self._task.cancelling() > 0

    async def result(self) -> Connection:
        self._waiting += 1
        try:
            await asyncio.wait([self._task])
        finally:
            self._waiting -= 1
            if not self._waiting:
                await self.stop()
        if self._task.cancelled():
            raise Disconnected(CLOSED)
        return self._task.result()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
