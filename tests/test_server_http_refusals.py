"""The server over HTTP: who is refused, and with what; requests that never end."""

import contextlib
import json
from typing import Any

import pytest

from tests.harness import peer, turns_until
from tests.http_peers import (
    LONG,
    PREDICT,
    SHORT,
    SPEECH,
    ask,
    calling,
    every_surface,
    http_server,
    lose_patience,
    one_call,
    speech,
)
from tests.server_peers import STEPPED, http, metric

# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "parameter"),
    [
        ({"input": ""}, "bad_message", None),
        ({"input": 3}, "bad_message", None),
        ({"speed": 1.5}, "bad_message", None),
        ({"stream_format": "morse"}, "bad_message", None),
        ({"voice": "nobody"}, "unknown_voice", "voice"),
        ({"response_format": "opus"}, "unsupported_format", "response_format"),
        ({"input": "a" * 101}, "text_too_long", "input"),
    ],
)
async def test_what_does_not_fit(options: dict[str, Any], code: str, parameter: str | None) -> None:
    """400 in OpenAI's shape, and the connection goes on."""
    async with one_call("limits.text_chars=100") as (started, caller):
        assert await caller.post(SPEECH, speech(SHORT) | options) == 400
        assert caller.headers["content-type"] == "application/json"
        error = (await caller.json())["error"]
        assert error.pop("message")
        assert error == {"type": "invalid_request_error", "param": parameter, "code": code}
        assert await caller.post(SPEECH, speech(SHORT)) == 200
        assert await caller.rest()
        assert started.admission.active <= 1


async def test_what_does_not_fit_at_basetens() -> None:
    """400 with a message."""
    async with one_call() as (_, caller):
        assert await caller.post(PREDICT, {"text": "Hello."}) == 400
        assert (await caller.json())["error"] == "bad_message"


@every_surface
async def test_full(surface: str) -> None:
    """A full server refuses, says when to come again, and holds no slot for whoever it refused."""
    async with one_call("engine.capacity=1") as (started, caller):
        async with peer(started.address.url):
            for _ in range(2):
                assert await ask(caller, surface, SHORT) == 503
                assert caller.headers["retry-after"] == "1"
                assert "full" in str(await caller.json())
        await turns_until(lambda: started.admission.active == 0)
        assert await ask(caller, surface, SHORT) == 200
        assert await caller.rest()
        assert await metric(started, "orpheus_handshakes_refused_total", reason="full") == 2


async def test_a_request_takes_a_socket_s_place() -> None:
    """While a request is answered, a socket is refused, and the reverse."""
    async with one_call("engine.capacity=1", STEPPED) as (started, caller):
        assert await caller.post(SPEECH, speech(LONG)) == 200
        assert json.loads((await http(started, "/capacity"))[1])["active"] == 1
        async with calling(started) as other:
            assert await other.post(SPEECH, speech(SHORT)) == 503


@every_surface
async def test_no_slot_in_time(surface: str) -> None:
    """Who was admitted and has no turn in time is told 503, and when to come again."""
    crowded = ("engine.capacity=1", "server.oversubscription=2", "server.max_queue_ms=1")
    async with one_call(*crowded, STEPPED) as (started, caller), calling(started) as other:
        assert await other.post(SPEECH, speech(LONG)) == 200
        assert await ask(caller, surface, SHORT) == 503
        assert caller.headers["retry-after"] == "1"
        assert "overloaded" in str(await caller.json())


@every_surface
async def test_keys(surface: str) -> None:
    """Where there are keys, nobody gets in without one; health needs none."""
    async with one_call("auth.keys.a=secret") as (_, caller):
        assert await ask(caller, surface, SHORT) == 401
        assert caller.headers["www-authenticate"] == "Bearer"
        assert await caller.rest()
        assert await caller.ask("GET", "/v1/models") == 401
        assert (await caller.json())["error"]["code"] == "auth"
        assert await caller.ask("GET", "/readyz") == 200
        await caller.rest()
        for scheme in ("Bearer", "Api-Key"):
            assert await ask(caller, surface, SHORT, Authorization=f"{scheme} secret") == 200
            assert await caller.rest()


