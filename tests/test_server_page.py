"""The page for people: who gets it, what it may do, and how its key becomes a token."""

import asyncio
import hashlib
import json
import re
import urllib.error
import urllib.request
from importlib.resources import files

import msgspec
import pytest

from orpheus_ws import messages as m
from orpheus_ws.client import connect
from orpheus_ws.config import AuthConfig
from orpheus_ws.keys import HASHED, read_keys
from orpheus_ws.server import Server
from orpheus_ws.server.page import TOKEN_PATH, TOKEN_SECONDS
from tests.harness import peer, server

FOLDER = files("orpheus_ws") / "data" / "page"
HASH = f"{HASHED}{hashlib.sha256(b'secret').hexdigest()}"


async def get(started: Server, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body, as a client has them that knows nothing of websockets."""

    def ask() -> tuple[int, dict[str, str], bytes]:
        url = f"http://127.0.0.1:{started.address.port}{path}"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=10
            ) as response:
                return response.status, dict(response.headers), response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    return await asyncio.to_thread(ask)


async def test_every_file_is_served() -> None:
    """The page is at `/`, its files below `/page/`, each as it lies in the package and with its type."""
    types = {
        "html": "text/html",
        "css": "text/css",
        "js": "text/javascript",
        "svg": "image/svg+xml",
    }
    async with server() as started:
        for file in FOLDER.iterdir():
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            status, headers, body = await get(started, path)
            assert (status, body) == (200, file.read_bytes())
            assert headers["Content-Type"].startswith(types[file.name.rpartition(".")[2]])
        for path in ("/page/", "/page/index.html", "/page/../config.py", "/page/%2e%2e/config.py"):
            assert (await get(started, path))[0] == 404


async def test_the_page_runs_nothing_but_its_own_files() -> None:
    """Its policy lets no inline script and nothing of others run, and no site frames it."""
    async with server() as started:
        _, headers, body = await get(started, "/")
    policy = dict(
        part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    page = body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page)
    assert not re.search(r"https?://|//\w", page)


def test_files_are_short_and_ask_nobody() -> None:
    """No file is longer than any module here may be, and none names an address of others."""
    for file in FOLDER.iterdir():
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 400, file.name
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}, file.name


async def test_without_the_page() -> None:
    """`server.page=false`: there is nothing at `/`, nor any token."""
    async with server("server.page=false", "auth.keys.alice=secret") as started:
        for path in ("/", "/page/app.js"):
            assert (await get(started, path))[0] == 404
        status, _, _ = await get(started, TOKEN_PATH, Authorization="Bearer secret")
        assert status == 404


async def test_a_socket_is_none_of_the_page() -> None:
    """An upgrade at `/` is refused as at any other path where nothing is spoken."""
    async with server() as started:
        status, _, body = await get(started, "/", Connection="Upgrade", Upgrade="websocket")
        assert (status, json.loads(body)["error"]) == (404, "path")


@pytest.mark.parametrize("known", ["secret", HASH])
async def test_a_key_becomes_a_token(known: str) -> None:
    """The page loads without a key; a key, known by its hash alone or not, gets a token that opens a socket and
    soon expires. Only this process takes it, and only for as long as it has the key."""
    async with server(f"auth.keys.alice={known}") as started:
        assert (await get(started, "/"))[0] == 200
        status, headers, body = await get(started, TOKEN_PATH, Authorization="Bearer secret")
        token = json.loads(body)["token"]
        assert (status, headers["Content-Type"]) == (200, "application/json")
        async with peer(f"{started.address.url}?token={token}") as connected:
            await connected.say("a", "Hello.")
            await connected.wait_for(m.Done)
        keys = started.access_control.keys
    expires = int(token.split(".")[1])
    signer = keys.signer(token, expires)
    assert signer is not None
    assert signer.tenant == "alice"
    assert keys.signer(token, expires + TOKEN_SECONDS) is None
    others = read_keys(AuthConfig(keys={"alice": "another"}))
    assert others.signer(token, expires) is None


async def test_a_token_gets_no_other() -> None:
    """No key, a wrong one, or a token in its place: 401, and nobody prolongs a token with itself."""
    async with server("auth.keys.alice=secret") as started:
        _, _, body = await get(started, TOKEN_PATH, Authorization="Bearer secret")
        token = json.loads(body)["token"]
        for path, value in (
            (TOKEN_PATH, ""),
            (TOKEN_PATH, "Bearer wrong"),
            (TOKEN_PATH, f"Bearer {token}"),
            (f"{TOKEN_PATH}?token={token}", ""),
        ):
            status, _, body = await get(started, path, Authorization=value)
            assert (status, json.loads(body)["error"]) == (401, "auth")


async def test_without_keys_there_is_no_token() -> None:
    """Where anybody may come in, the page is told that it needs none."""
    async with server() as started:
        status, _, body = await get(started, TOKEN_PATH)
        assert (status, json.loads(body)) == (200, {"token": None})


@pytest.mark.parametrize("subprotocol", ["tts.v1.msgpack", "tts.v1.json"])
async def test_a_trace_is_given_to_who_asks(subprotocol: str) -> None:
    """`trace: true` brings the moments of an utterance in their order; others get none."""
    async with server() as started, peer(started.address.url, subprotocol) as connected:
        await connected.send(m.Open(context="a", trace=True), m.Open(context="b"))
        await connected.say("a", "Hello there.")
        await connected.say("b", "Hello there.")
        done = await connected.wait_for(m.Done)
        assert done.trace is not None
        moments: dict[str, float] = msgspec.to_builtins(done.trace)
        assert tuple(moments) == m.Times.__struct_fields__
        assert list(moments.values()) == sorted(moments.values())
        first_audio_ms = moments["first_audio_ms"] - moments["ready_ms"]
        assert done.ttfa_ms == pytest.approx(first_audio_ms, abs=0.01)
        assert (await connected.wait_for(m.Done)).trace is None


async def test_a_trace_by_the_client() -> None:
    """The client SDK asks for a trace as for any option, and has it in the result."""
    async with server() as started, connect(started.address.url) as client:
        utterance = client.speak("Hello there.", trace=True)
        await utterance.read()
        assert isinstance(utterance.result, m.Done)
        assert utterance.result.trace is not None
        assert utterance.result.trace.first_chunk_ms is not None


async def test_a_trace_has_what_happened() -> None:
    """What is cancelled before it had a word to say has no moments after it was opened."""
    async with server() as started, peer(started.address.url) as connected:
        await connected.send(m.Open(context="a", trace=True), m.Cancel(context="a"))
        assert (await connected.wait_for(m.Cancelled)).trace == m.Times()
