"""The client: one persistent socket, many utterances.

    async with connect("ws://127.0.0.1:8765/v1/tts", api_key=key) as client:
        async for chunk in client.speak("Hello there."):
            play(chunk.pcm)

Rule: it imports the wire and nothing heavier, so it installs anywhere. One task reads the socket and
hands each message to the utterance it belongs to. Leaving an utterance's loop early, or cancelling
the task that runs it, cancels the utterance on the server.
"""

import asyncio
import contextlib
import socket as socket_module
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from itertools import count
from typing import Final, TypeVar
from urllib.parse import urlsplit

from msgspec import UNSET, UnsetType
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, ClientError, Disconnected, Refused, UtteranceFailed
from orpheus_ws.wire.native import MsgpackWire

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Far above any audio message: 0.7 s of 48 kHz float is 134 kB."""

PIECE_CHARS: Final = 4096
"""A long text is sent in pieces of this many characters, well under a server's message limit."""

SpokenText = str | Iterable[str | None] | AsyncIterable[str | None]
"""Text as a whole, or in pieces as they come."""

_WIRE: Final = MsgpackWire()


@contextlib.asynccontextmanager
async def connect(
    url: str, *, api_key: str | None = None, open_timeout: float = 10.0
) -> AsyncIterator["Client"]:
    """Open a socket and wait for the server's `ready`; closes it in the end.

    Raises `Refused` when the server answers with an HTTP status (503 when it is full, with
    `retry_after`), and `ClientError` when it cannot be reached or does not speak the protocol.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        socket = await connect_websocket(
            url,
            additional_headers=headers,
            subprotocols=[Subprotocol(_WIRE.subprotocol)],
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            open_timeout=open_timeout,
            # A proxy from the environment is for other hosts.
            proxy=None if _is_loopback(url) else True,
        )
    except InvalidStatus as error:
        raise _refused(error) from error
    except (OSError, ImportError, ValueError, WebSocketException) as error:
        raise ClientError(_unreachable(url, error)) from error
    try:
        client = Client(socket, await _greeting(socket, open_timeout))
        reader = asyncio.create_task(client.read())
        try:
            yield client
        finally:
            client.leave_all()
            await socket.close()
            await reader
    finally:
        await socket.close()


class Utterance:
    """Something being spoken. Iterate it, once, for its audio; then `result` says how it ended.

    Iteration yields `messages.Audio` (`pcm`, `seq`, `offset`) and ends quietly when the utterance
    was cancelled. It raises `UtteranceFailed` when the server answers with an error,
    `Disconnected` when the socket ends first, and whatever the text's own iterator raises. Leaving
    the loop early, or cancelling its task, cancels the utterance on the server.
    """

    def __init__(self, client: "Client", opening: m.Open, text: "SpokenText") -> None:
        self.context = opening.context
        self.result: m.Done | m.Cancelled | None = None
        self.warnings: list[m.Warn] = []
        self._client = client
        self._opening = opening
        self._text = text
        self._iterated = False
        self._opened = False
        self._cancel: m.Cancel | None = None
        self._inbox: asyncio.Queue[m.ServerMessage | Exception] = asyncio.Queue()

    async def __aiter__(self) -> AsyncGenerator[m.Audio, None]:
        """See the class."""
        async with contextlib.aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, m.Audio):
                    yield event

    async def events(self) -> AsyncGenerator[m.ServerMessage, None]:
        """Like iterating, but yields every message of the utterance, its `done` included."""
        if self._iterated:
            raise ClientError("an utterance is spoken once; call speak again")
        self._iterated = True
        self._client.enter(self)
        sender = asyncio.create_task(self._send_text())
        ended = False
        try:
            while not ended:
                message = await self._inbox.get()
                if isinstance(message, Exception):
                    raise message
                ended = self._note(message)
                yield message
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            self._client.leave(self)
            if not ended:
                with contextlib.suppress(Disconnected):
                    await self._client.send(m.Cancel(context=self.context))

    async def cancel(self, *, played_ms: float | None = None) -> None:
        """Stop speaking (barge-in). `played_ms`, if known, is how much the listener heard.

        The loop over the utterance ends once the server has confirmed; no audio comes after that.
        An utterance that was cancelled before it is iterated says nothing. Raises `Disconnected`.
        """
        self._cancel = m.Cancel(context=self.context, played_ms=played_ms)
        if self._opened:
            await self._client.send(self._cancel)
        # Otherwise it follows the opening, without which the server would not know what to cancel.

    def deliver(self, message: m.ServerMessage | Exception) -> None:
        """The client's reader has something for this utterance."""
        self._inbox.put_nowait(message)

    def _note(self, message: m.ServerMessage) -> bool:
        """Keep what the caller may ask for later; true at the terminal message."""
        if isinstance(message, m.Warn):
            self.warnings.append(message)
        if isinstance(message, m.Done | m.Cancelled):
            self.result = message
        return self.result is not None

    async def _send_text(self) -> None:
        try:
            await self._client.send(self._opening)
            self._opened = True
            if self._cancel is not None:
                await self._client.send(self._cancel)
                return
            async for piece in _pieces(self._text):
                await self._client.send(m.Text(context=self.context, text=piece))
            await self._client.send(m.End(context=self.context))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self.deliver(ClientError("what writes the text was cancelled"))
            raise
        except Exception as error:  # noqa: BLE001 - raised where the utterance is iterated
            self.deliver(error)


