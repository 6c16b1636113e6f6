"""Limits of keys, as clients meet them."""

import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.client import connect as connect_client
from orpheus_ws.errors import Refused, UtteranceFailed
from orpheus_ws.server import Server
from tests.conformance.speakers import client_of
from tests.harness import peer, server, turns_until
from tests.http_peers import PATHS, SHORT, ask, calling, every_surface, http_server
from tests.server_peers import STEPPED, metric
from tests.translators import BY_NAME

ALICE, BOB = {"X-API-Key": "alices"}, {"X-API-Key": "bobs"}


@contextlib.asynccontextmanager
async def two_keys(*settings: str) -> AsyncIterator[Server]:
    """A server with a key of Alice's and one of Bob's."""
    async with server("auth.keys.alice=alices", "auth.keys.bob=bobs", *settings) as started:
        yield started


@pytest.mark.parametrize("surface", BY_NAME)
async def test_sockets(surface: str) -> None:
    """One too many is refused before the upgrade with 429, in the words of each protocol."""
    async with two_keys("auth.sockets=1") as started:
        client = client_of(surface)
        url = f"ws://127.0.0.1:{started.address.port}{client.path}"
        async with peer(started.address.url, headers=ALICE):
            with pytest.raises(InvalidStatus) as refusal:
                await connect(url, additional_headers=ALICE)
            response = refusal.value.response
            assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
            assert b"alice" not in response.body
            assert "key_limit" in json.dumps(json.loads(response.body))
            async with peer(started.address.url, headers=BOB):
                pass
        await turns_until(lambda: started.admission.active == 0)
        async with peer(started.address.url, headers=ALICE):
            pass
        limited = await metric(started, "orpheus_key_limited_total", key="alice", limit="sockets")
        assert limited == 1
        assert await metric(started, "orpheus_key_limited_total", key="bob") == 0
        refused = await metric(started, "orpheus_handshakes_refused_total", reason="key_limit")
        assert refused == 1


@every_surface
async def test_requests(surface: str) -> None:
    """Over HTTP one too many is 429 as well, and an answered one makes room."""
    keys = ("auth.keys.alice=alices", "auth.keys.bob=bobs", "auth.sockets=1")
    async with http_server(*keys, STEPPED) as started, calling(started) as caller:
        async with peer(started.address.url, headers=ALICE):
            assert await ask(caller, surface, SHORT, **ALICE) == 429
            assert caller.headers["retry-after"] == "1"
            assert "key_limit" in json.dumps(await caller.json())
            assert await ask(caller, surface, SHORT, **BOB) == 200
            assert await caller.rest()
        await turns_until(lambda: started.admission.active == 0)
        for _ in range(2):
            assert await ask(caller, surface, SHORT, **ALICE) == 200
            assert await caller.rest()


async def test_the_client_waits_for_a_socket() -> None:
    """The SDK takes a 429 for what it is: it comes again, and says `key_limit` when that is in vain."""
    async with two_keys("auth.sockets=1") as started:
        async with peer(started.address.url, headers=ALICE):
            with pytest.raises(Refused) as refused:
                async with connect_client(started.address.url, api_key="alices", patience=0):
                    pass
        assert (refused.value.status, refused.value.reason) == (429, "key_limit")
        assert (refused.value.retryable, refused.value.retry_after) == (True, 1.0)


async def test_contexts() -> None:
    """So many on all sockets of a key together; another key has its own."""
    async with (
        two_keys("auth.contexts=2", STEPPED) as started,
        peer(started.address.url, headers=ALICE) as first,
        peer(started.address.url, headers=ALICE) as second,
        peer(started.address.url, headers=BOB) as other,
    ):
        await first.send(m.Open(context="a"))
        await first.fence()
        await second.send(m.Open(context="b"))
        await second.fence()
        for name, connected in (("c", first), ("d", second)):
            await connected.send(m.Text(context=name, text=SHORT))
            (refused,) = await connected.fence()
            assert isinstance(refused, m.Error)
            assert (refused.code, refused.context) == ("context_limit", name)
            assert (refused.retryable, refused.fatal) == (True, False)
        await other.say("e", SHORT)
        assert isinstance((await other.utterance("e"))[-1], m.Done)
        first.socket.transport.abort()
        await turns_until(lambda: started.quotas.of("alice").contexts == 1)
        await second.say("f", SHORT)
        await second.send(m.End(context="b"))
        assert isinstance((await second.utterance("f"))[-1], m.Done)
        assert started.quotas.of("alice").contexts == 0
        limited = await metric(started, "orpheus_key_limited_total", key="alice", limit="contexts")
        assert limited == 2


