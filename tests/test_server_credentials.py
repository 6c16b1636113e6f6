"""Keys, tokens and the headers that they come in, from somebody who tries out what there is."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from orpheus_ws import keys as keys_module
from orpheus_ws import messages as m
from orpheus_ws.access_tokens import make_token
from orpheus_ws.server import Server
from orpheus_ws.server.page import TOKEN_PATH
from tests.harness import peer, server, turns_until
from tests.http_peers import PATHS, SHORT, ask, body, calling, every_surface, http_server, one_call
from tests.server_peers import SENTENCE, STEPPED, closed, held
from tests.test_server_keys import ALICE, BOB, KeyFile, gets_in, reread
from tests.translators import BY_NAME

KEY = "auth.keys.alice=alices"
LINES = (
    "Host: a",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version: 13",
)
MINE = "X-API-Key: alices"
WRONG = "X-API-Key: wrong"


@pytest.fixture(autouse=True)
def _read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read again when a test asks for it, and not also because it has taken two seconds."""
    monkeypatch.setattr("orpheus_ws.server.reload.LOOK_SECONDS", 3600.0)


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    """A file with a key of Alice's and one of Bob's."""
    made = KeyFile(tmp_path / "keys.toml")
    made.write(alice=["alices"], bob=["bobs"])
    return made


