"""No open files left: nobody new gets in, whoever is in is spoken to, and the event loop rests."""

import asyncio
import contextlib
import resource
from multiprocessing.connection import Connection

import psutil
import pytest
import uvloop
from websockets.exceptions import InvalidHandshake

from orpheus_ws import messages as m
from orpheus_ws.processes import child
from orpheus_ws.server import handshake_queue
from tests.harness import peer, server
from tests.server_peers import STEPPED

FILES = 64
SECONDS = 2.0


def serve(loop: str, pipe: Connection) -> None:
    """Body of a process: a server with few files, where any number may wait for a handshake."""
    handshake_queue.MAX_SILENT = 10_000  # type: ignore[misc]

    async def main() -> None:
        async with server(STEPPED) as started:
            soft = psutil.Process().num_fds() + 10
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
            pipe.send(started.address.url)
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    # What asyncio logs is for whoever reads the server's log.
    (uvloop.run if loop == "uvloop" else asyncio.run)(main())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_no_descriptor_left(loop: str) -> None:
    """A client in the middle of its speech hears on, the loop does not spin, and later others get in."""
    with child("server", serve, loop) as started:
        asyncio.run(visit(started.hear(), psutil.Process(started.pid)))
        started.tell("stop")


async def visit(url: str, process: psutil.Process) -> None:
    """Listen, take every descriptor there is, listen on, give them back, and come again."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    async with peer(url) as speaking:
        await speaking.send(m.Text(context="a", text="One sentence more of it. " * 200))
        await speaking.wait_for(m.Audio)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(FILES):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
            before = sum(process.cpu_times()[:2])
            began = asyncio.get_running_loop().time()
            messages = 0
            while (passed := asyncio.get_running_loop().time() - began) < SECONDS or messages < 10:
                await speaking.wait_for(m.Audio)
                messages += 1
            # However long that took: a loop that spins has a processor, or what it gets of one.
            assert sum(process.cpu_times()[:2]) - before < passed / 2
        # Descriptors are free once the server has seen that their connections are gone.
        while True:
            try:
                async with peer(url) as late:
                    await late.fence()
            except (InvalidHandshake, OSError):
                await asyncio.sleep(0)
            else:
                return
