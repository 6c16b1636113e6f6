"""The server over real sockets: what everybody is told when engine or codec dies."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from orpheus_ws import messages as m
from orpheus_ws.codec import Work
from orpheus_ws.codec.simulated import ToneDecoder
from orpheus_ws.pcm import Samples
from orpheus_ws.server import Server
from tests.harness import JSON, MSGPACK, TERMINAL, Peer, audio, peer, server, turns_until
from tests.server_peers import SENTENCE, STEPPED, closed, http, metric, one, rest, socket_of

LONG = (STEPPED, "engine.options.frames_per_char=10")
"""Whoever speaks does so for longer than a test stands still: of the 25 s there is a lead of 2 s at most."""
DIES_LAST = ("engine.options.fault=dies", "engine.options.fault_requests=3", *LONG)
"""Request 0 is the probe at start-up; two sockets speak before the one that kills the engine."""


def outcomes(received: list[m.ServerMessage]) -> Counter[tuple[str | None, str]]:
    """How often each context got a terminal message, with its code if it was an error."""
    return Counter(
        (message.context, message.code if isinstance(message, m.Error) else "no error")
        for message in received
        if isinstance(message, TERMINAL)
    )


async def busy(connected: Peer) -> None:
    """Have one context speak, one wait for its turn, and one for its text."""
    await connected.send(m.Config(lead_ms=2000))
    await connected.say("speaking", SENTENCE)
    await connected.say("queued", SENTENCE)
    await connected.send(m.Open(context="silent"))
    await connected.wait_for(m.Audio)


async def assert_dead(started: Server) -> None:
    """It is not ready and admits nobody, though its process answers."""
    assert (await http(started, "/readyz"))[0] == 503
    assert (await http(started, "/healthz"))[0] == 200
    with pytest.raises(InvalidStatus) as refusal:
        await connect(started.address.url)
    response = refusal.value.response
    assert response.status_code == 503
    assert json.loads(response.body or b"")["error"] == "dead"
    assert response.headers["Retry-After"] == "1"


@pytest.mark.parametrize("subprotocol", [MSGPACK, JSON])
async def test_engine_death(subprotocol: str) -> None:
    """When the engine dies every open context, whatever it waits for, fails exactly once."""
    async with AsyncExitStack() as peers, server(*DIES_LAST) as started:
        sockets = [
            await peers.enter_async_context(peer(started.address.url, subprotocol))
            for _ in range(4)
        ]
        for speaker in sockets[:2]:
            await busy(speaker)
        await sockets[2].send(m.Open(context="silent"))
        await sockets[2].fence()
        async with peer(started.address.url) as killer:
            await killer.say("fatal", SENTENCE)
            received = [await rest(connected) for connected in (*sockets, killer)]
            await started.wait_dead()
            for connected in (*sockets, killer):
                assert await closed(connected) == (1011, "engine_failed")
            await assert_dead(started)
        everything = {(name, "engine_failed"): 1 for name in ("speaking", "queued", "silent")}
        assert [outcomes(messages) for messages in received] == [
            everything,
            everything,
            {("silent", "engine_failed"): 1},
            {},
            {("fatal", "engine_failed"): 1},
        ]
        for messages in received:
            errors = [message for message in messages if isinstance(message, m.Error)]
            assert all(error.retryable and not error.fatal for error in errors)
            if errors:
                assert not audio(messages[messages.index(errors[0]) :])
        await turns_until(lambda: not started._connections)
        assert started.admission.active == 0
        assert await metric(started, "orpheus_socket_closes_total", code="1011") == 5
        assert await metric(started, "orpheus_contexts_total", outcome="failed") == 8
        assert await metric(started, "orpheus_alive", part="engine") == 0
        assert await metric(started, "orpheus_alive", part="codec") == 1


async def test_codec_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec whose thread has ended is as fatal as an engine: nobody is left waiting for audio."""

    def leave(_decoder: ToneDecoder, _batch: Sequence[Work]) -> list[Samples]:
        raise SystemExit("the driver had enough")

    async with one(*LONG) as (started, connected), peer(started.address.url) as other:
        for speaker in (connected, other):
            await busy(speaker)
        monkeypatch.setattr(ToneDecoder, "step", leave)
        for received in (await rest(connected), await rest(other)):
            assert outcomes(received) == {
                (name, "internal"): 1 for name in ("speaking", "queued", "silent")
            }
        await started.wait_dead()
        for speaker in (connected, other):
            assert await closed(speaker) == (1011, "internal")
        await assert_dead(started)


async def test_a_client_that_reads_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with unread audio before it finds every terminal message behind it."""
    for patience in ("server", "server.websocket"):  # the library's, and ours with it
        monkeypatch.setattr(f"orpheus_ws.{patience}.CLOSE_SECONDS", 30.0)
    never = ("engine.options.fault=never_stops", "server.write_seconds=30")
    async with one(*never) as (started, late):
        late.socket.transport.pause_reading()
        contexts = [f"{number}" for number in range(30)]
        for context in contexts:
            await late.say(context, SENTENCE)
        (connection,) = started._connections
        socket = socket_of(connection)
        await turns_until(lambda: socket.paused)
        await started.engine.close()
        await turns_until(lambda: connection.idle_since is not None)
        late.socket.transport.resume_reading()
        received = await rest(late)
        assert outcomes(received) == {(context, "engine_failed"): 1 for context in contexts}
        assert await closed(late) == (1011, "engine_failed")


async def test_a_client_that_never_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads nothing does not hold the end of a dead server up."""
    monkeypatch.setattr("orpheus_ws.server.websocket.CLOSE_SECONDS", 0.1)
    never = ("engine.options.fault=never_stops", "server.write_seconds=3600")
    async with one(*never) as (started, deaf):
        deaf.socket.transport.pause_reading()
        for number in range(8):
            await deaf.say(f"{number}", SENTENCE)
        (connection,) = started._connections
        await turns_until(lambda: socket_of(connection).paused)
        await started.engine.close()
        await started.wait_dead()
        await turns_until(lambda: not started._connections)
        assert started.admission.active == 0
        assert started.codec.statistics().streams == 0
        deaf.socket.transport.abort()


async def test_death_ends_a_drain() -> None:
    """A server whose engine dies while it drains has nothing left to wait for."""
    async with one("server.drain_seconds=3600") as (started, connected):
        await connected.send(m.Open(context="silent"))
        await connected.fence()
        draining = asyncio.create_task(started.drain())
        await connected.wait_for(m.Draining)
        await started.engine.close()
        assert outcomes(await rest(connected)) == {("silent", "engine_failed"): 1}
        assert await draining == 0
        await started.wait_dead()


async def test_nothing_is_opened_on_a_dead_server() -> None:
    """What a client says after the last message it got opens nothing and is not spoken."""
    async with one() as (started, connected):
        await started.engine.close()
        # It was sent before the close frame could arrive.
        await connected.send(m.Text(context="a", text=SENTENCE), m.End(context="a"))
        received = await rest(connected)
        assert not audio(received)
        assert outcomes(received) in ({}, {("a", "engine_failed"): 1})
        assert await closed(connected) == (1011, "engine_failed")
