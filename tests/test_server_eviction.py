"""The server over real sockets: on a full server abandoned sockets make room."""

import asyncio
import json
import time

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from orpheus_ws import messages as m
from orpheus_ws.server import Server
from orpheus_ws.server.handshake import AdmittedConnection
from tests.harness import Peer, pcm, peer, server, turns_until
from tests.server_peers import SENTENCE, STEPPED, closed, one, socket_of

NO_PINGS = "server.ping_seconds=20"
"""No test takes so long: nothing is heard of a client but what it sends itself."""
PINGS = "server.ping_seconds=0.02"


class Clock:
    """The server's clock, which a test can move forward."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What connections and handshakes take for the time."""
    moving = Clock()
    for module in ("connection", "access_control", "handshake"):
        monkeypatch.setattr(f"orpheus_ws.server.{module}.clock", moving)
    return moving


async def assert_full(started: Server) -> None:
    """A newcomer is refused, and nobody is evicted for it."""
    with pytest.raises(InvalidStatus) as refusal:
        await connect(started.address.url)
    assert refusal.value.response.status_code == 503
    assert json.loads(refusal.value.response.body or b"")["error"] == "full"
    assert started.admission.active == started.admission.capacity


async def assert_served(connected: Peer, context: str = "served") -> None:
    """It is open and is spoken to."""
    await connected.say(context, SENTENCE)
    assert pcm(await connected.utterance(context))


def end_of(started: Server, connected: Peer) -> AdmittedConnection:
    """The server's end of a peer's socket."""
    port = connected.socket.local_address[1]
    (found,) = [each for each in sockets(started) if each.remote_address[1] == port]
    return found


def sockets(started: Server) -> list[AdmittedConnection]:
    """The server's ends of the open sockets."""
    found = [socket_of(connection) for connection in started._connections]
    assert all(isinstance(socket, AdmittedConnection) for socket in found)
    return [socket for socket in found if isinstance(socket, AdmittedConnection)]


async def test_an_abandoned_socket_makes_room(clock: Clock) -> None:
    """After 60 s without a sign of life an idle socket is closed when, and only when, it is needed."""
    async with one("engine.capacity=1", NO_PINGS) as (started, abandoned):
        await abandoned.fence()
        clock.ahead = 59.0
        await assert_full(started)
        clock.ahead = 61.0
        assert await abandoned.fence() == []  # it has been there all the time
        await assert_full(started)
        clock.ahead = 122.0
        async with peer(started.address.url) as newcomer:
            assert await closed(abandoned) == (1001, "idle_evicted")
            await assert_served(newcomer)
            await assert_full(started)


async def test_who_answers_pings_stays(clock: Clock) -> None:
    """A client that only ever answers pings is never evicted; one that does not is."""

    def silent(socket: AdmittedConnection) -> bool:
        return socket.silent_since is not None and clock() - socket.silent_since >= 60

    async with (
        server("engine.capacity=2", PINGS) as started,
        peer(started.address.url) as answering,
        peer(started.address.url) as deaf,
    ):
        await deaf.fence()
        deaf.socket.transport.pause_reading()
        stays, goes = end_of(started, answering), end_of(started, deaf)
        await turns_until(lambda: len(goes.pending_pings) > 2)
        # Again, if an answer was on its way that it had given before it stopped reading.
        while not silent(goes):
            clock.ahead += 600.0
            await turns_until(lambda: not silent(stays))
        async with peer(started.address.url) as newcomer:
            deaf.socket.transport.resume_reading()
            assert await closed(deaf) == (1001, "idle_evicted")
            for connected in (newcomer, answering):
                await assert_served(connected)


async def test_whatever_is_received_is_a_sign_of_life(clock: Clock) -> None:
    """A message or an unasked pong keeps a socket whose client answers no pings."""
    async with one("engine.capacity=1", NO_PINGS) as (started, connected):
        (socket,) = sockets(started)

        async def message() -> None:
            await connected.fence()

        for sign in (message, connected.socket.pong):
            clock.ahead += 600.0
            await sign()
            await turns_until(lambda: clock() - (socket.silent_since or 0.0) < 60)
            await assert_full(started)


@pytest.mark.parametrize("stage", ["silent", "queued", "speaking"])
async def test_an_open_context_keeps_its_socket(clock: Clock, stage: str) -> None:
    """With a context open, whatever it waits for, a socket is in use however silent its client."""
    async with one("engine.capacity=1", NO_PINGS, STEPPED) as (started, connected):
        if stage != "speaking":
            await connected.send(m.Open(context="silent"))
        if stage != "silent":
            await connected.say(stage, SENTENCE)
        if stage == "speaking":
            await connected.wait_for(m.Audio)
        await connected.fence()
        clock.ahead = 600.0
        await assert_full(started)