async def test_pages_of_other_hosts() -> None:
    """Those that are listed may ask, and their browsers are told so; others are refused."""
    async with one_call("auth.origins=https://app.example") as (_, caller):
        assert await ask(caller, "openai", SHORT, Origin="https://app.example") == 200
        assert caller.headers["access-control-allow-origin"] == "https://app.example"
        assert await caller.rest()
        assert await ask(caller, "openai", SHORT, Origin="https://evil.example") == 403
        assert "access-control-allow-origin" not in caller.headers
        await caller.rest()
        preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        assert await caller.ask("OPTIONS", SPEECH, headers=preflight) == 200
        assert "POST" in caller.headers["access-control-allow-methods"]


async def test_pages_of_anybody() -> None:
    """Without keys and without a list only pages of the same host may ask."""
    async with one_call() as (_, caller):
        assert await ask(caller, "openai", SHORT, Origin="https://evil.example") == 403
        await caller.rest()
        assert (
            await ask(caller, "openai", SHORT, Host="localhost", Origin="http://localhost") == 200
        )


async def test_other_paths_and_methods() -> None:
    """404 and 405, with a word on what there is."""
    async with one_call() as (_, caller):
        for method, path, status in (
            ("GET", "/v1/audio/transcriptions", 404),
            ("POST", "/v1/audio/transcriptions", 404),
            ("GET", SPEECH, 405),
            ("DELETE", SPEECH, 405),
        ):
            assert await caller.ask(method, path) == status
            assert SPEECH in (await caller.json())["message"]


# Limits -------------------------------------------------------------------------------------------


async def test_too_long_a_body() -> None:
    """It is refused with 413 when it is too long, not when it has come."""
    async with one_call("limits.message_bytes=1000") as (_, caller):
        assert await caller.post(SPEECH, speech("a" * 2000)) == 413
        assert (await caller.json())["error"]["type"] == "invalid_request_error"


async def test_too_long_a_head() -> None:
    """It is refused with 431 before it has come to its end."""
    async with one_call() as (_, caller):
        caller.writer.write(b"GET /healthz HTTP/1.1\r\nX-Long: " + b"a" * 20_000)
        assert (await caller.reader.read()).startswith(b"HTTP/1.1 431")


async def test_a_body_that_never_ends() -> None:
    """After a while it is refused with 408, and no slot was held for it."""
    async with one_call() as (started, caller):
        lose_patience(started, 0.05)
        caller.writer.write(
            b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
        )
        assert await caller.reader.readuntil(b"\r\n") == b"HTTP/1.1 408 Request Timeout\r\n"
        assert started.admission.active == 0


@pytest.mark.parametrize("sent", [b"GET /heal", b"POST /none HTTP/1.1\r\nHost: x\r\n"])
@pytest.mark.parametrize("answered", [False, True])
async def test_a_head_that_never_ends(sent: bytes, answered: bool) -> None:
    """Whoever owes the rest of a request, or a first one, is cut off after a while."""
    async with http_server(*(() if answered else ("server.handshake_seconds=0.2",))) as started:
        lose_patience(started, 0.2)
        async with calling(started) as caller:
            if answered:
                assert await caller.ask("GET", "/healthz") == 200
                await caller.rest()
            caller.writer.write(sent)
            # It may be so late that nobody is there any more.
            with contextlib.suppress(ConnectionError):
                while await caller.reader.read(1000):
                    pass


async def test_nothing_at_all() -> None:
    """Nor does a connection stay that never asks."""
    async with one_call("server.handshake_seconds=0.05") as (_, caller):
        assert await caller.reader.read() == b""


async def test_a_body_for_nobody_that_never_ends() -> None:
    """The rest of what was refused already is not waited for either."""
    async with http_server() as started:
        lose_patience(started, 0.05)
        async with calling(started) as caller:
            caller.writer.write(b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            assert await caller.reader.readuntil(b"\r\n") == b"HTTP/1.1 404 Not Found\r\n"
            caller.writer.write(b"{")
            with contextlib.suppress(ConnectionError):
                while await caller.reader.read(1000):
                    pass


async def test_not_http_at_all() -> None:
    """It is answered with 400 and closed."""
    async with one_call() as (_, caller):
        caller.writer.write(b"\x16\x03\x01 what is this?\r\n\r\n")
        assert (await caller.reader.read()).startswith(b"HTTP/1.1 400")


async def test_a_socket_at_the_wrong_port() -> None:
    """An upgrade is no more than a request, and there is none at that path."""
    async with one_call() as (_, caller):
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
        assert await caller.ask("GET", "/v1/tts", headers=upgrade) == 404
