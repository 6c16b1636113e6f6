"""The server over real sockets: more sockets than streams, and what becomes of those who wait."""

import asyncio
import contextlib

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from orpheus_ws import messages as m
from orpheus_ws.server import Server
from orpheus_ws.server.admission import sockets_for
from orpheus_ws.trace import clock
from tests.harness import Peer, audio, peer, server, turns_until
from tests.server_peers import SENTENCE, STEPPED, held, http, listening, metric, one

SHARED = ("engine.capacity=1", "server.oversubscription=3", STEPPED)
LONG = f"{SENTENCE} " * 2
MORE_MESSAGES = 15
"""Over a second of everybody's speech."""


async def speak(connected: Peer, context: str, text: str = LONG) -> None:
    """Have a text spoken, up to its first sound."""
    await connected.say(context, text)
    await connected.wait_for(m.Audio)


async def wait_in_line(started: Server, connected: Peer, context: str) -> None:
    """Have a sentence spoken for which there is no slot now."""
    before = started.turns.waiting
    await connected.say(context, SENTENCE)
    await turns_until(lambda: started.turns.waiting == before + 1)


def test_sockets_are_a_multiple_of_streams() -> None:
    """Parts of a socket are not admitted, and no multiple is one too low for being a binary number."""
    assert [sockets_for(3, ratio) for ratio in (1.0, 1.3, 1.5, 2.0)] == [3, 3, 4, 6]
    assert sockets_for(100, 1.15) == 115
    assert all(sockets_for(streams, 1.1) == streams * 11 // 10 for streams in range(1, 1000))


async def test_a_fifth_too_many_are_refused_and_nobody_notices() -> None:
    """At capacity and 20 % the excess gets 503 with Retry-After; no stream that is there has an underrun."""
    async with server("engine.capacity=10", STEPPED) as started:
        async with listening(started, 10) as listeners:
            heard = sum(listener.messages for listener in listeners)
            for _ in range(2):
                with pytest.raises(InvalidStatus) as refusal:
                    await connect(started.address.url)
                assert refusal.value.response.status_code == 503
                assert refusal.value.response.headers["Retry-After"] == "1"
            await turns_until(
                lambda: sum(one.messages for one in listeners) > heard + 10 * MORE_MESSAGES
            )
            assert [listener.player.underruns for listener in listeners] == [0] * 10
        assert started.turns.waiting == 0
        assert await metric(started, "orpheus_handshakes_refused_total", reason="full") == 2


async def test_others_wait_and_nobody_notices() -> None:
    """At 1.5 sockets a stream those who come later wait, and whoever speaks has no underrun."""
    shared = ("engine.capacity=4", "server.oversubscription=1.5", "server.max_queue_ms=60000")
    async with server(*shared, STEPPED) as started, contextlib.AsyncExitStack() as stack:
        late = [await stack.enter_async_context(peer(started.address.url)) for _ in range(2)]
        async with listening(started, 4) as listeners:
            with pytest.raises(InvalidStatus):
                await connect(started.address.url)
            for connected in late:
                await wait_in_line(started, connected, "late")
            heard = sum(listener.messages for listener in listeners)
            await turns_until(
                lambda: sum(one.messages for one in listeners) > heard + 4 * MORE_MESSAGES
            )
            assert [listener.player.underruns for listener in listeners] == [0] * 4
            assert started.turns.taken == 4
        for connected in late:
            assert isinstance((await connected.utterance("late"))[-1], m.Done)


async def test_everybody_gets_a_turn() -> None:
    """Many sockets at one stream are all spoken to, in the order they asked, and `queue_ms` is true."""
    settings = (*SHARED, "server.oversubscription=6", "server.max_queue_ms=60000")
    async with server(*settings) as started, contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(peer(started.address.url)) for _ in range(6)]
        began = clock()
        await speak(peers[0], "first")
        asked, late = [], []
        for number, connected in enumerate(peers[1:]):
            asked.append(clock())
            await wait_in_line(started, connected, f"c{number}")
            late.append(clock() - began)
        order: list[int] = []

        async def listen(number: int, connected: Peer) -> None:
            begun = await connected.wait_for(m.Started)
            order.append(number)
            waited = (clock() - asked[number]) * 1000
            assert 0 < begun.queue_ms <= waited
            # The socket before was spoken to for as long, at 3 times its pace or less.
            assert begun.queue_ms >= (number * 0.5 - late[number]) * 1000
            received = await connected.utterance(f"c{number}")
            assert audio(received)
            assert isinstance(received[-1], m.Done)

        await asyncio.gather(
            peers[0].utterance("first"),
            *(listen(*numbered) for numbered in enumerate(peers[1:])),
        )
        assert order == sorted(order)
        assert started.turns.taken == started.turns.waiting == 0
        waits = await metric(started, "orpheus_queue_seconds_sum")
        assert waits > 0.5 * (1 + 2 + 3 + 4) - sum(late)


