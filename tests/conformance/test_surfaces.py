"""What every surface promises, asked of every surface over real sockets.

Rule: nothing here knows a surface; its client is `speakers/NAME.py`. The engine is simulated, so that
how much there is to hear is known and things can go wrong on purpose.
"""

import asyncio
import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from orpheus_ws.audio import LARGEST_PORTION
from orpheus_ws.server.receipts import most_unread
from orpheus_ws.surfaces import surfaces
from tests.conformance.speakers import client_of, speaking
from tests.harness import pcm, peer, server, turns_until
from tests.server_peers import AT_ONCE, SENTENCE, STEPPED, metric

SHORT = "Good morning. Nice day."
"""No longer than the lead, so that nobody has to wait for its playing."""
LONG = f"{SENTENCE} " * 20
SILENT_BYTES = 4800
"""100 ms."""
SAMPLES_PER_SECOND = 24_000
LEAD_SECONDS = 2.0
SEGMENT_SECONDS = 3.5
"""More than `SENTENCE` takes."""


@pytest.fixture(params=[surface.name for surface in surfaces()])
def surface(request: pytest.FixtureRequest) -> str:
    """One after the other."""
    name: str = request.param
    return name


async def test_all_that_is_written_is_heard(surface: str) -> None:
    """There is as much audio as the native protocol delivers for the same text, and it is counted."""
    async with server() as started:
        async with peer(started.address.url) as connected:
            await connected.say("a", SHORT)
            expected = len(pcm(await connected.utterance("a")))
        async with speaking(started, surface) as speaker:
            assert len(await speaker.turn(SHORT)) == expected
        own = 2 if surface == "native" else 1
        ended = await metric(started, "orpheus_contexts_total", outcome="done", surface=surface)
        assert ended == own


async def test_an_unfinished_turn_is_spoken(surface: str) -> None:
    """A sentence is heard before the turn it is in has ended."""
    async with server() as started, speaking(started, surface) as speaker:
        await speaker.write(LONG, complete=False)
        assert await speaker.hear()


async def test_two_turns(surface: str) -> None:
    """They are alike, on one socket where the protocol has more than one turn to a socket."""
    async with server() as started, speaking(started, surface) as speaker:
        first = await speaker.turn(SHORT)
        if client_of(surface).warm:
            second = await speaker.turn(SHORT)
        else:
            async with speaking(started, surface) as another:
                second = await another.turn(SHORT)
        assert len(first) == len(second) > 0


async def test_an_empty_turn(surface: str) -> None:
    """A turn without text is over at once."""
    async with server() as started, speaking(started, surface) as speaker:
        await speaker.write("", complete=True)
        assert await speaker.rest() == b""


@pytest.mark.parametrize("text", ["…", "🙂", "?!", "*", "\u200b"])
async def test_a_turn_without_words(surface: str, text: str) -> None:
    """It is a moment of silence: clients of others take a turn without audio for a failure.

    In the native protocol it is no audio. The next turn is heard.
    """
    expected = b"" if surface == "native" else bytes(SILENT_BYTES)
    async with server() as started:
        async with speaking(started, surface) as speaker:
            assert await speaker.turn(text) == expected
            if client_of(surface).warm:
                assert len(await speaker.turn(SHORT)) > SILENT_BYTES
        assert await metric(started, "orpheus_contexts_total", outcome="done", surface=surface)


async def test_leaving_frees_the_slot(surface: str) -> None:
    """Within two steps of the loss being seen the engine is idle; what nobody heard is counted."""
    async with server(STEPPED, "engine.options.fault=never_stops") as started:
        async with speaking(started, surface) as speaker:
            await speaker.write(LONG, complete=True)
            assert await speaker.hear()
            speaker.socket.transport.abort()
            await turns_until(lambda: started.admission.active == 0)
            turns = await turns_until(lambda: started.engine.statistics().active == 0)
            assert turns <= AT_ONCE
        await turns_until(lambda: not started._connections)
        assert started.codec.statistics().streams == 0
        assert started.turns.taken == 0
        assert (
            await metric(started, "orpheus_contexts_total", outcome="disconnected", surface=surface)
            == 1
        )
        assert await metric(started, "orpheus_orphaned_audio_seconds_total") > 0


