"""One socket: opening it, reading it, and what its end means.

Rule: exceptions of other libraries end here. One task reads the socket and hands each message to the
utterance it belongs to, so that nobody who is slow keeps the others waiting. A connection that is
lost stays lost.
"""

import asyncio
import contextlib
import logging
import socket as socket_module
import ssl
from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import (
    ConnectionClosed,
    InvalidMessage,
    InvalidStatus,
    InvalidURI,
    WebSocketException,
)
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from orpheus_ws import messages as m
from orpheus_ws.errors import (
    BadMessage,
    ClientError,
    Disconnected,
    Refused,
    Unreachable,
    UtteranceFailed,
)
from orpheus_ws.wire.native import MsgpackWire

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Far above any audio message: 0.7 s of 48 kHz float is 134 kB."""

CLOSE_SECONDS: Final = 2.0
"""How long a server may take to acknowledge that its socket is closed."""

CLOSED: Final = "this client was closed; connect again"

Receiver = Callable[[m.ServerMessage | Exception], None]
"""Takes an utterance's messages as they come, and how it failed. May not block or raise."""

_WIRE: Final = MsgpackWire()
# At its lower levels the library logs the key and what is said.
_FRAMES_LOG: Final = logging.getLogger("orpheus_ws.client.frames")
_FRAMES_LOG.setLevel(logging.CRITICAL)


def check_url(url: str) -> None:
    """Raise `ClientError` if no server can be at this address."""
    try:
        parse_uri(url).host.encode("idna")  # as the resolver gets it
        fits = urlsplit(url).port != 0  # which the library takes for none
    except (InvalidURI, ValueError):
        fits = False
    if not fits:
        raise ClientError("the URL must be like ws://host:port/v1/tts")


async def open_connection(
    url: str,
    *,
    api_key: str | None,
    open_timeout: float,
    ssl_context: ssl.SSLContext | None = None,
) -> "Connection":
    """Open a socket and wait for the server's `ready`; cancelling leaves nothing open.

    Raises `Refused` when the server answers with an HTTP status, `Unreachable` when it does not
    answer, and `ClientError` when it cannot be talked to at all.
    """
    check_url(url)
    # Given without need it would be refused, and whoever moves to wss:// later is not to notice.
    tls: dict[str, Any] = {"ssl": ssl_context} if ssl_context and url.startswith("wss:") else {}
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        socket = await connect_websocket(
            url,
            additional_headers=headers,
            subprotocols=[Subprotocol(_WIRE.subprotocol)],
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            open_timeout=open_timeout,
            close_timeout=CLOSE_SECONDS,
            # A proxy from the environment is for other hosts.
            proxy=None if _is_loopback(url) else True,
            logger=_FRAMES_LOG,
            **tls,
        )
    except InvalidStatus as error:
        raise _refused(error) from error
    # A header that is there twice is a LookupError.
    except (OSError, ImportError, ValueError, LookupError, WebSocketException) as error:
        raise _failed(url, error) from error
    try:
        return Connection(socket, await _greeting(socket, open_timeout))
    except BaseException:
        socket.transport.abort()
        raise


class Connection:
    """An open socket. Get one from `open_connection`."""

    def __init__(self, socket: ClientConnection, ready: m.Ready) -> None:
        self.ready = ready
        """What the server offered on this socket."""
        self._socket = socket
        self._receivers: dict[str, Receiver] = {}
        self._draining = False
        self._lost: ClientError | None = None
        self._reader = asyncio.create_task(self._read())

    @property
    def usable(self) -> bool:
        """Whether new work may go here: it is open and the server has not announced to leave."""
        return self._lost is None and not self._draining and self._socket.state is State.OPEN

    @property
    def closed(self) -> bool:
        """Whether it has ended and everybody was told."""
        return self._reader.done()

    def enter(self, context: str, receiver: Receiver) -> None:
        """Hand what comes for `context` to `receiver`, and why the socket ended, once it has."""
        if self._lost is None:
            self._receivers[context] = receiver
        else:
            receiver(self._lost)

    def leave(self, context: str) -> None:
        """What still comes for `context` is dropped."""
        self._receivers.pop(context, None)

    async def send(self, message: m.ClientMessage) -> None:
        """Send one message; it is on its way before this first waits.

        Raises `Disconnected` when the socket has ended, `ClientError` when its server was a stranger.
        """
        try:
            await self._socket.send(_WIRE.encode_request(message))
        except ConnectionClosed as error:
            raise self._lost or _disconnected(error) from error

    async def close(self) -> None:
        """Close from this side: what is being spoken raises `Disconnected`. Idempotent."""
        self._lost = self._lost or Disconnected(CLOSED)
        await self._socket.close()
        await asyncio.wait([self._reader])

    async def _read(self) -> None:
        """Hand messages over until the socket closes; never raises."""
        try:
            while True:
                self._route(_WIRE.decode_reply(await self._socket.recv(decode=None)))
        except ConnectionClosed as error:
            self._lost = self._lost or _disconnected(error)
        except BadMessage:
            self._lost = ClientError("the server sent something that is not the protocol")
        finally:
            lost = self._lost or Disconnected("the connection was lost")
            self._lost = lost
            for receiver in list(self._receivers.values()):
                receiver(lost)
            await self._socket.close()

    def _route(self, message: m.ServerMessage) -> None:
        match message:
            case m.Draining():
                self._draining = True
            case m.Error(context=None):
                # The socket closes after a fatal one; say why to whoever was speaking.
                if message.fatal:
                    self._lost = Disconnected(f"{message.code}: {message.message}")
            case m.Error():
                error = UtteranceFailed(
                    f"{message.code}: {message.message}",
                    code=message.code,
                    retryable=message.retryable,
                    retry_after_ms=message.retry_after_ms,
                )
                self._deliver(message.context, error)
            case m.Ready() | m.Pong():
                pass
            case _:
                self._deliver(message.context, message)

    def _deliver(self, context: str | None, message: m.ServerMessage | Exception) -> None:
        receiver = self._receivers.get(context or "")
        if receiver is not None:
            receiver(message)