async def test_text() -> None:
    """So many characters a minute on all sockets of a key; what is too much says when to come again."""
    async with (
        two_keys("auth.text_per_minute=50") as started,
        peer(started.address.url, headers=ALICE) as first,
        peer(started.address.url, headers=ALICE) as second,
        peer(started.address.url, headers=BOB) as other,
    ):
        await first.say("a", SHORT)
        assert isinstance((await first.utterance("a"))[-1], m.Done)
        await second.say("b", f"{SHORT} {SHORT}")
        refused = (await second.utterance("b"))[-1]
        assert isinstance(refused, m.Error)
        assert (refused.code, refused.retryable) == ("rate_limited", True)
        assert refused.retry_after_ms is not None
        assert 0 < refused.retry_after_ms <= 60_000
        await second.say("c", "x" * 51)
        never = (await second.utterance("c"))[-1]
        assert isinstance(never, m.Error)
        assert (never.code, never.retryable) == ("text_too_long", False)
        await other.say("d", f"{SHORT} {SHORT}")
        assert isinstance((await other.utterance("d"))[-1], m.Done)
        spoken = await metric(started, "orpheus_key_characters_total", key="alice")
        assert spoken == len(SHORT)


@every_surface
async def test_text_over_http(surface: str) -> None:
    """Too much text is 429 with the time to wait; more than ever fits is 400."""
    settings = ("auth.keys.alice=alices", "auth.text_per_minute=30")
    async with http_server(*settings) as started, calling(started) as caller:
        assert await ask(caller, surface, SHORT, **ALICE) == 200
        assert await caller.rest()
        assert await ask(caller, surface, SHORT, **ALICE) == 429
        assert 0 < int(caller.headers["retry-after"]) <= 60
        assert "rate_limited" in json.dumps(await caller.json())
        assert await ask(caller, surface, "x" * 31, **ALICE) == 400
        assert "text_too_long" in json.dumps(await caller.json())
        assert PATHS[surface]


@pytest.mark.parametrize("surface", BY_NAME)
async def test_text_on_every_surface(surface: str) -> None:
    """The turn fails as its protocol has it, and another key's turn on the same surface is heard."""
    async with two_keys("auth.text_per_minute=30") as started:
        client = client_of(surface)
        url = f"ws://127.0.0.1:{started.address.port}{client.path}"
        subprotocols = [Subprotocol(name) for name in client.subprotocols] or None
        for key, heard in ((ALICE, True), (ALICE, False), (BOB, True)):
            async with connect(url, additional_headers=key, subprotocols=subprotocols) as socket:
                speaker = client(socket)
                await speaker.greet()
                await speaker.write(SHORT, complete=True)
                if heard:
                    assert await speaker.rest()
                else:
                    assert "rate_limited" in await told(socket)
        assert await metric(started, "orpheus_key_limited_total", key="alice", limit="text")
        assert not await metric(started, "orpheus_key_limited_total", key="bob", limit="text")


async def told(socket: ClientConnection) -> str:
    """What is said of the limit, in a message or as the socket closes."""
    try:
        while b"rate_limited" not in (frame := await socket.recv(decode=False)):
            pass
    except ConnectionClosed:
        return socket.close_reason or ""
    return frame.decode("latin-1")


async def test_the_client_hears_of_it() -> None:
    """The SDK raises the code, and whether a retry can help."""
    async with (
        two_keys("auth.text_per_minute=30") as started,
        connect_client(started.address.url, api_key="alices") as client,
    ):
        assert await client.speak(SHORT).read()
        with pytest.raises(UtteranceFailed) as failed:
            await client.speak(SHORT).read()
        assert (failed.value.code, failed.value.retryable) == ("rate_limited", True)
        assert failed.value.retry_after_ms is not None
        assert 0 < failed.value.retry_after_ms <= 60_000
