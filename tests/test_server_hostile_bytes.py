"""The server's ports and bytes that are not theirs: it refuses, forgets, and speaks on to the others."""

import asyncio
import contextlib
import json
import logging
import random
import re
import socket
import struct
import threading

import pytest

from orpheus_ws import messages as m
from orpheus_ws.server import Server
from orpheus_ws.server.handshake_queue import BODY_BYTES
from tests.harness import Peer, audio, peer, server, turns_until
from tests.hostile_bytes import CONTROL, KINDS, SECRET, handshake, speech
from tests.http_peers import http_server
from tests.server_peers import SENTENCE, STEPPED, held, http, metric

SEEDS = 4
AT_ONCE = 8
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
PING = bytes.fromhex("8984 00000000") + b"ping"
CLOSE = bytes.fromhex("8882 00000000 03e8")
SETTINGS = ("engine.capacity=24", STEPPED)


async def intrude(port: int, kind: str, seed: int) -> bytes:
    """Send bytes in a few pieces, leave in one way or another, and return what was answered."""
    rng = random.Random(f"{kind} {seed}")
    data = KINDS[kind](rng)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        with contextlib.suppress(OSError, RuntimeError):  # it was closed meanwhile
            while data:
                size = rng.randint(1, len(data))
                writer.write(data[:size])
                data = data[size:]
                await asyncio.sleep(0)
            if rng.random() < 0.7:
                writer.write_eof()
                answer = await reader.read()
    finally:
        writer.transport.abort()
    return answer


def check_answer(answer: bytes) -> None:
    """Nothing, or HTTP that does not repeat what was sent, or that what was sent is a socket's."""
    if not answer:
        return
    status = STATUS.match(answer)
    assert status is not None
    assert int(status[1]) < 500 or int(status[1]) == 503
    if int(status[1]) >= 400:
        assert SECRET not in answer


