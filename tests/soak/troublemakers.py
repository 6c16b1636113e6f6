"""Clients that misbehave, and texts that something befalls.

Rule: each is over within some seconds, whatever the server does, and says nothing of what it saw: that the
server is none the worse for it is seen from everybody else.
"""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.frames import Frame, Opcode

from orpheus_ws import messages as m
from tests import faulty_engine, http_peers
from tests.harness import JSON, MSGPACK, Peer, Reachable, peer
from tests.soak.listeners import TEXTS

Troublemaker = Callable[[Reachable, random.Random], Awaitable[None]]

SILENT_SECONDS: Final = 7.0
"""Longer than the server lets a client read nothing."""
STORM: Final = 30
FLOOD: Final = 500
LONG: Final = " ".join(TEXTS * 4)
LEAST_BUFFER: Final = 4096


def misspoken(word: str) -> Troublemaker:
    """Somebody whose text goes wrong, and who waits for how it ends, but not for ever."""

    async def act(server: Reachable, chance: random.Random) -> None:
        async with peer(server.address.url, chance.choice([MSGPACK, JSON])) as connected:
            await connected.send(m.Open(context="a", sampling=m.Sampling(max_tokens=700)))
            await connected.say("a", faulty_engine.faulty(word))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENT_SECONDS):
                    await connected.utterance("a")

    return act


async def read_nothing(server: Reachable, _chance: random.Random) -> None:
    """Ask for much, hear the first of it, and stop reading; leave only when that is over."""
    async with peer(server.address.url, receive_buffer=LEAST_BUFFER) as slow:
        await slow.say("a", faulty_engine.faulty("Ramble"))
        await slow.wait_for(m.Audio)
        slow.socket.transport.pause_reading()
        await asyncio.sleep(SILENT_SECONDS)
        slow.socket.transport.abort()


async def read_nothing_of_a_request(server: Reachable, _chance: random.Random) -> None:
    """The same over HTTP."""
    async with http_peers.calling(server, receive_buffer=LEAST_BUFFER) as caller:
        await http_peers.ask(caller, "openai", faulty_engine.faulty("Ramble"))
        await asyncio.sleep(SILENT_SECONDS)


async def leave(server: Reachable, chance: random.Random) -> None:
    """Go away in the middle, without a word: by FIN or by RST."""
    async with peer(server.address.url, chance.choice([MSGPACK, JSON])) as connected:
        await connected.say("a", LONG)
        for _ in range(chance.randint(0, 5)):
            await connected.wait_for(m.Audio)
        if chance.random() < 0.5:
            own = connected.socket.transport.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connected.socket.transport.abort()


async def leave_a_request(server: Reachable, chance: random.Random) -> None:
    """Go away in the middle of a response, or of one's own request."""
    async with http_peers.calling(server) as caller:
        if chance.random() < 0.5:
            caller.writer.write(
                b"POST /v1/audio/speech HTTP/1.1\r\nHost: test\r\nContent-Length: 99"
            )
            return
        await http_peers.ask(caller, "openai", LONG)
        await caller.hear()


async def half_a_frame(server: Reachable, chance: random.Random) -> None:
    """Send the beginning of a frame, and leave in the middle of it, or wait there a little."""
    async with peer(server.address.url, JSON) as connected:
        await connected.say("a", LONG)
        text = b'{"type":"text","context":"a","text":"' + b"x" * 200
        frame = Frame(Opcode.TEXT, text).serialize(mask=True)
        connected.socket.transport.write(frame[: chance.randrange(1, len(frame))])
        await asyncio.sleep(chance.random())
        connected.socket.transport.abort()


async def half_a_handshake(server: Reachable, chance: random.Random) -> None:
    """Begin to connect."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
    writer.write(b"GET /v1/tts HTTP/1.1\r\nHost: test\r\nUpgrade: webs")
    await writer.drain()
    if chance.random() < 0.3:
        with contextlib.suppress(OSError):
            await reader.read()
    writer.transport.abort()


async def garbage(server: Reachable, chance: random.Random) -> None:
    """Send what is no message."""
    async with peer(server.address.url) as connected:
        await connected.say("a", LONG)
        for _ in range(20):
            await connected.socket.send(chance.randbytes(chance.randrange(1, 3000)))
        await _read_on(connected)


async def too_much(server: Reachable, _chance: random.Random) -> None:
    """Send a message that is far too long."""
    async with peer(server.address.url) as connected:
        await connected.socket.send(b"\xc4" * 100_000)
        await _read_on(connected)


async def flood(server: Reachable, _chance: random.Random) -> None:
    """Send very many small messages, without reading, and then read."""
    async with peer(server.address.url) as connected:
        for number in range(FLOOD):
            await connected.send(m.Ping(id=number), m.Cancel(context=f"{number}"))
        await connected.say("a", TEXTS[1])
        await connected.utterance("a")


async def pipeline(server: Reachable, chance: random.Random) -> None:
    """Open as many contexts as may be open and more, and cancel all, or leave."""
    async with peer(server.address.url) as connected:
        for number in range(40):
            await connected.say(f"{number}", TEXTS[number % len(TEXTS)])
        await connected.wait_for(m.Audio)
        if chance.random() < 0.5:
            await connected.send(m.Cancel(context="*"))
            await connected.fence()


async def storm(server: Reachable, _chance: random.Random) -> None:
    """Many connect at once, are greeted or refused, and leave at once."""

    async def one() -> None:
        with contextlib.suppress(ConnectionClosed, InvalidHandshake, OSError):
            async with peer(server.address.url) as connected:
                await connected.say("a", LONG)
                connected.socket.transport.abort()

    await asyncio.gather(*(one() for _ in range(STORM)))


async def _read_on(connected: Peer) -> None:
    """Until the server closes, or has nothing more to say for a while."""
    with contextlib.suppress(ConnectionClosed, TimeoutError):
        async with asyncio.timeout(SILENT_SECONDS):
            while True:
                await connected.receive()


TROUBLEMAKERS: Final[dict[str, Troublemaker]] = {
    **{word.lower(): misspoken(word) for word in faulty_engine.FAULTS if word != "Die"},
    "junk": misspoken(faulty_engine.JUNK),
    **{
        act.__name__: act
        for act in (
            read_nothing,
            read_nothing_of_a_request,
            leave,
            leave_a_request,
            half_a_frame,
            half_a_handshake,
            garbage,
            too_much,
            flood,
            pipeline,
            storm,
        )
    },
}
