"""The server over real sockets: how it goes away when it is asked to."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from orpheus_ws import messages as m
from tests.harness import TERMINAL, Peer, pcm, peer, server
from tests.server_peers import SENTENCE, STEPPED, closed, http, metric, one, rest


def at_once(low: float, _high: float) -> float:
    """Idle sockets are closed without a delay."""
    return low


def at_last(_low: float, high: float) -> float:
    """Idle sockets are closed as late as they may be."""
    return high


async def told(connected: Peer) -> m.Draining:
    """Wait until the server has said that it drains."""
    return await connected.wait_for(m.Draining)


async def test_drain() -> None:
    """Draining refuses new sockets, closes idle ones with 1012 and lets the others finish."""
    async with (
        one("server.drain_seconds=60") as (started, connected),
        peer(started.address.url) as idle,
    ):
        # It does not end before it is told to.
        await connected.send(m.Text(context="a", text=SENTENCE), m.Flush(context="a", id=1))
        await connected.wait_for(m.Audio)
        assert await metric(started, "orpheus_draining_seconds") == 0
        draining = asyncio.create_task(started.drain(at_once))
        assert (await told(idle)).deadline_ms == 60_000
        assert 0 < await metric(started, "orpheus_draining_seconds") < 60
        assert await metric(started, "orpheus_drain_limit_seconds") == 60
        assert await closed(idle) == (1012, "restart")
        with pytest.raises(InvalidStatus) as refusal:
            await connect(started.address.url)
        response = refusal.value.response
        assert response.status_code == 503
        assert json.loads(response.body or b"")["error"] == "draining"
        assert response.headers["Retry-After"] == "1"
        assert (await http(started, "/readyz"))[0] == 503
        assert (await http(started, "/healthz"))[0] == 200
        await connected.send(m.End(context="a"))
        received = await connected.utterance("a")
        assert any(isinstance(message, m.Draining) for message in received)
        assert isinstance(received[-1], m.Done)
        assert await closed(connected) == (1012, "restart")
        assert await draining == 0


@pytest.mark.parametrize(("drain_seconds", "spread"), [(2.0, 0.5), (20.0, 5.0), (3600.0, 5.0)])
async def test_how_far_idle_sockets_are_spread(drain_seconds: float, spread: float) -> None:
    """Each idle socket draws a moment of its own from a quarter of the time, at most 5 s."""
    drawn: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    async with one(f"server.drain_seconds={drain_seconds}") as (started, connected):
        async with peer(started.address.url) as other:
            draining = asyncio.create_task(started.drain(uniform))
            for idle in (connected, other):
                assert await closed(idle) == (1012, "restart")
        assert await draining == 0
    assert drawn == [(0.0, spread)] * 2


async def test_an_idle_socket_is_closed_at_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its moment a socket is served as ever, a new context included; then it is closed."""
    moments = iter([0.0, 5.0])
    offset = 0.0
    monkeypatch.setattr("orpheus_ws.server.connection.clock", lambda: time.monotonic() + offset)
    async with one("server.drain_seconds=3600") as (started, connected):
        async with peer(started.address.url) as other:
            draining = asyncio.create_task(started.drain(lambda _low, _high: next(moments)))
            for idle in (connected, other):
                await told(idle)
            # Who drew which moment is nobody's promise.
            ends = [asyncio.create_task(idle.socket.wait_closed()) for idle in (connected, other)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            (last,) = (x for x, end in zip((connected, other), ends, strict=True) if not end.done())
            await last.say("late", "One more thing.")
            assert pcm(await last.utterance("late"))
            assert await last.fence() == []
            offset = 5.0
            await last.send(m.Ping(id="any message"))
            assert await closed(last) == (1012, "restart")
        assert await draining == 0


async def test_an_idle_socket_that_says_nothing() -> None:
    """Its moment comes without a word of its client's, and long before the drain's time is over."""
    async with one("server.drain_seconds=3600") as (started, connected):
        draining = asyncio.create_task(started.drain(lambda _low, _high: 0.1))
        assert await closed(connected) == (1012, "restart")
        assert await draining == 0


async def test_a_context_that_ends_after_the_moment() -> None:
    """Once its moment has passed, a socket is closed as soon as its last context has ended."""
    async with one(STEPPED) as (started, connected):
        await connected.say("a", SENTENCE)
        await connected.say("b", SENTENCE)
        await connected.wait_for(m.Started)
        draining = asyncio.create_task(started.drain(at_once))
        received = await rest(connected)
        ended = [message.context for message in received if isinstance(message, m.Done)]
        assert ended == ["a", "b"]
        assert await closed(connected) == (1012, "restart")
        assert await draining == 0


async def test_a_context_that_waits_for_its_text() -> None:
    """A context without text is in use: its model may still write, and what comes is spoken."""
    async with one() as (started, connected):
        await connected.send(m.Open(context="a"))
        await connected.fence()
        draining = asyncio.create_task(started.drain(at_once))
        await told(connected)
        assert await connected.fence() == []
        await connected.say("a", SENTENCE)
        received = await connected.utterance("a")
        assert pcm(received)
        assert await closed(connected) == (1012, "restart")
        assert await draining == 0


async def test_a_client_that_leaves_by_itself() -> None:
    """Whoever closes after `draining` need not wait for the server's moment, nor the server for it."""
    async with one("server.drain_seconds=3600") as (started, connected):
        draining = asyncio.create_task(started.drain(at_last))
        await told(connected)
        await connected.socket.close()
        assert await draining == 0


async def silent(connected: Peer) -> None:
    """Open a context and say nothing."""
    await connected.send(m.Open(context="a"))
    await connected.fence()


async def speaking(connected: Peer) -> None:
    """Bring a context to the middle of its speech."""
    await connected.say("a", SENTENCE)
    await connected.wait_for(m.Audio)


async def queued(connected: Peer) -> None:
    """Have a context wait for its turn."""
    await connected.send(m.Open(context="a"))
    await connected.say("b", SENTENCE)
    await connected.fence()


@pytest.mark.parametrize("stage", [silent, speaking, queued])
async def test_the_deadline(stage: Callable[[Peer], Awaitable[None]]) -> None:
    """What is open when the time is over is counted, and closed with 1001 when the server is left."""
    never = "engine.options.fault=stalls", "engine.options.fault_requests=1"
    async with AsyncExitStack() as peers:
        async with server("server.drain_seconds=0.2", *never) as started:
            busy = await peers.enter_async_context(peer(started.address.url))
            idle = await peers.enter_async_context(peer(started.address.url))
            await stage(busy)
            assert await started.drain(at_once) == 1
            assert await closed(idle) == (1012, "restart")
            ending = asyncio.create_task(rest(busy))
        assert not any(isinstance(message, TERMINAL) for message in await ending)
        assert await closed(busy) == (1001, "shutdown")


async def test_a_drain_that_is_called_off() -> None:
    """Cancelling the drain, as a second signal does, leaves everything to be closed at once."""
    async with AsyncExitStack() as peers:
        async with server("server.drain_seconds=3600", STEPPED) as started:
            busy = await peers.enter_async_context(peer(started.address.url))
            await speaking(busy)
            draining = asyncio.create_task(started.drain(at_last))
            await told(busy)
            draining.cancel()
            ending = asyncio.create_task(closed(busy))
        assert await ending == (1001, "shutdown")
        assert draining.cancelled()
