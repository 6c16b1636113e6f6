"""Several replicas behind a real proxy: who is served, and what a client notices when one goes."""

import asyncio
import contextlib
import json
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from orpheus_ws import messages as m
from orpheus_ws.cli.exits import Exit
from orpheus_ws.client import Client, Done, Sampling, connect
from orpheus_ws.client.text import SpokenText
from orpheus_ws.errors import Disconnected, EngineFailed, Refused, UtteranceFailed
from tests import fleet
from tests.faulty_engine import faulty
from tests.harness import peer
from tests.prometheus import prometheus
from tests.server_peers import SENTENCE
from tests.test_cli import command

pytestmark = pytest.mark.slow

CAPACITY = 4
OVERSUBSCRIBED = "server.oversubscription=1.5"
SOCKETS = 6
"""Of such a replica."""
REPLICAS = 3
STEPPED = "engine.options.step_seconds=0.004"
"""A sixth of a second for `SENTENCE`, so that something can happen in the middle of it."""
LONG = f"{SENTENCE} " * 4
CALLERS = 6
UTTERANCES = 500
CROWD = 24
"""As many as two replicas of half the size have room for."""
TURN = "How may I help you today?"
LEAD_MS = 10_000
"""How far ahead of the listener: these tests are not about pace."""
UNREAD_SECONDS = 3.0
"""Of 32-bit samples at 48 kHz, 0.58 MB: what may be on the way to a client that reads nothing.

0.06 to 0.14 MB without a proxy, 0.28 to 0.40 MB behind one; 3.8 MB behind HAProxy without `tune`.
"""