async def test_the_silence_begins_when_the_last_context_ends(clock: Clock) -> None:
    """A client that listened for minutes and said nothing is not evicted right afterwards."""
    async with one("engine.capacity=1", NO_PINGS, STEPPED) as (started, connected):
        await connected.say("a", "Hello.")
        await connected.wait_for(m.Started)
        clock.ahead = 300.0
        await connected.utterance("a")
        await assert_full(started)
        clock.ahead = 361.0
        async with peer(started.address.url):
            assert await closed(connected) == (1001, "idle_evicted")


async def test_the_longest_silent_goes_first(clock: Clock) -> None:
    """Of several abandoned sockets the one goes that was heard of last, and only one for one."""
    async with (
        server("engine.capacity=3", NO_PINGS) as started,
        peer(started.address.url) as first,
        peer(started.address.url) as second,
        peer(started.address.url) as third,
    ):
        for connected in (second, first, third):
            clock.ahead += 10.0
            await connected.fence()
        clock.ahead += 300.0
        async with peer(started.address.url) as newcomer:
            assert await closed(second) == (1001, "idle_evicted")
            async with peer(started.address.url) as another:
                assert await closed(first) == (1001, "idle_evicted")
                for connected in (newcomer, another, third):
                    await assert_served(connected)


async def test_the_slot_is_handed_over(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newcomer speaks while the evicted peer, which reads nothing, is still being closed."""
    for patience in ("server", "server.websocket"):  # the library's, and ours with it
        monkeypatch.setattr(f"orpheus_ws.{patience}.CLOSE_SECONDS", 3600.0)
    async with one("engine.capacity=1", NO_PINGS) as (started, deaf):
        await deaf.fence()
        deaf.socket.transport.pause_reading()
        (socket,) = sockets(started)
        clock.ahead = 61.0
        async with peer(started.address.url) as newcomer:
            assert started.admission.active == 1
            await assert_served(newcomer)
            assert not socket.lost
            assert len(started._connections) == 2
            spoken = started.engine.statistics().tokens
            # What the evicted client says now belongs to nobody.
            heard = socket._heard_at
            await deaf.say("late", SENTENCE)
            await turns_until(lambda: socket._heard_at > heard)
            await newcomer.fence()
            deaf.socket.transport.abort()
            await turns_until(lambda: socket.lost)
            assert started.engine.statistics().tokens == spoken
            assert started.admission.active == 1
            await assert_full(started)
        await turns_until(lambda: started.admission.active == 0)


async def test_an_evicted_peer_holds_nothing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that never acknowledges its eviction is cut off, and its connection with it."""
    monkeypatch.setattr("orpheus_ws.server.websocket.CLOSE_SECONDS", 0.05)
    async with one("engine.capacity=1", NO_PINGS) as (started, deaf):
        await deaf.fence()
        deaf.socket.transport.pause_reading()
        clock.ahead = 61.0
        async with peer(started.address.url) as newcomer:
            await turns_until(lambda: len(started._connections) == 1)
            await assert_served(newcomer)
        deaf.socket.transport.abort()


async def test_newcomers_at_once(clock: Clock) -> None:
    """Of many who come in the same instant as many get in as are abandoned; nobody is counted twice."""
    most = 0
    async with server("engine.capacity=4", NO_PINGS) as started:
        reserve = started.admission.reserve

        def watched(holder: AdmittedConnection, now: float) -> bool:
            nonlocal most
            admitted = reserve(holder, now)
            most = max(most, started.admission.active)
            return admitted

        started.admission.reserve = watched  # type: ignore[method-assign, assignment]
        async with (
            peer(started.address.url) as first,
            peer(started.address.url) as second,
            peer(started.address.url) as third,
            peer(started.address.url) as speaking,
        ):
            await speaking.send(m.Open(context="silent"))
            for connected in (first, second, third, speaking):
                await connected.fence()
            clock.ahead = 61.0

            async def come() -> ClientConnection:
                return await connect(started.address.url)

            outcomes = await asyncio.gather(*(come() for _ in range(8)), return_exceptions=True)
            admitted = [o for o in outcomes if not isinstance(o, BaseException)]
            assert len(admitted) == 3
            for evicted in (first, second, third):
                assert await closed(evicted) == (1001, "idle_evicted")
            assert most == started.admission.active == 4
            for socket in admitted:
                await socket.close()
