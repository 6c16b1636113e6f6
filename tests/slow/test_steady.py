"""A server that has spoken a thousand times holds no more than one that has spoken two hundred."""

import asyncio
import contextlib
import gc
from typing import NamedTuple

import psutil
import pytest

from orpheus_ws import messages as m
from orpheus_ws.server import Server
from tests.harness import Peer, peer, server, turns_until
from tests.server_peers import STEPS

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SOCKETS = 20
EARLY, LATE = 200, 1000
MEGABYTE = 1_000_000


class Held(NamedTuple):
    """What the process holds while its sockets are idle."""

    tasks: int
    descriptors: int
    sockets: int
    engine_slots: int
    codec_slots: int


async def utter(connected: Peer, numbers: range) -> None:
    """Utterances one after the other; every fifth is cut off by its listener."""
    for number in numbers:
        context = f"{number}"
        await connected.say(context, "How are you?")
        if number % 5 == 0:
            await connected.wait_for(m.Audio)
            await connected.send(m.Cancel(context=context))
        assert not isinstance((await connected.utterance(context))[-1], m.Error)


async def settled(started: Server) -> tuple[Held, int]:
    """What is held once everything has ended, and the memory."""
    await turns_until(lambda: started.engine.statistics().active == 0)
    await turns_until(lambda: started.codec.statistics().streams == 0)
    # The step in which the last request left may be under way still.
    await turns_until(lambda: not any(task.get_name() == STEPS for task in asyncio.all_tasks()))
    gc.collect()
    process = psutil.Process()
    held = Held(
        tasks=len(asyncio.all_tasks()),
        descriptors=process.num_fds(),
        sockets=started.admission.active,
        engine_slots=started.engine.statistics().active,
        codec_slots=started.codec.statistics().streams,
    )
    return held, process.memory_info().rss


async def test_nothing_grows() -> None:
    """After 1000 utterances on 20 sockets: memory at most 5 MB above that after 200, all else equal.

    The clients are in the same process, so what they hold counts too.
    """
    async with server("engine.capacity=20") as started, contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(peer(started.address.url)) for _ in range(SOCKETS)]

        async def until(count: int, since: int = 0) -> None:
            share = range(since // SOCKETS, count // SOCKETS)
            await asyncio.gather(*(utter(each, share) for each in peers))

        await until(EARLY)
        early, early_bytes = await settled(started)
        await until(LATE, EARLY)
        late, late_bytes = await settled(started)
    assert late == early
    assert late.sockets == SOCKETS
    assert late_bytes <= early_bytes + 5 * MEGABYTE