@contextlib.asynccontextmanager
async def clients(url: str, count: int) -> AsyncIterator[list[Client]]:
    """So many clients, each with an open socket; none waits for room."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connect(url, patience=0)) for _ in range(count)]


async def held_up(text: str, go_on: asyncio.Event) -> AsyncIterator[str]:
    """A text that is not over before it is said: its utterance cannot have ended, nor be begun anew."""
    yield text
    await go_on.wait()


async def spoken(client: Client, text: SpokenText = SENTENCE) -> bytes:
    """The samples of a whole utterance, the same ones whoever speaks it. Raises what the client does."""
    utterance = client.speak(text, sampling=Sampling(seed=1), lead_ms=LEAD_MS)
    pcm = await utterance.read()
    assert isinstance(utterance.result, Done)
    return pcm


@contextlib.asynccontextmanager
async def serving(
    name: str, folder: Path, *settings: str, capacity: int = CAPACITY
) -> AsyncIterator[tuple[list[fleet.Replica], fleet.Proxy]]:
    """Replicas behind a proxy of this name, which knows how many sockets each of them admits."""
    async with fleet.replicas(REPLICAS, capacity, *settings) as replicas:
        sockets = int(await replicas[0].metric("orpheus_sockets_admitted"))
        async with fleet.PROXIES[name](replicas, sockets, folder) as proxy:
            yield replicas, proxy


async def held(replicas: list[fleet.Replica]) -> list[float]:
    """How many sockets each of them has."""
    return [await replica.metric("orpheus_sockets") for replica in replicas]


async def refused(proxy: fleet.Proxy) -> Refused:
    """How the next handshake is refused."""
    with pytest.raises(Refused) as caught:
        async with connect(proxy.url, patience=0):
            pass
    return caught.value


@pytest.mark.parametrize("name", fleet.PROXIES)
async def test_all_capacity_is_used(name: str, tmp_path: Path) -> None:
    """As many are admitted as all replicas have room for; the next one hears 503 and may retry.

    That is so too where a replica admits more sockets than it speaks streams.
    """
    async with serving(name, tmp_path, OVERSUBSCRIBED) as (replicas, proxy):
        async with clients(proxy.url, REPLICAS * SOCKETS) as admitted:
            assert await held(replicas) == [SOCKETS] * REPLICAS
            assert len({await spoken(client) for client in admitted}) == 1
            refusal = await refused(proxy)
            assert (refusal.status, refusal.reason, refusal.retry_after) == (503, "full", 1.0)
        async with connect(proxy.url) as client:
            assert await spoken(client)


@pytest.mark.parametrize("name", ["haproxy", "nginx"])
async def test_a_full_replica_is_passed_by(name: str, tmp_path: Path) -> None:
    """A replica that refuses a handshake costs nobody his: another one is asked."""
    async with serving(name, tmp_path) as (replicas, proxy):
        elsewhere = f"ws://{replicas[0].address}/v1/tts"
        room = (REPLICAS - 1) * CAPACITY
        async with clients(elsewhere, CAPACITY), clients(proxy.url, room):
            assert await held(replicas) == [CAPACITY] * REPLICAS
            assert await replicas[0].metric("orpheus_handshakes_refused_total", reason="full") > 0
            assert (await refused(proxy)).status == 503


@pytest.mark.parametrize("name", fleet.PROXIES)
async def test_requests_come_in_by_the_same_name(name: str, tmp_path: Path) -> None:
    """Behind the port of the sockets a request is spoken whole, also where a replica refuses it.

    When no replica has room, it hears 503 in the words of its own protocol, and when to ask again.
    """
    asked = json.dumps({"input": SENTENCE, "response_format": "pcm"}).encode()
    async with serving(name, tmp_path) as (replicas, proxy):
        full, *others = replicas
        async with clients(f"ws://{full.address}/v1/tts", CAPACITY):
            refused = 0.0
            # A proxy may draw lots: the full one is asked sooner or later.
            while not refused:
                for _ in range(REPLICAS):
                    status, _, pcm = await fleet.ask(proxy.port, "/v1/audio/speech", asked)
                    assert status == 200, pcm
                    assert (status, len(pcm) > 0, len(pcm) % 2) == (200, True, 0)
                refused = await full.metric("orpheus_handshakes_refused_total", reason="full")
            async with contextlib.AsyncExitStack() as stack:
                for other in others:
                    await stack.enter_async_context(
                        clients(f"ws://{other.address}/v1/tts", CAPACITY)
                    )
                status, later, body = await fleet.ask(proxy.port, "/v1/audio/speech", asked)
                assert (status, later) == (503, "1")
                assert json.loads(body)["error"]["code"] == "full"


@pytest.mark.parametrize("name", fleet.PROXIES)
async def test_a_caller_leaves_in_the_middle(name: str, tmp_path: Path) -> None:
    """Whoever leaves while he is answered over HTTP frees his place at the replica behind the proxy."""
    body = json.dumps({"input": f"{SENTENCE} " * 40, "response_format": "pcm"}).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    async with serving(name, tmp_path) as (replicas, proxy):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(head.encode() + body)
        await reader.readuntil(b"200 OK")
        assert sum(await held(replicas)) == 1
        writer.transport.abort()
        while sum(await held(replicas)):
            pass
        ended = [await each.metric("orpheus_contexts_total", outcome="done") for each in replicas]
        assert sum(ended) == 0


@pytest.mark.parametrize("name", fleet.PROXIES)
async def test_audio_does_not_pile_up_on_the_way(name: str, tmp_path: Path) -> None:
    """A client that reads nothing is found out by its replica, with little audio on the way to it."""
    setting = "server.write_seconds=0.5"
    async with serving(name, tmp_path, setting) as (replicas, proxy):
        async with peer(proxy.url, receive_buffer=4096) as deaf:
            (replica,) = [each for each in replicas if await each.metric("orpheus_sockets")]
            deaf.socket.transport.pause_reading()
            loud = m.Open(context="a", encoding="pcm_f32le", sample_rate=48_000)
            await deaf.send(loud, m.Text(context="a", text=f"{SENTENCE} " * 20))
            while not await replica.metric("orpheus_socket_closes_total", code="1008"):
                pass
            deaf.socket.transport.abort()
        assert await replica.metric("orpheus_audio_seconds_total") < UNREAD_SECONDS


async def started(speaking: list["asyncio.Task[bytes]"], replicas: list[fleet.Replica]) -> None:
    """Wait until something is said of each of these, which `held_up` keeps in the middle of its utterance."""

    async def count(state: str) -> float:
        return sum([await each.metric("orpheus_live_contexts", state=state) for each in replicas])

    # In this order nobody is counted twice.
    while await count("starved") + await count("speaking") < len(speaking):
        assert not any(task.done() for task in speaking)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_replica_goes(number: signal.Signals, tmp_path: Path) -> None:
    """One that is killed breaks its own utterances, with a typed error; one that drains breaks none.

    Either way everybody is served afterwards, without the client having to do anything.
    """
    async with (
        serving("haproxy", tmp_path, STEPPED) as (replicas, proxy),
        clients(proxy.url, CALLERS) as callers,
    ):
        going, *staying = replicas
        go_on = asyncio.Event()
        texts = [held_up(LONG, go_on) for _ in callers]
        speaking = [asyncio.create_task(spoken(*each)) for each in zip(callers, texts, strict=True)]
        await started(speaking, replicas)
        its_own = await going.metric("orpheus_sockets")
        assert its_own == CALLERS / REPLICAS
        going.tell(number)
        go_on.set()
        ending = await going.ended()
        said = await asyncio.gather(*speaking, return_exceptions=True)
        broken = [error for error in said if not isinstance(error, bytes)]
        if number is signal.SIGKILL:
            assert [type(error) for error in broken] == [Disconnected] * int(its_own)
        else:
            assert (broken, ending) == ([], Exit.DONE)
        assert len({pcm for pcm in said if isinstance(pcm, bytes)}) == 1
        again = await asyncio.gather(*(spoken(client) for client in callers))
        assert len(set(again)) == 1
        assert sum(await held(staying)) == CALLERS


async def test_an_engine_dies(tmp_path: Path) -> None:
    """Its replica tells those whom it speaks to, ends with code 3, and the others take over.

    From then on Prometheus misses it. That it says of itself before that its engine is dead may not be seen from here
    in time; `test_every_alert_fires` sees it.
    """
    folder = tmp_path / "prometheus"
    folder.mkdir()
    settings = (STEPPED, "engine.name=tests.faulty_engine")
    async with serving("haproxy", tmp_path, *settings) as (replicas, proxy):
        mortal, *others = replicas
        with prometheus(folder) as running:
            running.scrape({"orpheus": [replica.metrics_port for replica in replicas]})
            async with clients(proxy.url, CALLERS) as callers:
                go_on = asyncio.Event()
                texts = [held_up(LONG, go_on) for _ in callers]
                speaking = [
                    asyncio.create_task(spoken(*each)) for each in zip(callers, texts, strict=True)
                ]
                await started(speaking, replicas)
                async with peer(f"ws://{mortal.address}/v1/tts") as murderer:
                    # It answers no close.
                    murderer.socket.transport.pause_reading()
                    await murderer.say("a", faulty("Die"))
                    assert await mortal.ended() == Exit.DIED
                    murderer.socket.transport.abort()
                go_on.set()
                said = await asyncio.gather(*speaking, return_exceptions=True)
                broken = [error.code for error in said if isinstance(error, UtteranceFailed)]
                assert broken == [EngineFailed.code] * (CALLERS // REPLICAS)
                whole = [pcm for pcm in said if isinstance(pcm, bytes)]
                assert (len(whole), len(set(whole))) == (CALLERS - len(broken), 1)
                again = await asyncio.gather(*(spoken(client) for client in callers))
                assert len(set(again)) == 1
                assert sum(await held(others)) == CALLERS
            while ("OrpheusTargetMissing", "orpheus") not in await asyncio.to_thread(running.fired):
                pass
        while await proxy.up() != REPLICAS - 1:
            pass


async def test_prometheus_sees_the_fleet(tmp_path: Path) -> None:
    """What autoscaling goes by is the share of the slots of those who admit: a drain takes its own out."""
    folder = tmp_path / "prometheus"
    folder.mkdir()
    # The context waits for its text for as long as the test lasts, and so does the drain for it.
    settings = ("server.drain_seconds=3600", "limits.context_idle_seconds=3600")
    async with serving("haproxy", tmp_path, *settings) as (replicas, proxy):
        with prometheus(folder) as running:
            jobs = {"orpheus": [replica.metrics_port for replica in replicas]}
            running.scrape(jobs | {"haproxy": [urlsplit(proxy.metrics).port or 0]})

            async def until(expression: str, value: float) -> None:
                while await asyncio.to_thread(running.query, expression) != [({}, value)]:
                    pass

            used = 'sum(job:orpheus_capacity_used:ratio{job="orpheus"})'
            async with (
                clients(proxy.url, (REPLICAS - 1) * CAPACITY - 1),
                peer(f"ws://{replicas[0].address}/v1/tts") as waiting,
            ):
                await until(used, (REPLICAS - 1) / REPLICAS)
                await until('sum(haproxy_server_status{proxy="replicas",state="UP"})', REPLICAS)
                at_rest = (await held(replicas))[1:]
                await waiting.send(m.Open(context="a"))
                await waiting.fence()
                replicas[0].tell(signal.SIGTERM)
                await until(used, sum(at_rest) / (REPLICAS - 1) / CAPACITY)
                await until('sum(haproxy_server_status{proxy="replicas",state="UP"})', REPLICAS - 1)


async def test_a_rolling_restart(tmp_path: Path) -> None:
    """While every replica in turn is drained and started anew, no utterance is broken."""
    said: list[bytes] = []
    rolled = asyncio.Event()

    async def call(client: Client) -> None:
        while not rolled.is_set() or len(said) < UTTERANCES:
            said.append(await spoken(client, TURN))

    settings = (STEPPED, "server.drain_seconds=60")
    async with (
        serving("haproxy", tmp_path, *settings, capacity=CROWD // 2) as (replicas, proxy),
        clients(proxy.url, CROWD) as callers,
        asyncio.TaskGroup() as calls,
    ):
        for client in callers:
            calls.create_task(call(client))
        for replica in replicas:
            assert await replica.end(signal.SIGTERM) == Exit.DONE
            await replica.start()
            while await proxy.up() < REPLICAS:
                pass
        rolled.set()
    assert len(said) >= UTTERANCES
    assert len(set(said)) == 1


async def test_the_load_harness_notices_no_drain(tmp_path: Path) -> None:
    """To callers with turns of all kinds, a replica that is restarted among them is nothing at all."""
    load = ("--streams", str(CROWD), "--traffic", "steady", "--utterances", "100", "--json")
    settings = (STEPPED, "server.drain_seconds=30")
    async with serving("haproxy", tmp_path, *settings, capacity=CROWD // 2) as (replicas, proxy):
        harness = await asyncio.create_subprocess_exec(
            *command("load", proxy.url, *load), stdout=PIPE, stderr=DEVNULL
        )
        reading = asyncio.create_task(harness.communicate())
        while sum(await held(replicas)) < CROWD:
            assert not reading.done()
        assert await replicas[0].end(signal.SIGTERM) == Exit.DONE
        assert not reading.done()
        await replicas[0].start()
        output, _ = await reading
    figures = json.loads(output)["figures"]
    assert figures["turns"] == figures["done"] >= 100
    assert (figures["failed"], figures["cut"], figures["refused"]) == (0, 0, {})
