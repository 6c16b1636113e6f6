"""The server over real sockets: every fault at every stage, and what everybody else hears meanwhile.

Rule: one server lives through all stages of a fault. In each, a neighbour is spoken to while a client goes
wrong; the neighbour hears every sample, and afterwards everything is as it was.
"""

import asyncio
import contextlib
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orpheus_ws import messages as m
from orpheus_ws.codec import Work
from orpheus_ws.codec.patience import MOST_FAILURES
from orpheus_ws.codec.simulated import ToneDecoder
from orpheus_ws.engine import Prompt
from orpheus_ws.pcm import Chunk, Samples
from orpheus_ws.server import Server
from tests import stuck_codec
from tests.chaos import CLIENTS, ENGINE, SENTENCE, STAGES, TEXT, table
from tests.faulty_engine import faulty
from tests.harness import Peer, pcm, peer, server, turns_until
from tests.server_peers import closed, held, http, metric, rest

ROOT = Path(__file__).parents[1]

FAULTY = (
    "engine.name=tests.faulty_engine",
    "engine.capacity=2",
    "engine.options.step_seconds=0.002",
    "server.oversubscription=4",
    "server.max_queue_ms=60000",
)
PINGS = "server.ping_seconds=0.2"
WRITE_SECONDS = 0.3
"""What is waited for is soon over; of whoever does nothing wrong nobody loses patience."""
QUICK = ("handshake", "idle", "mid-segment")
"""Stages of what TCP takes its time to find out; the others are in `tests/slow`."""


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is what no configuration says."""
    monkeypatch.setattr("orpheus_ws.server.websocket.CLOSE_SECONDS", 0.1)
    monkeypatch.setattr("orpheus_ws.server.tcp.USER_TIMEOUT_MS", 500)


@contextlib.asynccontextmanager
async def neighbours(started: Server, count: int) -> AsyncIterator[list[asyncio.Task[bytes]]]:
    """So many who do nothing wrong, in the middle of what they hear; the tasks come to all of it."""
    async with contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(peer(started.address.url)) for _ in range(count)]
        hearing = []
        for connected in peers:
            await connected.say("a", TEXT)
            begun = await connected.wait_for(m.Audio)
            hearing.append(asyncio.create_task(_heard(connected, begun)))
        yield hearing


async def _heard(connected: Peer, begun: m.Audio) -> bytes:
    received = [begun, *await connected.utterance("a")]
    assert isinstance(received[-1], m.Done), received[-1]
    return pcm(received)


@contextlib.asynccontextmanager
async def at_stage(name: str) -> AsyncIterator[None]:
    """A failure within says where."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"at the stage {name!r}")
        raise


@pytest.mark.parametrize("fault", CLIENTS)
async def test_a_client_goes_wrong(fault: str) -> None:
    """Whatever a client does, whenever: nobody else hears it, and nothing of it is left."""
    async with server(*FAULTY, PINGS) as started:
        async with neighbours(started, 1) as (hearing,):
            whole = await hearing
        await turns_until(lambda: not started._connections)
        before = held(started)
        for name in QUICK if fault == "vanish" else STAGES:
            async with at_stage(name):
                count = 2 if name == "waiting for its turn" else 1
                async with neighbours(started, count) as speaking:
                    others = set(started._connections)
                    client = await STAGES[name](started)
                    for connection in started._connections - others:
                        connection._delivery._write_seconds = WRITE_SECONDS
                    await CLIENTS[fault].do(client)
                    assert await asyncio.gather(*speaking) == [whole] * count
                    if fault == "stop-reading":
                        # It may stay, unless it was spoken to; that it leaves is seen all the same.
                        client.leave(reset=True)
                    while started.admission.active > count:  # noqa: ASYNC110 - as `turns_until`
                        await asyncio.sleep(0)
                client.gone()
                await turns_until(lambda: held(started) == before)


def hasty(started: Server, word: str) -> Callable[..., AsyncGenerator[Chunk, None]]:
    """Speaking as the server does, which soon gives up an engine that stalls on a text with this first word.

    Nobody else's is given up: a machine that stands still looks like an engine that does.
    """
    synthesis = started.synthesis
    speak, patience = synthesis.speak, synthesis._stall_seconds

    def speaking(prompt: Prompt, *others: Any) -> AsyncGenerator[Chunk, None]:
        synthesis._stall_seconds = 0.5 if prompt.text.startswith(word) else patience
        return speak(prompt, *others)

    return speaking


def ending(message: m.ServerMessage) -> str:
    """How a context ended."""
    if isinstance(message, m.Error):
        return message.code
    assert isinstance(message, m.Done)
    return message.reason


