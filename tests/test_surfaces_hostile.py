"""Every surface on a socket, and clients that mean it ill: each is told as its protocol does, if at all.

Rule: what comes back is read by the protocol's own grammar, which refuses what repeats the user's words.
One server is for many attacks, somebody else is spoken to meanwhile, and at the end nothing is held.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK
from websockets.frames import Frame, Opcode

from orpheus_ws.server import Server
from tests.conformance.speakers import client_of, speaking
from tests.harness import server, turns_until
from tests.server_peers import STEPPED, held, http, listening
from tests.surface_grammars import GRAMMARS, SECRET

LIMITS = ("limits.text_chars=1000", "limits.message_bytes=4000", "limits.contexts=4")
every_surface = pytest.mark.parametrize("surface", GRAMMARS)
SHORT = "It was cold."

FITS: Final[dict[str, dict[str, Any]]] = {
    "baseten": {
        "voice": "tara",
        "temperature": 0.6,
        "top_p": 0.8,
        "repetition_penalty": 1.3,
        "max_tokens": 2000,
        "buffer_size": 10,
    },
    "vllm_omni": {
        "type": "session.config",
        "voice": "tara",
        "speaker": "tara",
        "response_format": "pcm",
        "stream_audio": True,
        "speed": 1.0,
        "seed": 7,
        "split_granularity": "sentence",
        "timestamp_type": "word",
        "word_timestamps": False,
    },
    "cartesia": {
        "context_id": "h",
        "transcript": SECRET,
        "continue": False,
        "flush": False,
        "cancel": False,
        "voice": {"mode": "id", "id": SECRET},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
        "add_timestamps": True,
        "max_buffer_delay_ms": 0,
        "generation_config": {"speed": 1.0},
    },
    "deepgram": {"type": "Speak", "text": f"{SECRET}. "},
}
"""A message with every field that is heeded."""

WRONG: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 7, 2**31, 2**63, 10**40, -1.5, 1e308, float("nan"), float("inf"), "", "\0",
    SECRET, f"{SECRET} " * 4, [], [SECRET], {}, {"id": 7}, {"id": {"id": SECRET}}, {"encoding": SECRET},
    {"sample_rate": -1}, {"sample_rate": 44100}, {"sample_rate": 10**40}, {"container": SECRET},
    {"speed": 0}, {"speed": SECRET},
)  # fmt: skip
"""For a field that wants something else, or another one."""


def unfit(surface: str) -> Iterator[str | bytes]:
    """What does not fit, or might not."""
    fitting = FITS[surface]
    for name in fitting:
        yield json.dumps({key: value for key, value in fitting.items() if key != name})
        for value in WRONG:
            yield json.dumps(fitting | {name: value})
        yield json.dumps(fitting)[:-1] + f', "{name}": "{SECRET}"}}'
    yield json.dumps(fitting | {SECRET: SECRET})
    yield json.dumps(fitting | {"type": SECRET})
    whole = json.dumps(fitting)
    yield from ("", "[]", "null", "1", f'"{SECRET}"', whole[:-1], whole + whole, "\ufeff" + whole)
    yield from ("[" * 1900 + "]" * 1900, '{"x": ' + "[" * 1900 + "]" * 1900 + "}", "NaN", "\0")
    yield whole.replace(SECRET, "\\ud800").replace("tara", "\\ud800")
    yield from (b"", b"\0\1", whole.encode(), whole.encode("utf-16"), b"\xff" * 100)


class Socket:
    """A hostile client's end; what comes is read by the grammar."""

    def __init__(self, surface: str, socket: ClientConnection) -> None:
        self.socket = socket
        self._grammar = GRAMMARS[surface]()

    async def send(self, *frames: str | bytes) -> None:
        """Send frames, as long as anybody takes them."""
        for frame in frames:
            self._grammar.sent(frame)
            with contextlib.suppress(ConnectionClosed):
                await self.socket.send(frame)

    async def rest(self) -> int | None:
        """Hear everything that was sent for what the server got; the code if it has closed meanwhile."""
        await self.send(self._grammar.fence)
        try:
            passed = False
            while not passed:
                frame = await self.socket.recv()
                self._grammar.got(frame)
                passed = self._grammar.passed(frame)
        except ConnectionClosed:
            return self.socket.close_code
        return None


@contextlib.asynccontextmanager
async def hostile(started: Server, surface: str, *, greet: bool) -> AsyncIterator[Socket]:
    """A socket to a surface, before its first message or after."""
    client = client_of(surface)
    url = f"ws://127.0.0.1:{started.address.port}{client.path}"
    async with connect(url, compression=None, ping_interval=None, max_size=None) as socket:
        if greet:
            await client(socket).greet()
        yield Socket(surface, socket)
        socket.transport.abort()


@contextlib.asynccontextmanager
async def besieged(surface: str, *settings: str) -> AsyncIterator[Server]:
    """A server that is attacked while somebody listens; afterwards it is as it was."""
    async with server(*LIMITS, *settings) as started:
        async with listening(started, 1) as (listener,):
            yield started
            assert listener.player.underruns == 0
        await turns_until(lambda: not started._connections)
        await turns_until(lambda: held(started)[2:] == (0,) * 5)
        async with speaking(started, surface) as speaker:
            assert await speaker.turn(SHORT)
        assert await http(started, "/healthz") == (200, '{"alive":true}\n')


