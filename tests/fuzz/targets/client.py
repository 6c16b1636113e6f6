"""The client, and a server that says anything.

An input is what the server does, a line each: `!503 …` refuses the handshake with this body, a line of JSON
is a message, in msgpack, `t…` a text frame, `c1011 …` a close, and every other line a binary frame. An
utterance comes to an end, which is a result or a `ClientError`; what it yields is its own, and nothing
comes after its end; what the client says is the protocol; and no task is left.
"""

import asyncio
from collections import deque
from typing import Any, Final, cast, get_args

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.frames import Close
from websockets.http11 import Response
from websockets.protocol import State

from orpheus_ws import messages as m
from orpheus_ws.client.connection import Connection, _greeting, _refused
from orpheus_ws.client.utterance import Utterance
from orpheus_ws.errors import ClientError
from orpheus_ws.wire import wires

WORDS = (
    *(kind.__struct_config__.tag for kind in get_args(m.ServerMessage)),
    *{name for kind in (*get_args(m.ServerMessage), m.Limits) for name in kind.__struct_fields__},
    '{"type":"ready"', '"context":"u"', "!503 ", "c1011 ", "Retry-After",
)  # fmt: skip
_WIRE: Final = wires()["tts.v1.msgpack"]
_TEXT: Final = ("Hello there. ", "How are you? " * 40, "Fine.")
_LOOP: Final = asyncio.Runner()


def one(data: bytes) -> None:
    """See `Target`."""
    lines = data.split(b"\n")
    if lines[0].startswith(b"!"):
        _refuse(lines[0][1:4], lines[0][5:])
        return
    _LOOP.run(_converse(deque(lines)))


def _refuse(status: bytes, body: bytes) -> None:
    if not (status.isdigit() and int(status) >= 100):
        return
    headers = Headers()
    headers.set_insecure("Retry-After", body.decode("latin-1")[:20])
    refused = _refused(InvalidStatus(Response(int(status), "", headers, body)))
    assert str(refused).isprintable()
    assert len(str(refused)) < 300
    assert refused.retry_after is None or refused.retry_after >= 0


class _Server:
    """The socket as the client sees it, with what the server does next."""

    def __init__(self, lines: deque[bytes]) -> None:
        self.state = State.OPEN
        self.said: list[m.ClientMessage] = []
        self._lines = lines

    async def recv(self, decode: bool | None = None) -> str | bytes:
        """The next frame, or the end."""
        await asyncio.sleep(0)
        line = self._lines.popleft() if self._lines else b"c1006"
        if self.state is State.CLOSED or line.startswith(b"c1"):
            self.state = State.CLOSED
            code, _, reason = line[1:].partition(b" ")
            rcvd = Close(int(code), reason.decode(errors="replace")) if code.isdigit() else None
            raise ConnectionClosedError(rcvd, None)
        if line.startswith(b"t"):
            return line[1:].decode(errors="replace")
        if not line.startswith(b"{"):
            return line
        try:
            message: dict[str, Any] = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return line
        if isinstance(pcm := message.get("pcm"), str):
            message["pcm"] = pcm.encode()
        try:
            return msgspec.msgpack.encode(message)
        except OverflowError:  # msgpack has no such numbers
            return line

    async def send(self, frame: bytes) -> None:
        """What the client says is the protocol, whatever it was told."""
        await asyncio.sleep(0)
        if self.state is State.CLOSED:
            raise ConnectionClosedError(None, None)
        self.said.append(_WIRE.decode_request(frame))

    async def close(self) -> None:
        """The client has heard enough."""
        self.state = State.CLOSED


async def _converse(lines: deque[bytes]) -> None:
    server = _Server(lines)
    socket = cast("ClientConnection", server)
    try:
        connection = Connection(socket, await _greeting(socket, 5.0))
    except ClientError as error:
        assert str(error).isprintable()
        return
    try:
        await _listen(connection)
    finally:
        await connection.close()
    assert connection.closed
    assert asyncio.all_tasks() == {asyncio.current_task()}
    texts = [message.text for message in server.said if isinstance(message, m.Text)]
    assert "".join(_TEXT).startswith("".join(texts))


async def _listen(connection: Connection) -> None:
    async def found() -> Connection:
        return connection

    utterance = Utterance(found, m.Open(context="u"), list(_TEXT))
    heard: list[m.ServerMessage] = []
    try:
        async for message in utterance.events():
            assert message.context == "u"  # type: ignore[union-attr]
            heard.append(message)
    except ClientError:
        assert utterance.result is None
        assert not any(isinstance(message, m.Done | m.Cancelled) for message in heard)
    else:
        assert utterance.result is heard[-1]
        assert not any(isinstance(message, m.Done | m.Cancelled) for message in heard[:-1])