class Client:
    """An open socket. Get one from `connect`. Utterances are spoken in the order they start."""

    def __init__(self, socket: ClientConnection, ready: m.Ready) -> None:
        self.ready = ready
        """What the server offered: voices, encodings, limits."""
        self.draining = False
        """The server has announced that it goes away: reconnect between utterances."""
        self._socket = socket
        self._utterances: dict[str, Utterance] = {}
        self._numbers = count(1)
        self._lost: Disconnected | None = None

    def speak(
        self,
        text: SpokenText,
        *,
        voice: str | None = None,
        encoding: str | None = None,
        sample_rate: int | None = None,
        sampling: m.Sampling | None = None,
        segment: m.Segmentation | None = None,
        lead_ms: int | None = None,
        words: bool | None = None,
        traceparent: str | None = None,
    ) -> Utterance:
        """Prepare to speak `text`, whole or as it is written; None is the server's default.

        Pieces are put together as they are, so they bring their own spaces; None among them, as
        language models' streams have it, is passed over. Nothing is sent before the utterance is
        iterated. More than `ready.limits.text_chars` characters at once are refused with
        `text_too_long`; give longer text piece by piece as it is spoken.
        """
        opening = m.Open(
            context=f"u{next(self._numbers)}",
            voice=_unset(voice),
            encoding=_unset(encoding),
            sample_rate=_unset(sample_rate),
            sampling=_unset(sampling),
            segment=_unset(segment),
            lead_ms=_unset(lead_ms),
            words=_unset(words),
            traceparent=_unset(traceparent),
        )
        return Utterance(self, opening, text)

    async def send(self, message: m.ClientMessage) -> None:
        """Send one message of the protocol. Raises `Disconnected`."""
        try:
            await self._socket.send(_WIRE.encode_request(message))
        except ConnectionClosed as error:
            raise self._lost or _disconnected(error) from error

    async def wait_closed(self) -> None:
        """Return when the socket has closed, from whichever side."""
        await self._socket.wait_closed()

    async def read(self) -> None:
        """Hand messages to utterances until the socket closes; never raises."""
        failure: Exception = Disconnected("the socket was closed")
        try:
            while True:
                self._route(_WIRE.decode_reply(await self._socket.recv(decode=None)))
        except ConnectionClosed as error:
            failure = self._lost = self._lost or _disconnected(error)
        except BadMessage:
            failure = ClientError("the server sent something that is not the protocol")
        finally:
            for utterance in list(self._utterances.values()):
                utterance.deliver(failure)
            await self._socket.close()

    def leave_all(self) -> None:
        """The socket is about to be closed from this side."""
        self._lost = self._lost or Disconnected("this client was closed; connect again")

    def enter(self, utterance: Utterance) -> None:
        """Route the utterance's messages to it. Raises `Disconnected` when there is no socket."""
        if self._lost is not None:
            raise self._lost
        self._utterances[utterance.context] = utterance

    def leave(self, utterance: Utterance) -> None:
        """The utterance takes no more messages; what still comes for it is dropped."""
        self._utterances.pop(utterance.context, None)

    def _route(self, message: m.ServerMessage) -> None:
        match message:
            case m.Draining():
                self.draining = True
            case m.Error(context=None):
                # The socket closes after a fatal one; say why to whoever was speaking.
                if message.fatal:
                    self._lost = Disconnected(f"{message.code}: {message.message}")
            case m.Error():
                error = UtteranceFailed(
                    f"{message.code}: {message.message}",
                    code=message.code,
                    retryable=message.retryable,
                )
                self._deliver(message.context, error)
            case m.Ready() | m.Pong():
                pass
            case _:
                self._deliver(message.context, message)

    def _deliver(self, context: str | None, message: m.ServerMessage | Exception) -> None:
        utterance = self._utterances.get(context or "")
        if utterance is not None:
            utterance.deliver(message)