@pytest.mark.parametrize("stage", ["first segment", "later segment", "draining"])
@pytest.mark.parametrize("fault", ENGINE)
async def test_the_engine_goes_wrong(
    fault: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What befalls a segment is its context's, unless the engine is dead; the next one is spoken."""
    befalls = ENGINE[fault]
    text = (
        f"{SENTENCE} {faulty(befalls.word)}" if stage == "later segment" else faulty(befalls.word)
    )
    async with server(*FAULTY, "engine.options.step_seconds=0.005") as started:
        if fault == "stalls":
            monkeypatch.setattr(started.synthesis, "speak", hasty(started, befalls.word))
        async with neighbours(started, 1) as (hearing,):
            whole = await hearing
        await turns_until(lambda: not started._connections)
        before = held(started)
        async with neighbours(started, 1) as (hearing,), peer(started.address.url) as victim:
            await victim.send(m.Open(context="a", sampling=m.Sampling(max_tokens=400)))
            await victim.say("a", text)
            draining = []
            if stage == "draining":
                await victim.wait_for(m.Started)
                draining.append(asyncio.create_task(started.drain(lambda _low, _high: 0.0)))
            heard = await victim.utterance("a")
            assert ending(heard[-1]) == befalls.ending
            if fault == "dies":
                assert await closed(victim) == (1011, "engine_failed")
                await started.wait_dead()
                (heard_by_other,) = await asyncio.gather(hearing, return_exceptions=True)
                assert heard_by_other == whole or isinstance(heard_by_other, AssertionError)
            else:
                assert await hearing == whole
                if stage != "draining":
                    await victim.say("b", SENTENCE)
                    assert isinstance((await victim.utterance("b"))[-1], m.Done)
            for task in draining:
                await task
        await turns_until(lambda: held(started)[1:] == before[1:])


class Decoder(ToneDecoder):
    """A codec that can be made to fail."""

    failures = 0

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """See `Decoder`."""
        if Decoder.failures:
            Decoder.failures -= 1
            raise RuntimeError("an illegal memory access was encountered")
        return super().step(batch)


@pytest.fixture
def _codec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orpheus_ws.codec.simulated.ToneDecoder", Decoder)
    monkeypatch.setattr(Decoder, "failures", 0)


@pytest.mark.usefixtures("_codec")
async def test_a_step_of_the_codec_fails() -> None:
    """Contexts in that step end with `internal`, on sockets that live on; nobody else hears anything."""
    async with server(*FAULTY) as started:
        async with neighbours(started, 1) as (hearing,):
            whole = await hearing
        await turns_until(lambda: not started._connections)
        before = held(started)
        async with peer(started.address.url) as victim:
            await victim.say("a", TEXT)
            await victim.wait_for(m.Audio)
            Decoder.failures = 1
            assert ending((await victim.utterance("a"))[-1]) == "internal"
            async with neighbours(started, 1) as (hearing,):
                assert await hearing == whole
            await victim.say("b", TEXT)
            assert pcm(await victim.utterance("b")) == whole
        await turns_until(lambda: held(started) == before)


@pytest.mark.usefixtures("_codec")
async def test_every_step_of_the_codec_fails() -> None:
    """A codec that can decode nothing is dead after so many steps, and the server says so and ends."""
    async with server(*FAULTY) as started, peer(started.address.url) as victim:
        Decoder.failures = 10**9
        for number in range(MOST_FAILURES):
            await victim.say(f"{number}", SENTENCE)
        heard = await rest(victim)
        errors = [message.code for message in heard if isinstance(message, m.Error)]
        assert errors == ["internal"] * MOST_FAILURES
        await started.wait_dead()
        assert await closed(victim) == (1011, "internal")
        assert not started.health.alive


async def test_a_codec_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is told so, and the server ends without waiting for it."""
    monkeypatch.setattr("orpheus_ws.codec.loop.CLOSE_SECONDS", 0.01)
    stuck_codec.RELEASE.clear()
    async with server("codec.name=tests.stuck_codec", *FAULTY) as started:
        async with peer(started.address.url) as victim, peer(started.address.url) as other:
            await other.send(m.Open(context="silent"))
            # From now on: the step of the server's own test word may take its time.
            monkeypatch.setattr("orpheus_ws.codec.patience.LOOK_SECONDS", 0.005)
            await victim.say("a", TEXT)
            assert ending((await victim.utterance("a"))[-1]) == "internal"
            assert await closed(victim) == await closed(other) == (1011, "internal")
        await started.wait_dead()
    stuck_codec.RELEASE.set()


async def test_the_event_loop_stands_still() -> None:
    """Everything comes late, nothing is lost, and the metrics say by how much, then and afterwards."""
    begun = time.monotonic()
    async with server(*FAULTY) as started:
        async with neighbours(started, 1) as (hearing,):
            whole = await hearing
        async with neighbours(started, 2) as hearing_both:
            with ThreadPoolExecutor(1) as scraping:
                scrape = scraping.submit(stopped_seconds, started)
                while not scrape.done():  # the event loop is ours, and does not turn
                    pass
                assert 0.5 < scrape.result() < time.monotonic() - begun
            assert await asyncio.gather(*hearing_both) == [whole] * 2
        while await metric(started, "orpheus_event_loop_stopped_seconds") > 0.5:
            pass  # a machine that is busy may hold it up once more
        _, page = await http(started, "/metrics", port=started.address.metrics_port)
        name = "orpheus_event_loop_late_seconds_bucket"
        assert sample(page, f'{name}{{le="+Inf"}}') - sample(page, f'{name}{{le="0.5"}}') >= 1


def stopped_seconds(started: Server) -> float:
    """Scrape until the event loop is seen to stand still."""
    while True:
        url = f"http://127.0.0.1:{started.address.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            stopped = sample(response.read().decode(), "orpheus_event_loop_stopped_seconds")
        if stopped > 0.5:
            return stopped


def sample(page: str, name: str) -> float:
    """One sample of a page of metrics."""
    (line,) = (line for line in page.splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


@pytest.mark.parametrize("leap", [-86_400.0, 86_400.0])
async def test_the_wall_clock_leaps(leap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day back or forth in the middle of speech: nobody hears it, and nobody is closed for it."""
    async with server(*FAULTY, "limits.idle_seconds=60", "limits.session_seconds=60") as started:
        async with neighbours(started, 1) as (hearing,):
            whole = await hearing
        async with peer(started.address.url) as idle, neighbours(started, 2) as hearing_both:
            true = time.time
            monkeypatch.setattr(time, "time", lambda: true() + leap)
            assert await asyncio.gather(*hearing_both) == [whole] * 2
            assert await idle.fence() == []
            async with neighbours(started, 1) as (hearing,):
                assert await hearing == whole


def test_the_page_has_the_table() -> None:
    """docs/reliability.md says what this suite tests."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert table() in page
