"""The server over real sockets: clients that answer pings and stop reading in the middle of their speech."""

import pytest
from websockets.frames import Opcode

from orpheus_ws import messages as m
from orpheus_ws.audio import LARGEST_PORTION
from orpheus_ws.server.delivery import Delivery
from orpheus_ws.server.receipts import RECEIPT_SLACK, most_unread
from orpheus_ws.trace import clock
from tests.harness import Peer, audio, pcm, peer, server, turns_until
from tests.server_peers import SENTENCE, metric, one

LEAD_MS = 1000
MOST = most_unread(LEAD_MS / 1000) + LARGEST_PORTION
LONG = f"{SENTENCE} " * 3
SEED = m.Sampling(seed=1)
BYTES_PER_SECOND = 48_000
PATIENT = "server.write_seconds=600"
AWAY = 600.0
"""Seconds for which somebody reads nothing."""


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that does not acknowledge the close is cut off soon."""
    monkeypatch.setattr("orpheus_ws.server.websocket.CLOSE_SECONDS", 0.1)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Grows whenever the server begins to hold speech back."""
    times: list[float] = []
    caught_up = Delivery.caught_up

    async def noted(delivery: Delivery, most: float) -> None:
        times.append(most)
        await caught_up(delivery, most)

    monkeypatch.setattr(Delivery, "caught_up", noted)
    return times


async def look_away(connected: Peer, text: str = LONG) -> list[m.ServerMessage]:
    """Ask for speech, hear the first of it and answer a ping, and read nothing from then on."""
    await connected.send(m.Open(context="a", lead_ms=LEAD_MS, sampling=SEED))
    await connected.say("a", text)
    received: list[m.ServerMessage] = []
    while not audio(received):
        received.append(await connected.receive())
    # The pong to a ping behind the first audio leaves before what answers this.
    received += await connected.fence()
    connected.socket.transport.pause_reading()
    return received


async def whole() -> bytes:
    """What `LONG` sounds like to somebody who reads."""
    async with one() as (_, connected):
        await connected.send(m.Open(context="a", lead_ms=10_000, sampling=SEED))
        await connected.say("a", LONG)
        return pcm(await connected.utterance("a"))


async def test_what_leaves_for_somebody_who_looks_away() -> None:
    """It is bounded by the window, it is counted, engine and codec are free, and the socket is closed."""
    settings = ("engine.options.fault=never_stops", "server.write_seconds=0.3")
    async with server(*settings) as started, peer(started.address.url) as deaf:
        sampling = m.Sampling(max_tokens=2048)
        await deaf.send(m.Config(sampling=sampling))
        heard = len(pcm(await look_away(deaf, f"{SENTENCE} " * 20))) / BYTES_PER_SECOND
        await turns_until(lambda: not started._connections)
        assert started.engine.statistics().active == 0
        assert started.codec.statistics().streams == 0
        assert started.turns.taken == 0
        sent = await metric(started, "orpheus_audio_seconds_total")
        # What the client's library took before it stopped was read, but not counted as heard here.
        assert sent - heard <= MOST + RECEIPT_SLACK
        orphaned = await metric(started, "orpheus_orphaned_audio_seconds_total")
        assert orphaned >= most_unread(LEAD_MS / 1000)
        assert await metric(started, "orpheus_socket_closes_total", code="1008") == 1


async def test_who_returns_hears_everything_once(
    held: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops reading and reads on misses nothing, gets nothing twice, and starved of nothing."""
    async with one(PATIENT) as (started, connected):
        received = await look_away(connected)
        await turns_until(lambda: bool(held))
        before = await metric(started, "orpheus_audio_seconds_total")
        # It stays away for so long that the virtual player runs dry.
        for user in ("connection", "spoken_context"):
            monkeypatch.setattr(f"orpheus_ws.server.{user}.clock", lambda: clock() + AWAY)
        assert await metric(started, "orpheus_audio_seconds_total") == before
        connected.socket.transport.resume_reading()
        received += await connected.utterance("a")
        assert pcm(received) == await whole()
        assert [type(each) for each in received if isinstance(each, m.Done)] == [m.Done]
        assert await connected.fence() == []
        # Seconds, as the machine may have held up both of them for a few.
        assert await metric(started, "orpheus_underrun_seconds_total") < AWAY / 10
        assert await metric(started, "orpheus_orphaned_audio_seconds_total") == 0


async def test_who_interrupts_while_it_reads_nothing(held: list[float]) -> None:
    """`cancel` ends what is held back, at once and once, and the next context is spoken."""
    async with one(PATIENT) as (started, connected):
        await look_away(connected)
        await turns_until(lambda: bool(held))
        await connected.send(m.Cancel(context="a"))
        await connected.say("b", "Hi.")
        (connection,) = started._connections
        await turns_until(lambda: [each.id for each in connection._session.contexts] == ["b"])
        connected.socket.transport.resume_reading()
        received = await connected.utterance("b")
        (end,) = [at for at, each in enumerate(received) if isinstance(each, m.Cancelled)]
        assert audio(received[end:], "a") == []
        assert pcm(received, "b")
        orphaned = await metric(started, "orpheus_orphaned_audio_seconds_total")
        assert orphaned >= most_unread(LEAD_MS / 1000)


async def test_who_leaves_a_turn_that_was_sent_to_its_end() -> None:
    """A short rest fits the window: the turn is done, and what was not read of it counts at the end."""
    async with server() as started:
        async with peer(started.address.url) as connected:
            await connected.send(m.Config(lead_ms=LEAD_MS))
            await look_away(connected, "Good morning. Nice day.")
            await turns_until(lambda: all(each.idle_since for each in started._connections))
            assert await metric(started, "orpheus_orphaned_audio_seconds_total") == 0
            connected.socket.transport.abort()
            await turns_until(lambda: not started._connections)
        assert await metric(started, "orpheus_contexts_total", outcome="done") == 1
        assert await metric(started, "orpheus_orphaned_audio_seconds_total") > 0


async def test_who_hears_everything_leaves_nothing_unheard() -> None:
    """After turns that were read to their end, a socket that closes adds nothing to what is orphaned."""
    async with server() as started:
        async with peer(started.address.url) as connected:
            for context in ("a", "b"):
                await connected.say(context, SENTENCE)
                await connected.utterance(context)
        await turns_until(lambda: not started._connections)
        assert await metric(started, "orpheus_orphaned_audio_seconds_total") == 0


async def test_who_never_answers_pings(held: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent everything, and nobody waits for it."""
    async with one() as (_, connected):
        protocol = connected.socket.protocol
        send = protocol.send_frame
        monkeypatch.setattr(
            protocol, "send_frame", lambda frame: frame.opcode is Opcode.PONG or send(frame)
        )
        await connected.send(m.Open(context="a", lead_ms=200, sampling=SEED))
        await connected.say("a", LONG)
        received = await connected.utterance("a")
    assert pcm(received) == await whole()
    assert held == []