def _unreachable(url: str, error: Exception) -> str:
    """Why no socket could be opened, as far as the kind of error tells."""
    wrong = "the URL must be like ws://host:port/v1/tts"
    try:
        parts = urlsplit(url)
        where = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'wss' else 80)}"
    except ValueError:
        return wrong
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        return wrong
    match error:
        case ConnectionRefusedError():
            return f"nothing listens at {where}: is the server running?"
        case socket_module.gaierror():
            return f"there is no host {parts.hostname}"
        case ssl.SSLError():
            return f"TLS with {where} failed: is it a ws:// server, or its certificate unknown?"
        case TimeoutError():
            return f"{where} did not answer in time"
        case _:
            return f"what answers at {where} is no WebSocket server, or the key has odd characters"


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host in ("localhost", "::1") or host.startswith("127.")


async def _greeting(socket: ClientConnection, seconds: float) -> m.Ready:
    try:
        async with asyncio.timeout(seconds):
            ready = _WIRE.decode_reply(await socket.recv(decode=None))
    except ConnectionClosed as error:
        raise _disconnected(error) from error
    except (BadMessage, TimeoutError) as error:
        raise ClientError("the server does not speak this protocol") from error
    if not isinstance(ready, m.Ready):
        raise ClientError("the server does not speak this protocol")
    return ready


_T = TypeVar("_T")


def _unset(value: _T | None) -> _T | UnsetType:
    return UNSET if value is None else value


async def _pieces(text: SpokenText) -> AsyncIterator[str]:
    async for piece in text if isinstance(text, AsyncIterable) else _each(text):
        if piece is None:
            continue
        # Half a surrogate pair, as cut JSON has it, cannot be sent and has no sound.
        sendable = piece.encode("utf-8", "ignore").decode()
        for start in range(0, len(sendable), PIECE_CHARS):
            yield sendable[start : start + PIECE_CHARS]


async def _each(text: str | Iterable[str | None]) -> AsyncIterator[str | None]:
    for piece in [text] if isinstance(text, str) else text:
        yield piece


def _refused(error: InvalidStatus) -> Refused:
    status = error.response.status_code
    retry_after = error.response.headers.get("Retry-After", "")
    advice = {
        401: "no valid key was sent (api_key=, --api-key or ORPHEUS_API_KEY)",
        403: "this origin is not allowed",
        404: "there is no speech at this path; it is usually /v1/tts",
        503: "all streams are in use or the server is going away",
    }.get(status, "the server refused the handshake")
    return Refused(
        f"HTTP {status}: {advice}",
        status=status,
        retry_after=float(retry_after) if retry_after.isdigit() else None,
    )


def _disconnected(error: ConnectionClosed) -> Disconnected:
    close = error.rcvd
    if close is None:
        return Disconnected("the connection was lost")
    return Disconnected(
        f"the server closed the socket: {close.code} {close.reason}".rstrip(),
        close_code=close.code,
    )