@pytest.fixture(autouse=True)
def _no_surprises(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The server logs neither failures of its own nor words of its users."""
    caplog.set_level(logging.INFO)
    yield
    records = [each for each in caplog.get_records("call") if each.name.startswith("orpheus")]
    assert not [each for each in records if each.levelno >= logging.WARNING]
    assert not [each for each in records if SECRET in str(vars(each))]


# Messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("surface", "greet", "fatal"),
    [
        ("baseten", False, True),
        ("vllm_omni", False, True),
        ("vllm_omni", True, False),
        ("cartesia", True, False),
        ("deepgram", True, False),
    ],
)
async def test_what_does_not_fit(surface: str, greet: bool, fatal: bool) -> None:
    """Errors are the protocol's; only where nothing can follow them does the socket close, with 1008."""
    async with besieged(surface) as started:
        closes = 0
        for frame in unfit(surface):
            async with hostile(started, surface, greet=greet) as client:
                await client.send(frame)
                code = await client.rest()
                assert code in (None, 1000, 1008), (frame, code)
                closes += code == 1008
        assert (closes > 0) == fatal


@every_surface
async def test_what_does_not_fit_in_the_middle(surface: str) -> None:
    """A binary frame while somebody is spoken to ends no more than it does before."""
    async with besieged(surface, STEPPED) as started, speaking(started, surface) as speaker:
        await speaker.write(f"{SHORT} {SHORT}", complete=False)
        assert await speaker.hear()
        client = Socket(surface, speaker.socket)
        await client.send(b"\0\1")
        assert await client.rest() == (1008 if surface == "baseten" else None)


TURNS: Final[dict[str, tuple[str, str]]] = {
    "baseten": ("{text}", "__END__"),
    "vllm_omni": ('{"type": "input.text", "text": "{text}"}', '{"type": "input.done"}'),
    "cartesia": (
        '{"context_id": "t", "transcript": "{text}", "continue": true}',
        '{"context_id": "t", "transcript": ""}',
    ),
    "deepgram": ('{"type": "Speak", "text": "{text}"}', '{"type": "Flush"}'),
}
"""Text, and the end of a turn."""


def _say(frame: str, text: str) -> str:
    return frame.replace("{text}", text)


@every_surface
@pytest.mark.parametrize(("chars", "fits"), [(1000, True), (1001, False)])
async def test_the_limit_of_text(surface: str, chars: int, fits: bool) -> None:
    """So many characters may wait to be spoken; one more is an error of the turn, or its end."""
    text, end = TURNS[surface]
    async with besieged(surface) as started, hostile(started, surface, greet=True) as client:
        # Without the end of a sentence nothing is spoken, and all of it waits.
        await client.send(_say(text, "a " * (chars // 2) + "a" * (chars % 2)))
        code = await client.rest()
        ends = {True: 1000, False: 1008}[fits]
        assert code == (ends if surface == "baseten" else None)
        failed = started.metrics.registry.get_sample_value(
            "orpheus_contexts_total", {"outcome": "failed", "surface": surface}
        )
        assert bool(failed) != fits
        await client.send(end)


@every_surface
async def test_the_limit_of_a_message(surface: str) -> None:
    """A message of just so many bytes is taken; one more closes the socket with 1009."""
    async with besieged(surface) as started:
        for size, code in ((4000, None), (4001, 1009), (100_000, 1009)):
            async with hostile(started, surface, greet=False) as client:
                await client.send(json.dumps(FITS[surface]).ljust(size))
                assert await client.rest() in ({code, 1000} if code is None else {code})


@every_surface
async def test_a_thousand_turns_at_once(surface: str) -> None:
    """Of more than there may be each has one end all the same, and the socket lives."""
    text, end = TURNS[surface]
    turn = (text.replace("true", "false"),) if surface == "cartesia" else (text, end)
    async with besieged(surface) as started, hostile(started, surface, greet=True) as client:
        for number in range(1000):
            frames = (frame.replace('"t"', f'"{number}"') for frame in turn)
            await client.send(*(frame.replace("{text}", "…") for frame in frames))
            if number % 50 == 0:
                await client.rest()
        assert await client.rest() == (1000 if surface == "baseten" else None)


@every_surface
async def test_after_the_end(surface: str) -> None:
    """Whatever is sent behind the end of a turn or of a socket ends nothing twice."""
    text, end = TURNS[surface]
    ends = {"vllm_omni": '{"type": "session.close"}', "deepgram": '{"type": "Close"}'}
    async with besieged(surface) as started, hostile(started, surface, greet=True) as client:
        more = _say(text, "Hi. ")
        await client.send(more, end, end, more, end, ends.get(surface, end), more, end, end)
        with contextlib.suppress(ConnectionClosedOK):
            await client.rest()


NOTHING: Final[dict[str, tuple[str, ...]]] = {
    "baseten": ("", ""),
    "vllm_omni": ('{"type": "input.text", "text": ""}', '{"type": "input.done"}'),
    "cartesia": (
        '{"context_id": "nobody", "cancel": true}',
        '{"context_id": "*", "cancel": true}',
        '{"context_id": "e", "transcript": "", "flush": true, "continue": true}',
        json.dumps({"context_id": "x" * 128, "transcript": "", "continue": True}),
        json.dumps({"context_id": "x" * 129, "transcript": "", "continue": True}),
        json.dumps({"context_id": "x" * 3000, "transcript": ""}),
        '{"context_id": "\\u0000\\n\\"", "transcript": "Hi."}',
    ),
    "deepgram": ('{"type": "Flush"}', '{"type": "Clear"}', '{"type": "Speak", "text": ""}'),
}


@every_surface
async def test_much_ado_about_nothing(surface: str) -> None:
    """Flushes of nothing, cancels of nobody: the socket lives, and the next turn is heard."""
    async with besieged(surface) as started, hostile(started, surface, greet=True) as client:
        for _ in range(100):
            await client.send(*NOTHING[surface])
            if surface != "baseten":
                assert await client.rest() is None
        assert await client.rest() in (None, 1000)


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
        for message in (_say(text, SHORT), end):
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