@contextlib.asynccontextmanager
async def sending(started: Server, sent: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A connection to the sockets' port on which this was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", started.address.port)
    writer.write(sent)
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def request(*lines: str, path: str = "/v1/tts") -> bytes:
    """An upgrade, with these lines among its headers."""
    return "\r\n".join((f"GET {path} HTTP/1.1", *LINES, *lines, "", "")).encode("latin-1")


async def answer(started: Server, sent: bytes) -> tuple[int, bytes]:
    """Status and body of what is answered first, a socket's own frames not among it; 0 for none."""
    async with sending(started, sent) as reader:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            return status, b"" if status == 101 else await reader.read()
    return 0, b""


# What is told ------------------------------------------------------------------------------------

WRONG_ONES = (
    {"lines": ["Authorization: Bearer wrong"]},
    {"lines": ["X-API-Key: alice"]},
    {"lines": ["X-API-Key: alicesx"]},
    {"path": f"/v1/tts?token={make_token('alice', 'alices', expires=1)}"},
    {"path": f"/v1/tts?token={make_token('alice', 'wrong', expires=2_000_000_000)}"},
    {"path": f"/v1/tts?token={make_token('nobody', 'alices', expires=2_000_000_000)}"},
    {"path": "/v1/tts?token=x"},
)


async def test_why_nobody_gets_in() -> None:
    """One is told whether a key was sent, and what to do; of a wrong one nothing else."""
    async with server(KEY) as started:
        told = set()
        for wrong in WRONG_ONES:
            lines, path = wrong.get("lines", ()), str(wrong.get("path", "/v1/tts"))
            told.add(await answer(started, request(*lines, path=path)))
        ((status, other),) = told
        assert status == 401
        assert "send another one" in json.loads(other)["message"]
        for none in ("X-Nothing: a", "Authorization: Basic YTpi", "X-API-Key:", "Cookie: alices"):
            status, body = await answer(started, request(none))
            assert status == 401
            assert json.loads(body)["message"].startswith("no key was sent: send one as")


@every_surface
async def test_why_nobody_is_answered(surface: str) -> None:
    """So it is over HTTP, in the shape of each protocol."""
    async with one_call(KEY) as (_, caller):
        for headers, words in (({}, "no key was sent"), ({"X-API-Key": "a"}, "send another one")):
            assert await ask(caller, surface, SHORT, **headers) == 401
            assert words in (await caller.rest()).decode()


# Tokens of the page -------------------------------------------------------------------------------


async def page_token(started: Server) -> str:
    """A fresh one, for Alice."""
    sent = f"GET {TOKEN_PATH} HTTP/1.1\r\nHost: a\r\nX-API-Key: alices\r\n\r\n"
    _, body = await answer(started, sent.encode())
    return str(json.loads(body)["token"])


async def opens(started: Server, token: str) -> int:
    """The status of an upgrade with a token, as it stands in the address."""
    return (await answer(started, request(path=f"/v1/tts?token={token}")))[0]


async def test_pieces_of_a_token() -> None:
    """No part of one is one, nor one that was encoded twice; encoded once, as an address may be, it is."""
    async with server(KEY) as started:
        token = await page_token(started)
        for size in range(len(token)):
            assert started.access_control.keys.signer(token[:size], 0) is None
            assert started.access_control.keys.signer(token[size + 1 :], 0) is None
        encoded = "".join(f"%{ord(character):02X}" for character in token)
        assert await opens(started, token) == await opens(started, encoded) == 101
        for other in (
            quote(encoded),
            token[:-1],
            token[1:],
            token.upper(),
            f"{token}.",
            f"%00{token}",
        ):
            assert await opens(started, other) == 401
        assert await opens(started, f"wrong&token={token}") == 101
        assert await opens(started, f"{token}#{token}") == 401


async def test_a_token_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come again for its minute, not later, and not to another process."""
    async with server(KEY) as started:
        token = await page_token(started)
        assert [await opens(started, token) for _ in range(3)] == [101] * 3
        monkeypatch.setattr("orpheus_ws.server.page.TOKEN_SECONDS", -1)
        assert await opens(started, await page_token(started)) == 401
        assert await opens(started, token) == 101
    monkeypatch.setattr(keys_module, "_PROCESS_SECRET", b"of another process")
    async with server(KEY) as another:
        assert await opens(another, token) == 401


# Headers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((MINE, MINE), 101),
        ((WRONG, MINE), 101),
        ((f"{WRONG}, alices",), 401),
        (("X-API-Key:", " alices"), 400),
        (("Authorization: Bearer", " alices"), 400),
        (("Authorization: Bearer wrong", "\talices"), 400),
        (("Authorization : Bearer alices",), 400),
        (("Authorization: Bearer wrong, Bearer alices",), 401),
        (("authorization: bearer wrong", "AUTHORIZATION: BEARER alices"), 101),
        ((MINE, "Origin: https://ours", "Origin: https://evil"), 403),
        ((MINE, "Origin: https://evil", "Origin: https://ours"), 403),
        ((MINE, "Origin: https://ours, https://evil"), 403),
        ((MINE, "Origin: https://ours", "Origin: https://ours"), 400),
        ((MINE, "Origin: https://ours", " https://evil"), 400),
        ((MINE, "Origin:"), 403),
        ((MINE, "Sec-WebSocket-Protocol: x", "Sec-WebSocket-Protocol: tts.v1.json"), 101),
        ((MINE, "Sec-WebSocket-Protocol: x, tts.v1.json"), 101),
        ((MINE, "Sec-WebSocket-Protocol: x"), 400),
        ((MINE, "Sec-WebSocket-Protocol: tts.v1.json", " x"), 400),
        ((MINE, "Sec-WebSocket-Key: BBBBBBBBBBBBBBBBBBBBBA=="), 400),
        ((MINE, "Sec-WebSocket-Version: 8"), 400),
        ((MINE, "Content-Length: 5", "Transfer-Encoding: chunked"), 400),
    ],
    ids=str,
)
async def test_headers_twice(
    lines: tuple[str, ...], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Folded and doubled headers mean one thing at most, and never what one of them alone would not."""
    async with server(KEY, "auth.origins=https://ours") as started:
        found, _ = await answer(started, request(*lines))
        assert found == status
        await turns_until(lambda: started.admission.active == 0)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("behind", [request(MINE), b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_an_upgrade_behind_another(
    behind: bytes, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """On a socket a request is a broken frame: nobody is let in twice, and the slot is free.

    Whether it comes together with the first or after its answer makes no difference.
    """
    async with server(KEY, "engine.capacity=1") as started:
        port = started.address.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request(MINE) + (behind if at_once else b""))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            if not at_once:
                writer.write(behind)
            with contextlib.suppress(ConnectionError):
                assert b"HTTP/1.1" not in await reader.read()
        finally:
            writer.transport.abort()
        await turns_until(lambda: started.admission.active == 0)
        assert await gets_in(started, ALICE)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "path", ["/", "/page/app.js", "/healthz", "/readyz", "/capacity", "/nothing"]
)
async def test_pages_behind_each_other(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """The sockets' port answers one request of a connection, or refuses all; it is never confused."""
    one = f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    async with server() as started:
        alone, _ = await answer(started, one)
        status, body = await answer(started, one * 3)
        assert status in (alone, 400, 0)
        assert b"HTTP/1.1" not in body
        tail, _ = await answer(started, one + request())
        assert tail in (alone, 400, 0)
        await turns_until(lambda: started.admission.active == 0)
    assert not [record for record in caplog.records if record.exc_info]


# Keys that change ---------------------------------------------------------------------------------


async def test_a_storm_of_wrong_keys(file: KeyFile) -> None:
    """Keys that change in the middle of a storm hold from then on, for all; the storm leaves nothing."""
    async with server(file.setting, "server.handshakes_per_second=500") as started:
        assert await gets_in(started, ALICE)
        await turns_until(lambda: started.admission.active == 0)
        before = held(started)

        async def guess(number: int) -> int:
            return (await answer(started, request(f"X-API-Key: {number}")))[0]

        storm = asyncio.gather(*(guess(number) for number in range(200)))
        file.write(alice=["alices-new"], bob=["bobs"])
        await reread(started)
        new = {"X-API-Key": "alices-new"}
        assert [await gets_in(started, key) for key in (ALICE, new, BOB)] == [False, True, True]
        assert set(await storm) <= {401, 503}
        await turns_until(lambda: held(started) <= before)


async def test_quotas_of_a_key_that_goes(file: KeyFile) -> None:
    """What its sockets had is given back when they close, for whoever has the name next."""
    limits = "sockets = 1\ncontexts = 1\ntext_per_minute = 100"
    file.write(limits=limits, alice=["alices"])
    async with server(file.setting, STEPPED, "engine.options.frames_per_char=10") as started:
        async with peer(started.address.url, headers=ALICE) as speaking:
            # It lasts for longer than a test stands still.
            await speaking.send(m.Config(lead_ms=200))
            await speaking.say("a", SENTENCE)
            await speaking.wait_for(m.Audio)
            file.write(limits=limits, alice=["alices-new"])
            await reread(started)
            new = {"X-API-Key": "alices-new"}
            # The name still has a socket.
            lines = "X-API-Key: alices-new"
            assert (await answer(started, request(lines)))[0] == 429
            await speaking.send(m.Cancel(context="a"))
            assert isinstance((await speaking.utterance("a"))[-1], m.Cancelled)
            assert await closed(speaking) == (1008, "key_removed")
        await turns_until(lambda: started.admission.active == 0)
        async with peer(started.address.url, headers=new) as next_one:
            await next_one.say("a", "Hello.")
            assert isinstance((await next_one.utterance("a"))[-1], m.Done)
            await next_one.send(m.Open(context="b"), m.Open(context="c"))
            refused = await next_one.wait_for(m.Error)
            assert (refused.context, refused.code) == ("c", "context_limit")
            # Characters are the minute's, whoever sent them.
            await next_one.send(m.Text(context="b", text="a" * 100))
            assert (await next_one.wait_for(m.Error)).code == "rate_limited"


async def test_contexts_of_a_key_that_goes_and_comes_back(file: KeyFile) -> None:
    """Open contexts of a socket that is cut off count no more, also if the key is there again."""
    limits = "contexts = 2"
    file.write(limits=limits, alice=["alices"])
    async with server(file.setting, STEPPED) as started:
        for _ in range(3):
            async with peer(started.address.url, headers=ALICE) as speaking:
                await speaking.send(m.Text(context="a", text=SENTENCE), m.Open(context="b"))
                await speaking.wait_for(m.Audio)
                file.write(limits=limits, bob=["bobs"])
                await reread(started)
                file.write(limits=limits, alice=["alices"])
                await reread(started)
                speaking.socket.transport.abort()
            await turns_until(lambda: started.admission.active == 0)


# What is far too long -----------------------------------------------------------------------------

ABSURD = "x" * 60_000
NESTED: object = []
for _ in range(50):
    NESTED = [NESTED]


UNKNOWN = {"trace": True, "lead_ms": 1, "words": True, "x" * 1000: ABSURD[:9000]}
"""Our own fields are nobody's in other protocols."""
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
ABSURDLY = {
    "native": ("/v1/tts", {"type": "open", "context": "a", "voice": ABSURD}),
    "baseten": ("/v1/baseten/websocket", {"voice": ABSURD, "model": "m", **UNKNOWN}),
    "vllm_omni": (
        "/v1/audio/speech/stream",
        {"type": "session.config", "voice": ABSURD[:9000], "model": ABSURD[:9000], **UNKNOWN},
    ),
    "cartesia": (
        "/tts/websocket",
        {
            "context_id": "a",
            "model_id": ABSURD[:9000],
            "transcript": "Hi.",
            "voice": {"mode": "id", "id": ABSURD[:9000]},
            "output_format": RAW,
            **UNKNOWN,
        },
    ),
    "deepgram": (
        f"/v1/speak?model={ABSURD[:7000]}&encoding=linear16",
        {"type": "Speak", "text": "Hi.", **UNKNOWN},
    ),
}


@pytest.mark.parametrize("surface", ABSURDLY)
async def test_names_without_end(surface: str, caplog: pytest.LogCaptureFixture) -> None:
    """A voice or a model of any length is an error or the default, and is not repeated; so is what is ours."""
    assert set(ABSURDLY) == set(BY_NAME) | {"native"}
    path, message = ABSURDLY[surface]
    async with server() as started:
        url = f"ws://127.0.0.1:{started.address.port}{path}"
        subprotocols = [Subprotocol("tts.v1.json")] if surface == "native" else None
        async with connect(url, subprotocols=subprotocols, compression=None) as asking:
            await asking.send(json.dumps(message))
            # A message that is too long ends every socket, once what came before it is answered.
            await asking.send("x" * 70_000)
            heard = []
            with contextlib.suppress(ConnectionClosed):
                while True:
                    heard.append(await asking.recv())
        said = "".join(each for each in heard if isinstance(each, str))
        assert "xxxx" not in said
        assert "turn_ms" not in said
        await turns_until(lambda: started.admission.active == 0)
        assert "xxxx" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


@every_surface
@pytest.mark.parametrize("field", ["voice", "model", "trace", "lead_ms", "x" * 1000])
async def test_fields_that_nobody_knows(surface: str, field: str) -> None:
    """They are answered as if they were not there, or refused without a word of them."""
    async with http_server() as started, calling(started) as caller:
        for value in (ABSURD, True, NESTED, {"id": ABSURD}, None):
            asked = body(surface, SHORT) | {field: value}
            status = await caller.post(PATHS[surface], asked)
            answered = await caller.rest()
            assert status in (200, 400)
            if status == 200:
                assert len(answered) % 2 == 0
                assert b"turn_ms" not in answered
            else:
                assert b"xxxx" not in answered
        assert started.admission.active == 0