async def test_waiting_has_an_end() -> None:
    """Who has no turn in time gets a typed error that says when to try again; the socket lives on."""
    settings = (*SHARED, "server.max_queue_ms=50")
    async with one(*settings) as (started, speaking), peer(started.address.url) as waiting:
        await speak(speaking, "a")
        await waiting.say("b", SENTENCE)
        (refused,) = await waiting.utterance("b")
        assert isinstance(refused, m.Error)
        assert (refused.code, refused.retryable, refused.fatal) == ("overloaded", True, False)
        assert refused.retry_after_ms == 1000
        assert started.turns.waiting == 0
        assert await metric(started, "orpheus_turns_missed_total") == 1
        assert isinstance((await speaking.utterance("a"))[-1], m.Done)
        await waiting.say("c", SENTENCE)
        assert isinstance((await waiting.utterance("c"))[-1], m.Done)


async def test_cancelling_leaves_the_queue() -> None:
    """A context that is cancelled while it waits leaves at once, with nothing spoken or held."""
    endless = ("engine.options.fault=never_stops", "engine.options.fault_requests=1")
    async with one(*SHARED, *endless) as (started, speaking), peer(started.address.url) as waiting:
        before = held(started)
        await speak(speaking, "a")
        await wait_in_line(started, waiting, "b")
        spoken = started.engine.statistics().active
        await waiting.send(m.Cancel(context="b", played_ms=0))
        cancelled = await waiting.wait_for(m.Cancelled)
        assert (cancelled.sent_ms, cancelled.text_remaining) == (0.0, SENTENCE)
        assert started.turns.waiting == 0
        assert started.engine.statistics().active == spoken == 1
        assert await waiting.fence() == []
        await speaking.send(m.Cancel(context="a"))
        await speaking.wait_for(m.Cancelled)
        await turns_until(lambda: held(started)[2:] == before[2:])


async def test_leaving_leaves_the_queue() -> None:
    """Sockets that go while they wait or speak leave nothing behind, and the next has the slot."""
    async with one(*SHARED) as (started, last):
        await last.fence()
        before = held(started)
        async with peer(started.address.url) as waiting, peer(started.address.url) as speaking:
            await speak(speaking, "a")
            await wait_in_line(started, waiting, "b")
            waiting.socket.transport.abort()
            await turns_until(lambda: started.turns.waiting == 0)
            await wait_in_line(started, last, "c")
            speaking.socket.transport.abort()
            assert isinstance((await last.utterance("c"))[-1], m.Done)
        await turns_until(lambda: held(started)[1:] == before[1:])


async def test_draining_serves_the_queue() -> None:
    """Whoever waits when the server is told to stop still gets a turn."""
    settings = (*SHARED, "server.drain_seconds=30", "server.max_queue_ms=60000")
    async with one(*settings) as (started, speaking), peer(started.address.url) as waiting:
        await speak(speaking, "a")
        await wait_in_line(started, waiting, "b")
        draining = asyncio.create_task(started.drain(lambda low, _high: low))
        assert isinstance((await speaking.utterance("a"))[-1], m.Done)
        assert isinstance((await waiting.utterance("b"))[-1], m.Done)
        assert await draining == 0


async def test_death_ends_the_queue() -> None:
    """When the engine dies whoever waits for a slot is told so once."""
    async with one(*SHARED) as (started, speaking), peer(started.address.url) as waiting:
        await speak(speaking, "a")
        await wait_in_line(started, waiting, "b")
        await started.engine.close()
        (failed,) = await waiting.utterance("b")
        assert isinstance(failed, m.Error)
        assert failed.code == "engine_failed"
        await turns_until(lambda: started.turns.taken == started.turns.waiting == 0)


async def test_silence_frees_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context without text keeps its slot while its listener has something to play, then not."""
    moment = clock()
    users = [f"orpheus_ws.server.{user}.clock" for user in ("connection", "spoken_context")]
    for user in users:  # until the other waits, however long that takes, nothing is played
        monkeypatch.setattr(user, lambda: moment)
    async with one(*SHARED) as (started, writing), peer(started.address.url) as waiting:
        await writing.send(m.Text(context="a", text="Hi there."), m.Flush(context="a", id=1))
        await writing.wait_for(m.Flushed)
        await wait_in_line(started, waiting, "b")
        assert started.engine.statistics().active == 0  # it is kept for `a`
        for user in users:
            monkeypatch.setattr(user, clock)
        assert isinstance((await waiting.utterance("b"))[-1], m.Done)
        # `a` has not ended and may go on.
        await writing.say("a", SENTENCE)
        received = await writing.utterance("a")
        assert audio(received)
        assert isinstance(received[-1], m.Done)


async def test_who_is_alone_keeps_its_slot() -> None:
    """Without oversubscription a context without text keeps its slot, as there is nobody to have it."""
    async with one("engine.capacity=1") as (started, writing):
        await writing.send(m.Text(context="a", text="Hi there."), m.Flush(context="a", id=1))
        await writing.wait_for(m.Flushed)
        await writing.fence()
        (connection,) = started._connections
        assert connection._rest(None) is None
        assert started.turns.taken == 1
        await writing.send(m.End(context="a"))
        await writing.wait_for(m.Done)
        assert started.turns.taken == 0


async def test_capacity_tells_both() -> None:
    """Sockets and streams are told apart, at /capacity and in the metrics."""
    async with server("engine.capacity=4", "server.oversubscription=1.5") as started:
        assert '"max":6' in (await http(started, "/capacity"))[1]
        assert '"streams":4' in (await http(started, "/capacity"))[1]
        assert await metric(started, "orpheus_capacity") == 4
        assert await metric(started, "orpheus_sockets_admitted") == 6
