"""What a connection was is gone with it: nothing waits for the collector, which would stop everybody.

Rule: what is counted is objects that only the collector could free, of whatever kind, per connection.
"""

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from orpheus_ws.server import Server
from tests.certificates import Authority
from tests.harness import server, turns_until
from tests.http_peers import SPEECH, speech
from tests.server_peers import SENTENCE, STEPPED

VISITS = 10
OTHERS = 8
"""Of a connection, with asyncio's own loop: a transport refers to a method of its own. uvloop leaves nothing."""
LONG = f"{SENTENCE} " * 3


def frame(opcode: int, payload: bytes) -> bytes:
    """A client's, whose mask changes nothing."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0xFE]) + size.to_bytes(2, "big")
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


def say(**message: object) -> bytes:
    """A message in JSON."""
    return frame(1, json.dumps(message).encode())


def post(body: bytes) -> bytes:
    """A request for speech that is the last one of its connection."""
    head = f"POST {SPEECH} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


UPGRADE = (
    b"GET /v1/tts HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: tts.v1.json\r\n\r\n"
)
CLOSE = frame(8, struct.pack(">H", 1000))
TEXT = say(type="text", context="a", text=LONG) + say(type="end", context="a")
SHORT = say(type="text", context="a", text="Hi.") + say(type="end", context="a")
REQUEST, SHORT_REQUEST = (json.dumps(speech(text)).encode() for text in (LONG, "Hi."))
END = b"the end"
"""Of the connection, and not a word that the server says."""


class Visit(NamedTuple):
    """What somebody sends, each after he has heard something, before he leaves."""

    steps: tuple[tuple[bytes, bytes], ...]
    port: str = "port"
    reset: bool = False


VISITS_OF = {
    "gone": Visit(((UPGRADE, b"ready"),)),
    "reset": Visit(((UPGRADE, b"ready"),), reset=True),
    "closed": Visit(((UPGRADE, b"ready"), (CLOSE, END))),
    "spoken": Visit(
        ((UPGRADE, b"ready"), (SHORT, b'"done"'), (say(type="close"), b"\x88"), (CLOSE, END))
    ),
    "left in the middle": Visit(((UPGRADE, b"ready"), (TEXT, b"segment"))),
    "reset in the middle": Visit(((UPGRADE, b"ready"), (TEXT, b"segment")), reset=True),
    "interrupted": Visit(
        ((UPGRADE, b"ready"), (TEXT, b"segment"), (say(type="cancel", context="a"), b"cancelled"))
    ),
    "wrong": Visit(((UPGRADE, b"ready"), (say(type="open", context="a", voice="x"), b"error"))),
    "no message": Visit(((UPGRADE, b"ready"), (frame(1, b"{"), b"\x88"))),
    "no frame": Visit(((UPGRADE, b"ready"), (b"\xff" * 20, END))),
    "too long": Visit(((UPGRADE, b"ready"), (b"\x82\xff" + bytes([0, 0, 0, 9]) + bytes(8), END))),
    "no upgrade": Visit(((b"GET /v1/tts HTTP/1.1\r\nHost: a\r\n\r\n", END),)),
    "no path": Visit(((UPGRADE.replace(b"tts", b"no"), END),)),
    "page": Visit(((b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", END),)),
    "http": Visit(((post(SHORT_REQUEST), END),), "http_port"),
    "http, left in the middle": Visit(((post(REQUEST), b"200 OK"),), "http_port"),
    "http, reset in the middle": Visit(((post(REQUEST), b"200 OK"),), "http_port", reset=True),
    "http, refused": Visit(((post(b"{}"), END),), "http_port"),
    "http, no HTTP": Visit(((b"\x00\r\n\r\n", END),), "http_port"),
    "http, models": Visit(
        ((b"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", END),), "http_port"
    ),
}


def pay(visit: Visit, port: int, trusted: ssl.SSLContext | None = None) -> None:
    """Do it with sockets that leave nothing themselves. Blocks."""
    with (
        socket.create_connection(("127.0.0.1", port)) as connected,
        contextlib.ExitStack() as stack,
    ):
        caller = connected
        if trusted is not None:
            caller = stack.enter_context(
                trusted.wrap_socket(connected, server_hostname="localhost")
            )
        for sent, until in visit.steps:
            caller.sendall(sent)
            heard = b""
            with contextlib.suppress(ConnectionError):
                while until not in heard and (more := caller.recv(65_536)):
                    heard += more
        if visit.reset:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def collected() -> Iterator[list[object]]:
    """What in the block came to need the collector, once it is left."""
    gc.collect()
    gc.disable()
    found: list[object] = []
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def quiet(started: Server, tasks: int) -> None:
    """Wait until nothing is done for anybody any more."""
    await turns_until(lambda: not started._connections and not started.admission.active)
    await turns_until(lambda: len(asyncio.all_tasks()) <= tasks)
    await asyncio.sleep(0)


async def left_by(
    started: Server, visit: Visit, trusted: ssl.SSLContext | None = None
) -> "Counter[str]":
    """Kinds of what so many visits leave for the collector."""
    port, tasks = getattr(started.address, visit.port), len(asyncio.all_tasks())
    await asyncio.to_thread(pay, visit, port, trusted)
    await quiet(started, tasks)
    with collected() as found:
        for _ in range(VISITS):
            await asyncio.to_thread(pay, visit, port, trusted)
            await quiet(started, tasks)
    kinds = Counter(type(each).__name__ for each in found)
    found.clear()
    return kinds


@pytest.mark.parametrize("name", VISITS_OF)
async def test_nothing_is_left(name: str) -> None:
    """However somebody comes and goes: no frame, no traceback, no more than the loop's own transport."""
    async with server("server.http_port=0", STEPPED) as started:
        left = await left_by(started, VISITS_OF[name])
        assert not {"frame", "traceback", "coroutine", "Task", "AdmittedConnection"} & set(left)
        assert left.total() <= OTHERS * VISITS, left


@pytest.mark.parametrize("name", ["gone", "closed", "spoken", "http", "no upgrade"])
async def test_nothing_is_left_over_tls(name: str, tmp_path: Path) -> None:
    """Nor with TLS."""
    authority = Authority(tmp_path)
    authority.issue()
    async with server("server.http_port=0", *authority.settings) as started:
        left = await left_by(started, VISITS_OF[name], authority.context)
        assert not {"frame", "traceback", "coroutine", "Task", "AdmittedConnection"} & set(left), (
            left
        )