async def test_what_an_interruption_wastes(surface: str) -> None:
    """Of a long turn that is left in the middle, at most the lead and one segment were for nobody."""
    async with server() as started:
        before = started.engine.statistics().tokens
        async with speaking(started, surface) as speaker:
            await speaker.write(LONG, complete=True)
            heard = 0
            while heard < 1.5 * SAMPLES_PER_SECOND * 2:
                heard += len(await speaker.hear())
            speaker.socket.transport.abort()
            await turns_until(lambda: not started._connections)
        wasted = await metric(started, "orpheus_orphaned_audio_seconds_total")
        assert 0 < wasted <= LEAD_SECONDS + SEGMENT_SECONDS
        generated = (started.engine.statistics().tokens - before) / 7 * 2048 / SAMPLES_PER_SECOND
        assert generated <= heard / SAMPLES_PER_SECOND / 2 + LEAD_SECONDS + SEGMENT_SECONDS


async def test_what_looking_away_wastes(surface: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long turn that nobody reads any more, what leaves is bounded, counted, and ends its slot."""
    monkeypatch.setattr("orpheus_ws.server.websocket.CLOSE_SECONDS", 0.1)
    async with server("server.write_seconds=0.3") as started:
        before = started.engine.statistics().tokens
        async with speaking(started, surface) as speaker:
            await speaker.write(LONG, complete=True)
            heard = 0.0
            while heard < 0.5:
                heard += len(await speaker.hear()) / 2 / SAMPLES_PER_SECOND
            speaker.socket.transport.pause_reading()
            await turns_until(lambda: not started._connections)
            assert started.turns.taken == 0
            speaker.socket.transport.abort()
        most = LEAD_SECONDS + most_unread(LEAD_SECONDS) + LARGEST_PORTION
        assert await metric(started, "orpheus_audio_seconds_total") <= heard + most
        wasted = await metric(started, "orpheus_orphaned_audio_seconds_total")
        assert most_unread(LEAD_SECONDS) <= wasted <= most + SEGMENT_SECONDS
        generated = (started.engine.statistics().tokens - before) / 7 * 2048 / SAMPLES_PER_SECOND
        assert generated <= heard + most + SEGMENT_SECONDS


async def test_full(surface: str) -> None:
    """A full server refuses before the upgrade, and says when to come again."""
    async with server("engine.capacity=1") as started, peer(started.address.url):
        with pytest.raises(InvalidStatus) as refusal:
            async with speaking(started, surface):
                pass
        response = refusal.value.response
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
        assert response.headers["Content-Type"] == "application/json"
        assert json.loads(response.body)


async def test_a_key_is_needed(surface: str) -> None:
    """Where there are keys, nobody gets in without one."""
    async with server("auth.keys.a=secret") as started:
        url = f"ws://127.0.0.1:{started.address.port}{client_of(surface).path}"
        with pytest.raises(InvalidStatus) as refusal:
            await connect(url)
        assert refusal.value.response.status_code == 401


async def test_what_does_not_fit(surface: str) -> None:
    """Clients that make no sense are told so as their protocol does, and nothing stays behind."""
    async with server() as started:
        async with speaking(started, surface) as speaker:
            await speaker.offend()
        await turns_until(lambda: started.admission.active == 0)


async def test_a_turn_that_fails(surface: str) -> None:
    """The client is told as its protocol does, and the next turn is heard."""
    async with server("engine.options.fault=empty", "engine.options.fault_requests=1,2") as started:
        async with speaking(started, surface) as speaker:
            await speaker.write(SHORT, complete=True)
            await speaker.fails()
            if client_of(surface).warm:
                assert await speaker.turn(SHORT)
        if not client_of(surface).warm:
            async with speaking(started, surface) as speaker:
                assert await speaker.turn(SHORT)
        failed = await metric(started, "orpheus_contexts_total", outcome="failed", surface=surface)
        assert failed == 1


async def test_drain(surface: str) -> None:
    """A turn under way is heard to its end, then the socket closes."""
    async with server(STEPPED) as started, speaking(started, surface) as speaker:
        await speaker.write(SHORT, complete=True)
        first = await speaker.hear()
        draining = asyncio.create_task(started.drain(lambda _low, _high: 0.0))
        await turns_until(lambda: started.admission.draining)
        assert first + await speaker.rest()
        await speaker.socket.wait_closed()
        assert speaker.socket.close_code == (1012 if client_of(surface).warm else 1000)
        assert await draining == 0
