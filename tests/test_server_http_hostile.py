"""The server over HTTP, and those who would break it: whatever comes, the next caller is answered.

Rule: bytes on a socket, so that nothing between the test and the server puts them right. What is left
of every attack is looked at: status and shape of what was answered, what the server holds, the log.
"""

import asyncio
import json
import logging

import pytest

from orpheus_ws.server import Server
from tests.harness import peer, turns_until
from tests.http_peers import (
    PATHS,
    PREDICT,
    SHORT,
    SPEECH,
    Caller,
    ask,
    body,
    calling,
    every_surface,
    http_server,
    lose_patience,
    one_call,
    speech,
)
from tests.server_peers import STEPPED, held, listening

SECRET = "marmalade"
"""Words of a user: they come back to nobody."""


def post(path: str, content: bytes, *lines: str) -> bytes:
    """A request, with these lines in its head."""
    head = [f"POST {path} HTTP/1.1", "Host: x", *lines]
    if not any(line.startswith("Connection") for line in lines):
        head.append("Connection: close")
    if not any(line.lower().startswith(("content-length", "transfer")) for line in lines):
        head.append(f"Content-Length: {len(content)}")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + content


def whole(**options: object) -> bytes:
    """The body of a request for a short text."""
    return json.dumps(speech("Hi.") | options).encode()


async def answer(started: Server, *parts: bytes) -> bytes:
    """All that comes back until the server closes, when these parts are sent one after the other."""
    async with calling(started) as caller:
        for part in parts:
            caller.writer.write(part)
            await asyncio.sleep(0)
        try:
            return await caller.reader.read()
        except ConnectionError:
            return b""


async def spoken(caller: Caller) -> None:
    """Read a response in chunks to its end."""
    heard = b""
    while not heard.endswith(b"\r\n0\r\n\r\n"):
        part = await caller.reader.read(1)
        assert part
        heard += part


async def is_well(started: Server) -> None:
    """Somebody else is answered, and nothing is held for anybody."""
    async with calling(started) as caller:
        assert await caller.post(SPEECH, speech(SHORT)) == 200
        assert await caller.rest()
    await turns_until(lambda: not started._connections)
    assert held(started)[2:] == (0,) * 5


# Heads --------------------------------------------------------------------------------------------

