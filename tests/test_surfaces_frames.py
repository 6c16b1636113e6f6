"""WebSockets to every surface, made wrongly: frames and handshakes that there should not be."""

import asyncio
import contextlib
import json
from typing import Final

import pytest
from websockets.frames import Frame, Opcode

from tests.besieging import LIMITS, SHORT, TURNS, besieged, every_surface, hostile, say
from tests.conformance.speakers import client_of, speaking
from tests.harness import server, turns_until
from tests.server_peers import held

# Frames -------------------------------------------------------------------------------------------


def raw(opcode: int, payload: bytes, *, first: int = 0x80, mask: bool = True) -> bytes:
    """A frame's bytes; `first` are the bits beside the opcode."""
    length = len(payload)
    head = bytes((first | opcode, (0x80 if mask else 0) | (min(126, length))))
    head += b"" if length < 126 else length.to_bytes(2, "big")
    return head + (b"\0\0\0\0" if mask else b"") + payload


FRAMES: Final[dict[str, tuple[bytes, int]]] = {
    "no UTF-8": (raw(1, b"\xff\xfe"), 1007),
    "a lone surrogate": (raw(1, b"\xed\xa0\x80"), 1007),
    "half a character": (raw(1, b"\xe2\x82"), 1007),
    "a compressed frame": (raw(1, b"{}", first=0xC0), 1002),
    "another bit": (raw(1, b"{}", first=0x90), 1002),
    "no mask": (raw(1, b"{}", mask=False), 1002),
    "an unknown opcode": (raw(3, b"{}"), 1002),
    "a long ping": (raw(9, b"a" * 126), 1002),
    "a ping in parts": (raw(9, b"a", first=0), 1002),
    "a continuation of nothing": (raw(0, b"{}"), 1002),
    "text within text": (raw(1, b"{", first=0) + raw(1, b"}"), 1002),
    "a close of one byte": (raw(8, b"\3"), 1002),
    "a close with a code of nobody's": (raw(8, b"\0\1"), 1002),
    "a close with no UTF-8": (raw(8, b"\3\xe8\xff"), 1007),
}


@every_surface
@pytest.mark.parametrize("name", FRAMES)
async def test_frames(surface: str, name: str) -> None:
    """What WebSocket does not allow closes the socket with WebSocket's own codes."""
    sent, code = FRAMES[name]
    async with server(*LIMITS) as started:
        async with hostile(started, surface, greet=True) as client:
            client.socket.transport.write(sent)
            await client.rest()
            close = client.socket.protocol.close_rcvd
            assert close is not None
            assert close.code == code
        await turns_until(lambda: held(started)[2:] == (0,) * 5)


@every_surface
async def test_fragments(surface: str) -> None:
    """A message in many parts, with pings between them, is one message."""
    text, end = TURNS[surface]
    async with server(*LIMITS) as started, speaking(started, surface) as speaker:
        for message in (say(text, SHORT), end):
            parts = message.replace('"t"', '"0"').encode()
            for at, byte in enumerate(parts):
                first = at == 0
                final = at == len(parts) - 1
                fragment = Frame(Opcode.TEXT if first else Opcode.CONT, bytes([byte]), fin=final)
                speaker.socket.transport.write(fragment.serialize(mask=True))
                speaker.socket.transport.write(raw(9, b"p"))
        assert len(await speaker.socket.recv()) > 0


# Handshakes ---------------------------------------------------------------------------------------


def handshake(path: str, *lines: str, method: str = "GET", without: str = "") -> bytes:
    """An opening handshake with these lines more, and without one."""
    head = {
        "Host": "x",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    kept = [f"{name}: {value}" for name, value in head.items() if name != without]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *kept, *lines, "", ""]).encode("latin-1")


HANDSHAKES: Final[dict[str, tuple[bytes, int | None]]] = {  # None: closed without a word
    "another path": (handshake("/v1/none"), 404),
    "a slash too many": (handshake("PATH/"), 404),
    "a post": (handshake("PATH", method="POST"), None),
    "no upgrade": (handshake("PATH", without="Upgrade"), 426),
    "no key": (handshake("PATH", without="Sec-WebSocket-Key"), 400),
    "another version": (
        handshake("PATH", "Sec-WebSocket-Version: 8", without="Sec-WebSocket-Version"),
        400,
    ),
    "two keys": (handshake("PATH", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), 400),
    "a body": (handshake("PATH", "Content-Length: 5") + b"hello", None),
    "a query of 100 kB": (handshake(f"PATH?{'a' * 100_000}"), None),
    "a query of many names": (handshake(f"PATH?{'a&' * 3000}"), 101),
    "odd escapes": (handshake("PATH?%ff=%00&token=%ed%a0%80&model=%ff"), 101),
    "a flood of headers": (handshake("PATH", *["X-A: b"] * 1000), None),
    "a long header": (handshake("PATH", f"X-A: {'b' * 10_000}"), None),
    "bytes in a header": (handshake("PATH", "X-A: \xff\xfe"), 101),
    "compression": (handshake("PATH", "Sec-WebSocket-Extensions: permessage-deflate"), 101),
    "a subprotocol": (handshake("PATH", "Sec-WebSocket-Protocol: soap"), 101),
    "odd subprotocols": (handshake("PATH", "Sec-WebSocket-Protocol: ,,"), 400),
}


@every_surface
async def test_handshakes(surface: str) -> None:
    """Each has the status that WebSocket has for it, a refusal is in JSON, and nothing is held."""
    path = client_of(surface).path.partition("?")[0]
    async with besieged(surface) as started:
        for name, (sent, status) in HANDSHAKES.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", started.address.port)
            writer.write(sent.replace(b"PATH", path.encode()))
            found = b""
            with contextlib.suppress(ConnectionError):
                found = await reader.read(12)
            if status is None:
                assert not found or found.startswith(b"HTTP/1.1 4"), (name, found)
            else:
                assert found == b"HTTP/1.1 %d" % status, (name, found)
                if status not in (101, 400):
                    body = (await reader.read()).partition(b"\r\n\r\n")[2]
                    assert isinstance(json.loads(body), dict), name
            writer.transport.abort()
