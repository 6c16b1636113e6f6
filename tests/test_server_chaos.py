"""The server over real sockets: every fault at every stage, and what everybody else hears meanwhile.

Rule: one server lives through all stages of a fault. In each, a neighbour is spoken to while a client goes
wrong; the neighbour hears every sample, and afterwards everything is as it was.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from orpheus_ws import messages as m
from orpheus_ws.server import Server
from tests.chaos import CLIENTS, STAGES, TEXT
from tests.harness import Peer, pcm, peer, server, turns_until
from tests.server_peers import held

FAULTY = (
    "engine.name=tests.faulty_engine",
    "engine.capacity=2",
    "engine.options.step_seconds=0.002",
    "server.oversubscription=4",
    "server.max_queue_ms=60000",
)
HASTY = ("server.write_seconds=0.3", "server.handshake_seconds=0.3", "server.ping_seconds=0.2")
"""What is waited for is soon over."""


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
    async with server(*FAULTY, *HASTY) as started:
        async with neighbours(started, 1) as (hearing,):
            whole = await hearing
        await turns_until(lambda: not started._connections)
        before = held(started)
        for name, bring in STAGES.items():
            async with at_stage(name):
                count = 2 if name == "waiting for its turn" else 1
                async with neighbours(started, count) as speaking:
                    client = await bring(started)
                    await CLIENTS[fault].do(client)
                    assert await asyncio.gather(*speaking) == [whole] * count
                    if fault == "stop-reading":
                        # It may stay, unless it was spoken to; that it leaves is seen all the same.
                        client.leave(reset=True)
                    await turns_until(lambda: started.admission.active == count)
                client.gone()
                await turns_until(lambda: held(started) == before)