HEADS: dict[str, tuple[bytes, int | None]] = {  # None: cut off, before or after it was told why
    "host of brackets": (post(SPEECH, whole(), "Host: [").replace(b"Host: x\r\n", b""), 200),
    "host with a path": (
        b"GET /healthz HTTP/1.1\r\nHost: x/readyz?\r\nConnection: close\r\n\r\n",
        200,
    ),
    "host with a fragment": (post(SPEECH, whole()).replace(b"Host: x", b"Host: x#y"), 200),
    "no host": (post(SPEECH, whole()).replace(b"Host: x\r\n", b""), 400),
    "two hosts": (post(SPEECH, whole(), "Host: y"), 400),
    "the whole address": (post(f"http://x{SPEECH}", whole()), 404),
    "an asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
    "a tunnel": (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
    "a method of its own": (
        b"SPEAK /v1/audio/speech HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        405,
    ),
    "head": (b"HEAD /v1/audio/speech HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
    "options": (b"OPTIONS /v1/audio/speech HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
    "a query of 100 kB": (post(f"{SPEECH}?{'a' * 100_000}", whole()), None),
    "a query of many names": (post(f"{SPEECH}?{'a&' * 7000}", whole()), 200),
    "odd escapes": (post(f"{SPEECH}?%ff=%00&token=%ed%a0%80", whole()), 200),
    "escapes in the path": (post("/v1/audio/%73peech", whole()), 200),
    "a path of NUL": (post("/v1/audio/speech%00", whole()), 404),
    "a line of NUL": (post(SPEECH, whole(), "X-A: \0"), 400),
    "a folded line": (post(SPEECH, whole(), "X-A: b", " c"), 200),
    "a flood of headers": (post(SPEECH, whole(), *["X-A: b"] * 5000), None),
    "bytes in a header": (post(SPEECH, whole(), "X-A: \xff\xfe"), 200),
    "another type": (post(SPEECH, whole(), "Content-Type: image/png"), 200),
    "a form": (post(SPEECH, whole(), "Content-Type: multipart/form-data; boundary=x"), 200),
    "an encoding": (post(SPEECH, whole(), "Content-Encoding: gzip"), 200),
    "an upgrade to HTTP/2": (
        post(SPEECH, whole(), "Connection: close, Upgrade", "Upgrade: h2c"),
        200,
    ),
    "an upgrade to WebSocket": (
        post(SPEECH, whole(), "Connection: close, Upgrade", "Upgrade: websocket"),
        200,
    ),
    "HTTP/1.0": (post(SPEECH, whole()).replace(b"1.1", b"1.0"), 200),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404),
    "a slash too many": (post(f"{SPEECH}/", whole()), 404),
    "a slash too many at a host of brackets": (
        post(f"{SPEECH}/", whole()).replace(b"Host: x", b"Host: ["),
        404,
    ),
    "no length": (post(SPEECH, b"", "Content-Length: -1"), 400),
    "length of letters": (post(SPEECH, b"", "Content-Length: ten"), 400),
    "two lengths": (post(SPEECH, b"{}", "Content-Length: 2", "Content-Length: 3"), 400),
    "a long length": (post(SPEECH, b"", f"Content-Length: {'9' * 30}"), 400),
    "length and chunks": (
        post(
            SPEECH,
            b"%x\r\n%s\r\n0\r\n\r\n" % (len(whole()), whole()),
            f"Content-Length: {len(whole())}",
            "Transfer-Encoding: chunked",
            "Connection: keep-alive",
        ),
        400,
    ),
    "an unknown transfer": (post(SPEECH, b"", "Transfer-Encoding: gzip"), 400),
}


@pytest.mark.parametrize("name", HEADS)
async def test_heads(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each has the status that HTTP has for it; nothing is a surprise to the server."""
    sent, status = HEADS[name]
    async with http_server() as started:
        found = await answer(started, sent)
        if status is not None:
            assert found.startswith(b"HTTP/1.1 %d " % status), found[:200]
        await is_well(started)
    # Nor is what it answers to something that an operator should look into.
    most = logging.INFO if status in (200, 405) else logging.WARNING
    assert not [record for record in caplog.records if record.levelno > most]


# Bodies -------------------------------------------------------------------------------------------

CHUNKED = "Transfer-Encoding: chunked"


def chunks(content: bytes, size: int) -> bytes:
    """A body in chunks of a size."""
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


async def test_a_body_in_chunks() -> None:
    """However it is cut, it is the same body; trailers are nobody's."""
    async with http_server() as started:
        for size in (1, 7, 1000):
            sent = post(SPEECH, chunks(whole(), size), CHUNKED)
            assert (await answer(started, sent)).startswith(b"HTTP/1.1 200 ")
        trailed = chunks(whole(), 9)[:-2] + b"X-A: b\r\n\r\n"
        assert (await answer(started, post(SPEECH, trailed, CHUNKED))).startswith(b"HTTP/1.1 200 ")
        await is_well(started)


@pytest.mark.parametrize(
    "chunk",
    [b"zz\r\n", b"-1\r\n", b"5\r\nab\r\nxx", b"fffffffffffffffffffffff\r\n", b"\0" * 50 + b"\r\n"],
)
@pytest.mark.parametrize("path", [SPEECH, PREDICT, "/none", "/healthz"])
async def test_chunks_that_are_none(
    chunk: bytes, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They end the connection, also where the request was answered before they came."""
    async with http_server() as started, calling(started) as caller:
        caller.writer.write(post(path, b"", CHUNKED, "Connection: keep-alive"))
        await asyncio.sleep(0)
        if path not in (SPEECH, PREDICT):
            assert await caller.reader.readuntil(b"\r\n")
        caller.writer.write(chunk)
        found = await caller.reader.read()
        assert path not in (SPEECH, PREDICT) or found.startswith(b"HTTP/1.1 400 ")
        await is_well(started)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_caller_that_waits_to_be_asked() -> None:
    """`Expect: 100-continue` is answered before the body has come; a refusal comes instead of it."""
    async with one_call("limits.message_bytes=1000") as (started, caller):
        length = f"Content-Length: {len(whole())}"
        caller.writer.write(post(SPEECH, b"", length, "Expect: 100-continue"))
        assert (await caller.reader.readline()).startswith(b"HTTP/1.1 100 ")
        caller.writer.write(whole())
        await caller.reader.readuntil(b"HTTP/1.1 200 ")
        assert (
            await answer(started, post("/none", b"", length, "Expect: 100-continue"))
        ).startswith(b"HTTP/1.1 404 ")
        await is_well(started)


BAD = {
    "empty": b"",
    "a list": b"[]",
    "text": b'"input"',
    "nothing": b"null",
    "deep": b'{"input": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "deep aside": b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b', "input": "a", "prompt": "a"}',
    "half": b'{"input": "marmalade',
    "lone surrogate": b'{"input": "marmalade \\ud800", "prompt": "marmalade \\ud800"}',
    "no UTF-8": b'{"input": "marmalade \xff", "prompt": "marmalade \xff"}',
    "UTF-16": '{"input": "marmalade", "prompt": "marmalade"}'.encode("utf-16"),
    "a mark": b'\xef\xbb\xbf{"input": "marmalade", "prompt": "marmalade"}',
    "numbers": b'{"input": 1, "prompt": 2}',
    "lists": b'{"input": ["marmalade"], "prompt": ["marmalade"]}',
    "no number": b'{"input": "a", "prompt": "a", "speed": NaN, "temperature": NaN}',
    "a huge number": b'{"input": "a", "prompt": "a", "speed": 1e999, "temperature": 1e999}',
    "a voice of numbers": b'{"input": "a", "prompt": "a", "voice": 7}',
    "two bodies": b'{"input": "marmalade", "prompt": "marmalade"} {}',
}


@every_surface
@pytest.mark.parametrize("name", BAD)
async def test_bodies(surface: str, name: str) -> None:
    """400 in the surface's shape, without a word of what was sent; the connection goes on."""
    async with one_call() as (started, caller):
        assert await caller.ask("POST", PATHS[surface], BAD[name]) == 400
        told = await caller.json()
        assert SECRET not in str(told)
        assert "error" in told
        assert isinstance(told["error"], dict) == (surface == "openai")
        assert await ask(caller, surface, SHORT) == 200
        assert await caller.rest()
        await is_well(started)


@every_surface
async def test_the_limits(surface: str) -> None:
    """A body and a text just at their limits are spoken; one more byte, one more character is not."""
    text = "Hi." + " " * 47
    exact = json.dumps(body(surface, text)).encode().ljust(300)
    limits = ("limits.text_chars=50", f"limits.message_bytes={len(exact)}")
    async with one_call(*limits) as (started, caller):
        assert await caller.ask("POST", PATHS[surface], exact) == 200
        assert await caller.rest()
        assert await ask(caller, surface, f"{text}a") == 400
        assert "text_too_long" in str(await caller.json())
        assert await caller.ask("POST", PATHS[surface], exact + b" ") == 413
        await caller.rest()
        await is_well(started)


@every_surface
async def test_duplicate_fields(surface: str) -> None:
    """The last one counts, as almost everywhere."""
    field = {"openai": "input", "baseten_http": "prompt"}[surface]
    sent = b'{"%s": 7, "%s": "Hi."}' % (field.encode(), field.encode())
    async with one_call() as (_, caller):
        assert await caller.ask("POST", PATHS[surface], sent) in (200, 400)
        assert await caller.rest()


# Time ---------------------------------------------------------------------------------------------


async def test_a_part_of_a_request_behind_another() -> None:
    """Its rest is waited for no longer than that of any other."""
    async with http_server() as started:
        lose_patience(started, 0.2)
        async with calling(started) as caller:
            first = post(SPEECH, whole(), "Connection: keep-alive")
            caller.writer.write(first + b"POST /v1/audio/sp")
            assert b"HTTP/1.1 200 " in await caller.reader.read()
        lose_patience(started, 600.0)
        await is_well(started)


async def test_a_part_of_a_request_that_is_completed() -> None:
    """Who sends the rest in time is answered, and is then as idle as anybody."""
    async with one_call("server.handshake_seconds=5") as (_, caller):
        first = post(SPEECH, whole(), "Connection: keep-alive")
        second = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        caller.writer.write(first + second[:9])
        await spoken(caller)
        caller.writer.write(second[9:])
        assert await caller.reader.readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"
        clock = asyncio.get_running_loop().time
        late = clock() + 5
        await turns_until(lambda: clock() > late)
        caller.writer.write(second)
        assert b"HTTP/1.1 200 OK\r\n" in await caller.reader.readuntil(b"HTTP/1.1 200 OK\r\n")


async def test_a_body_that_was_answered_and_never_ends() -> None:
    """So it is with the rest of a body that came with its head and for which nobody waits."""
    async with http_server() as started:
        lose_patience(started, 0.2)
        async with calling(started) as caller:
            caller.writer.write(post("/none", b"{", "Content-Length: 9", "Connection: keep-alive"))
            assert (await caller.reader.read()).startswith(b"HTTP/1.1 404 ")
        lose_patience(started, 600.0)
        await is_well(started)


async def test_many_requests_behind_each_other() -> None:
    """They are answered in their order, each whole, whatever is wrong with some."""
    async with one_call() as (started, caller):
        kinds = [(whole(), 200), (b"{}", 400), (whole(voice="nobody"), 400), (whole(), 200)] * 5
        keep = "Connection: keep-alive"
        caller.writer.write(b"".join(post(SPEECH, content, keep) for content, _ in kinds))
        for _, status in kinds:
            assert await caller.reader.readuntil(b" ") == b"HTTP/1.1 "
            assert int(await caller.reader.readuntil(b" ")) == status
            head = await caller.reader.readuntil(b"\r\n\r\n")
            if status == 200:
                await spoken(caller)
            else:
                length = int(head.lower().split(b"content-length: ")[1].split()[0])
                await caller.reader.readexactly(length)
        await is_well(started)


@pytest.mark.parametrize("at", [0, 1, 20, 60, -1])
@every_surface
async def test_leaving_early(surface: str, at: int) -> None:
    """In the middle of whatever is sent, somebody who goes leaves nothing behind."""
    sent = post(PATHS[surface], json.dumps(body(surface, SHORT)).encode())
    async with http_server(STEPPED) as started:
        for leave in (True, False):
            async with calling(started) as caller:
                caller.writer.write(sent[:at] if at >= 0 else sent)
                await caller.writer.drain()
                if leave:
                    caller.leave()
                else:
                    caller.writer.write_eof()
        await is_well(started)


# Others -------------------------------------------------------------------------------------------


async def test_a_listener_meanwhile() -> None:
    """Whoever is spoken to at the same time loses nothing of it."""
    async with http_server() as started, listening(started, 2) as listeners:
        for sent, _ in HEADS.values():
            await answer(started, sent)
        for content in BAD.values():
            await answer(started, post(SPEECH, content), post(PREDICT, content))
        assert all(listener.player.underruns == 0 for listener in listeners)
        assert all(listener.messages for listener in listeners)


async def test_nothing_is_left() -> None:
    """After many attacks as many tasks and descriptors are held as before."""
    async with http_server() as started, peer(started.address.url):
        before = held(started)
        for sent, _ in HEADS.values():
            await answer(started, sent)
        await turns_until(lambda: held(started) == before)