async def _greeting(socket: ClientConnection, seconds: float) -> m.Ready:
    stranger = "the server does not speak this protocol"
    try:
        async with asyncio.timeout(seconds):
            ready = _WIRE.decode_reply(await socket.recv(decode=None))
    except ConnectionClosed as error:
        raise Unreachable("the server closed the socket before it was ready") from error
    except TimeoutError as error:
        raise Unreachable("the server opened the socket and then said nothing") from error
    except BadMessage as error:
        raise ClientError(stranger) from error
    if not isinstance(ready, m.Ready):
        raise ClientError(stranger)
    return ready


def _failed(url: str, error: Exception) -> ClientError:
    """Why no socket could be opened, as far as the kind of error tells."""
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'wss' else 80)}"
    match error:
        case ConnectionRefusedError():
            return Unreachable(f"nothing listens at {where}: is the server running?")
        case socket_module.gaierror():
            return Unreachable(f"there is no host {parts.hostname}")
        case ssl.SSLError():
            return ClientError(
                f"TLS with {where} failed: is it a ws:// server, or its certificate unknown "
                "(ssl_context=, --ca or SSL_CERT_FILE)?"
            )
        case TimeoutError():
            other = ": is it a ws:// server?" if parts.scheme == "wss" else ""
            return Unreachable(f"{where} did not answer in time{other}")
        case InvalidMessage(__cause__=EOFError()) | ConnectionError():
            other = ": is it a wss:// server?" if parts.scheme == "ws" else ""
            return Unreachable(
                f"the connection to {where} was lost before the server answered{other}"
            )
        case OSError():
            return Unreachable(f"{where} cannot be reached: is the server running?")
        case _:
            return ClientError(
                f"what answers at {where} is no WebSocket server, or the key has odd characters"
            )


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


_Line = Annotated[str, msgspec.Meta(max_length=200, pattern=r"\A[ -~]*\Z")]


class _Refusal(msgspec.Struct):
    """The body of a refusal of our server's. What else answers seldom fits, and is not shown."""

    error: _Line
    message: _Line


def _refused(error: InvalidStatus) -> Refused:
    status = error.response.status_code
    # A proxy may have added one; and it may be a date, which is for clocks that agree.
    asked = error.response.headers.get_all("Retry-After")
    seconds = [float(value) for value in asked if value.isascii() and value.isdigit()]
    said: _Refusal | None = None
    with contextlib.suppress(msgspec.DecodeError, UnicodeError):
        said = msgspec.json.decode(error.response.body, type=_Refusal)
    if status == 401:
        # Here it is known better than there where a user of this client puts a key.
        advice = (
            "no valid key was sent, or the token is wrong or has expired "
            "(api_key=, --api-key or ORPHEUS_API_KEY)"
        )
    elif said is not None:
        advice = said.message
    else:
        advice = {
            200: "what answers is no WebSocket server; is it the right port?",
            403: "this origin is not allowed",
            404: "there is no speech at this path; it is usually /v1/tts",
            429: "too many streams with this key",
            503: "all streams are in use or the server is going away",
        }.get(status, "the server refused the handshake")
    return Refused(
        f"HTTP {status}: {advice}",
        status=status,
        reason=None if said is None else said.error,
        retry_after=max(seconds, default=None),
    )


def _disconnected(error: ConnectionClosed) -> Disconnected:
    close = error.rcvd
    if close is None:
        return Disconnected("the connection was lost")
    return Disconnected(
        f"the server closed the socket: {close.code} {close.reason}".rstrip(),
        close_code=close.code,
    )