async def speak_on(connected: Peer, done: asyncio.Event) -> list[int]:
    """Say the same until `done`; how many samples were heard each time."""
    heard = []
    for number in range(1000):
        context = f"n{number}"
        await connected.say(context, SENTENCE)
        received = await connected.utterance(context)
        assert isinstance(received[-1], m.Done)
        heard.append(sum(len(each.pcm) // 2 for each in audio(received, context)))
        if done.is_set():
            break
    return heard


async def attack(started: Server, port: int, kinds: list[str], seeds: range) -> None:
    """All of these, a few at a time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(kind: str, seed: int) -> None:
        async with turn:
            answer = await intrude(port, kind, seed)
            # The library behind that port tells its scraper, without a status, what it did not read.
            if port != started.address.metrics_port:
                check_answer(answer)

    await asyncio.gather(*(one(kind, seed) for kind in kinds for seed in seeds))


def ports(started: Server) -> dict[str, int]:
    """All that listen."""
    address = started.address
    assert address.http_port is not None
    return {"sockets": address.port, "http": address.http_port, "metrics": address.metrics_port}


async def survive(seeds: range, caplog: pytest.LogCaptureFixture) -> None:
    """Send everything to every port while somebody is spoken to."""
    caplog.set_level(logging.INFO)
    async with http_server(*SETTINGS) as started:
        await http(started, "/healthz")
        before = held(started)
        async with peer(started.address.url) as neighbour:
            done = asyncio.Event()
            speaking = asyncio.create_task(speak_on(neighbour, done))
            for port in ports(started).values():
                await attack(started, port, list(KINDS), seeds)
            done.set()
            heard = await speaking
            assert len(set(heard)) == 1, "the neighbour has lost samples"
        await turns_until(lambda: held(started)[2:] == before[2:])
        await turns_until(lambda: held(started)[0] <= before[0])
        await turns_until(lambda: held(started)[1] <= before[1])
        assert (await http(started, "/healthz"))[0] == 200
        assert (await http(started, "/metrics", port=started.address.metrics_port))[0] == 200
        async with peer(started.address.url) as newcomer:
            await newcomer.say("a", SENTENCE)
            assert isinstance((await newcomer.utterance("a"))[-1], m.Done)
    assert SECRET.decode() not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_bytes_that_are_not_theirs(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every port refuses or closes; nothing is repeated, logged or kept; a neighbour loses nothing."""
    await survive(range(SEEDS), caplog)
    said = capfd.readouterr()
    assert SECRET.decode() not in said.out + said.err
    assert "Traceback" not in said.err


async def test_control_characters_in_headers(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """A request with one is refused on both ports, and what it is in, which may be a key, is not logged."""
    async with http_server() as started:
        for name in ("sockets", "http"):
            for character in CONTROL:
                reader, writer = await asyncio.open_connection("127.0.0.1", ports(started)[name])
                writer.write(speech(character))
                answer = await reader.read()
                writer.close()
                assert answer.startswith(b"HTTP/1.1 400 ")
                assert SECRET not in answer
        refused = await metric(started, "orpheus_handshakes_refused_total", reason="request")
        assert refused == 2 * len(CONTROL)
    said = capfd.readouterr()
    assert SECRET.decode() not in said.out + said.err + caplog.text


async def answered(port: int, *pieces: bytes) -> bytes:
    """What comes back for bytes that are sent a turn of the event loop apart, until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /nowhere", 404),
        (b"GET /healthz", 200),
        (b"GET /readyz", 200),
        (b"GET /v1/tts", 426),
    ],
)
@pytest.mark.parametrize("behind", [SECRET * 10, PING, CLOSE])
async def test_what_comes_behind_a_request(
    head: bytes, status: int, behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A request to the sockets' port is answered as if it came alone, whatever is behind it."""
    request = head + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    async with server() as started:
        for pieces in (
            (request + behind,),
            (request, behind),
            (request[:-1], request[-1:] + behind),
        ):
            answer = await answered(started.address.port, *pieces)
            found = STATUS.match(answer)
            assert found is not None
            assert int(found[1]) == status
            headers, _, body = answer.partition(b"\r\n\r\n")
            assert f"content-length: {len(body)}\r\n".encode() in headers.lower()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


UNREADABLE = {
    "a body": b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    "a long body": b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"
    + b"x" * 200_000,
    "a body to come": b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n",
    "chunks": b"GET /v1/tts HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no header": b"GET /v1/tts HTTP/1.1\r\nHost: x\r\nheader\r\n\r\n",
    "a folded header": b"GET /v1/tts HTTP/1.1\r\nHost: x\r\nX-A: b\r\n c\r\n\r\n",
    "lines of Unix": b"GET /v1/tts HTTP/1.1\nHost: x\n\n",
    "a path of bytes": b"GET /v1/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "an empty line": b"\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/0.9": b"GET /healthz\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(30),
    "nothing": b"\r\n\r\n",
    "a late mistake": b"GET /v1/tts HTTP/1.1\r\n" + b"X-A: b\r\n" * 120 + b"X-A : b\r\n\r\n",
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_heads_that_cannot_be_read(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever sends the port of sockets what it cannot read is told so with 400, whatever is behind it."""
    sent = UNREADABLE[name]
    async with server() as started:
        before = held(started)
        for pieces in ((sent,), (sent + SECRET * 1000,), (sent, SECRET)):
            answer = await answered(started.address.port, *pieces)
            assert answer.startswith(b"HTTP/1.1 400 ")
            headers, _, body = answer.partition(b"\r\n\r\n")
            assert f"content-length: {len(body)}\r\n".encode() in headers.lower()
            assert set(json.loads(body)) == {"error", "message"}
        await turns_until(lambda: held(started) == before)
    assert SECRET.decode() not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("changed", "status", "header"),
    [
        ((b"Version: 13", b"Version: 8"), 400, b"sec-websocket-version: 13"),
        ((b"Version: 13", b"Version: 13, 8"), 400, b"sec-websocket-version: 13"),
        ((b"Upgrade: websocket\r\n", b""), 426, b"upgrade: websocket"),
        ((b"GET", b"PUT"), 405, b"allow: GET"),
    ],
)
async def test_what_would_be_understood(
    changed: tuple[bytes, bytes], status: int, header: bytes
) -> None:
    """A refused handshake has the header that HTTP or WebSocket want with its status."""
    async with server() as started:
        answer = await answered(started.address.port, handshake(random.Random(0)).replace(*changed))
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    head = answer.partition(b"\r\n\r\n")[0] + b"\r\n"
    assert header.lower() + b"\r\n" in head.lower()


@pytest.mark.parametrize("cut", ["nowhere", "behind the head", "everywhere"])
async def test_frames_behind_a_handshake(cut: str) -> None:
    """Frames of somebody who does not wait for the handshake's answer are answered, after it and in order."""
    request = handshake(random.Random(0))
    size = {"nowhere": 10_000, "behind the head": len(request), "everywhere": 1}[cut]
    sent = request + PING + CLOSE
    pieces = [sent[start : start + size] for start in range(0, len(sent), size)]
    async with server() as started:
        answer = await answered(started.address.port, *pieces)
    head, _, frames = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    kinds = []
    while frames:
        kinds.append(frames[0])
        length, start = frames[1], 2
        if length == 126:
            length, start = int.from_bytes(frames[2:4]), 4
        frames = frames[start + length :]
    # `ready` comes anywhere before the end, or not at all: it has been told to close.
    assert kinds in ([0x81, 0x8A, 0x88], [0x8A, 0x81, 0x88], [0x8A, 0x88])


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/capacity", "/", "/v1/tts", "/nowhere", "/metrics"]
)
async def test_only_the_head(path: str) -> None:
    """HEAD is answered on every port with the length of a body, and without the body."""
    asked = f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    async with http_server() as started:
        for port in ports(started).values():
            answer = await answered(port, asked)
            assert STATUS.match(answer)
            assert b"content-length: " in answer.lower()
            assert answer.endswith(b"\r\n\r\n")
            assert answer.count(b"\r\n\r\n") == 1


async def test_too_much_behind_a_request() -> None:
    """Whoever goes on sending while the answer is being found is cut off."""
    async with server("engine.options.fault=stalls") as started:
        reader, writer = await asyncio.open_connection("127.0.0.1", started.address.port)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n" + SECRET * BODY_BYTES)
        with contextlib.suppress(ConnectionResetError):
            assert not await reader.read()
        writer.close()


async def test_scrapers_that_leave(capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever leaves the port of metrics before he is answered is no traceback among the logs."""
    async with server() as started:
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", started.address.metrics_port)
            writer.write(b"GET /met")
            await asyncio.sleep(0)
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            writer.transport.abort()
        await turns_until(
            lambda: not any("process_request" in each.name for each in threading.enumerate())
        )
        assert (await http(started, "/metrics", port=started.address.metrics_port))[0] == 200
    assert "Traceback" not in capfd.readouterr().err
