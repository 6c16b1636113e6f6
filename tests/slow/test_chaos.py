"""Faults of a whole server's process, and how long TCP takes to notice who has gone.

`pytest -s tests/slow/test_chaos.py -k notices` prints the figures of docs/reliability.md.
"""

import asyncio
import contextlib
import resource
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from orpheus_ws import messages as m
from orpheus_ws.cli.exits import Exit
from tests.chaos import CLIENTS, STAGES, TEXT, Client
from tests.harness import peer, server, turns_until
from tests.server_peers import closed, rest
from tests.soak.listeners import reference
from tests.soak.server import SIMULATED, Subject, subject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PATIENT = (
    "server.drain_seconds=3600",
    "server.write_seconds=600",
    "server.handshake_seconds=600",
    "limits.context_idle_seconds=600",
)
FEW = 48
"""Descriptors: three times what an idle server holds."""


@contextlib.asynccontextmanager
async def served(folder: Path, *settings: str) -> AsyncIterator[Subject]:
    """A server in a process of its own."""
    with contextlib.ExitStack() as stack:
        server = subject([*SIMULATED, *settings], folder / "server.log")
        yield await asyncio.to_thread(stack.enter_context, server)


async def ended(server: Subject) -> Exit:
    """How its process ends."""
    return Exit(await asyncio.to_thread(server.process.wait, 60))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_signal(stage: str, number: signal.Signals, tmp_path: Path) -> None:
    """Told to end, it speaks what was begun and ends well; killed, it is gone, and clients know."""
    async with served(tmp_path, *PATIENT) as server:
        client = await STAGES[stage](server)
        server.process.send_signal(number)
        if number is signal.SIGKILL:
            if client.greeted:
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        await client.peer.receive()
                assert client.peer.socket.close_code == 1006
            assert await asyncio.to_thread(server.process.wait, 60) == -signal.SIGKILL
            client.gone()
            return
        if client.greeted:
            # On a machine that stood still, the last segment may be over before the signal is seen.
            heard: list[m.ServerMessage] = []
            while not isinstance(message := await client.peer.receive(), m.Draining):
                heard.append(message)
            if stage in ("opened, no text", "between segments"):
                await client.peer.say("a", TEXT)
            heard += await rest(client.peer)
            if stage != "idle":
                assert [type(x) for x in heard if isinstance(x, m.Done | m.Error)] == [m.Done]
            assert await closed(client.peer) == (1012, "restart")
        assert await ended(server) is Exit.DONE
        client.gone()


async def counts(server: Subject) -> dict[str, int]:
    """What it holds now."""
    return (await asyncio.to_thread(server.held, 0.0)).counts


async def test_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gets in then; whoever is in hears everything; with descriptors again all is as before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with served(tmp_path) as server:
        known = await reference(server)
        # Whoever the reference was spoken to may still be on his way out.
        while (idle := await counts(server))["sockets"] or idle["connections"]:
            pass
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (FEW, before[1]))
        async with peer(server.address.url) as inside:
            clients = [await STAGES["TCP connected"](server) for _ in range(2 * FEW)]
            for text, whole in known.items():
                await inside.say(text[:9], text)
                heard = await inside.utterance(text[:9])
                assert b"".join(x.pcm for x in heard if isinstance(x, m.Audio)) == whole
            for client in clients:
                client.gone()
        while any(count > idle[name] for name, count in (await counts(server)).items()):
            pass
        assert await reference(server) == known
        server.process.send_signal(signal.SIGTERM)
        assert await ended(server) is Exit.DONE


async def test_a_codec_that_hangs(tmp_path: Path) -> None:
    """It is taken for dead after half a minute, and its process ends, which a supervisor starts anew."""
    settings = ("engine.name=simulated", "codec.name=tests.stuck_codec")
    async with served(tmp_path, *settings) as server, peer(server.address.url) as victim:
        await victim.say("a", TEXT)
        errors = [message for message in await rest(victim) if isinstance(message, m.Error)]
        assert [error.code for error in errors] == ["internal"]
        assert await closed(victim) == (1011, "internal")
        assert await ended(server) is Exit.DIED


REAL = ("engine.name=tests.faulty_engine", "engine.capacity=2", "engine.options.step_seconds=0.02")
MOST_SECONDS = {"vanish": 120.0, "stop-reading": 30.0}
"""By TCP's 60 s after the next ping, and by 5 s once everything on the way is full."""
AT_ONCE_SECONDS = 15.0
"""Before the next ping, which is what would find somebody whose leaving nobody saw."""


async def cancelled(client: Client) -> None:
    """Barge-in."""
    await client.peer.send(m.Cancel(context="a"))


@pytest.mark.parametrize(
    ("fault", "stage"),
    [
        *((fault, "mid-segment") for fault in ("cancel", "fin", "rst", "vanish", "stop-reading")),
        # To somebody idle nothing is due: who cancels or stops reading then may stay.
        *((fault, "idle") for fault in ("fin", "rst", "vanish")),
    ],
)
async def test_when_the_server_notices(fault: str, stage: str) -> None:
    """After each way to go, the engine's slot and the socket's are free within a bound; both are timed."""
    async with server(*REAL, "server.write_seconds=5") as started:
        client = await STAGES[stage](started)
        if fault == "stop-reading":
            await client.peer.send(m.Cancel(context="a"))
            await client.peer.fence()
            await client.peer.send(m.Open(context="b", lead_ms=10_000))
            await client.peer.say("b", f"{TEXT} " * 20)
            await client.peer.wait_for(m.Audio)
        gone_at = time.monotonic()
        await (cancelled if fault == "cancel" else CLIENTS[fault].do)(client)
        await turns_until(lambda: started.turns.taken == started.codec.statistics().streams == 0)
        free = time.monotonic() - gone_at
        if fault != "cancel":
            await turns_until(lambda: started.admission.active == 0)
        left = time.monotonic() - gone_at
        print(f"\n{fault}, {stage}: engine's slot after {free:.4f} s, socket's after {left:.4f} s")  # noqa: T201
        client.gone()
        await turns_until(lambda: not started._connections)
        assert left < MOST_SECONDS.get(fault, AT_ONCE_SECONDS)
