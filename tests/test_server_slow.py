"""The server over real sockets: a client that reads too little, and what it costs the others."""

import asyncio
import fcntl
import gc
import logging
import os
import socket
import struct
import termios

import pytest
from websockets.asyncio.server import ServerConnection

from orpheus_ws import messages as m
from tests.harness import Peer, peer, server, turns_until
from tests.server_peers import SENTENCE, held, listening, metric, one, references, socket_of

ENDLESS = ("engine.options.fault=never_stops", "server.write_seconds=0.3")
SMALL_BUFFER = 4096
MAX_UNSENT = 131_072
"""Bytes; 2.7 s of audio. 67 000 were seen: a write buffer that is full by one message, and 18 000 in
the kernel."""


def unsent(connection: ServerConnection) -> int:
    """Bytes that were sent to a client and have not arrived: in this process, and in the kernel."""
    sock = connection.transport.get_extra_info("socket")
    queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
    return int(connection.transport.get_write_buffer_size()) + int(struct.unpack("i", queued)[0])


async def fall_silent(slow: Peer, lead_ms: int = 2000) -> None:
    """Ask for much audio, take the first of it, and read nothing from then on."""
    sampling = m.Sampling(max_tokens=4096)
    for context in ("a", "b"):
        await slow.send(m.Open(context=context, lead_ms=lead_ms, sampling=sampling))
        await slow.say(context, SENTENCE)
    await slow.wait_for(m.Audio)
    slow.socket.transport.pause_reading()


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that does not acknowledge the close is cut off soon."""
    monkeypatch.setattr("orpheus_ws.server.websocket.CLOSE_SECONDS", 0.1)


@pytest.mark.parametrize("lead_ms", [200, 10_000])
async def test_what_waits_for_a_slow_consumer(lead_ms: int) -> None:
    """However much audio is due, few bytes wait for a client that reads none until it is closed."""
    async with (
        server(*ENDLESS) as started,
        peer(started.address.url, receive_buffer=SMALL_BUFFER) as slow,
    ):
        (connection,) = started._connections
        await fall_silent(slow, lead_ms)
        most = 0
        protocol = socket_of(connection).protocol
        while protocol.close_sent is None:
            most = max(most, unsent(socket_of(connection)))
            await asyncio.sleep(0)
        assert 32_768 < most < MAX_UNSENT
        assert (protocol.close_sent.code, protocol.close_sent.reason) == (1008, "slow_consumer")
        await turns_until(lambda: not started._connections)
        assert await metric(started, "orpheus_socket_closes_total", code="1008") == 1
        slow.socket.transport.abort()


async def test_a_slow_consumer_keeps_nobody_waiting() -> None:
    """While one client reads nothing, twenty others go on receiving."""
    async with (
        server(ENDLESS[0]) as started,
        listening(started, 20) as listeners,
        peer(started.address.url, receive_buffer=SMALL_BUFFER) as slow,
    ):
        await fall_silent(slow)
        # The write that nobody reads is under way; whoever waited for it would get nothing.
        await turns_until(lambda: any(socket_of(each).paused for each in started._connections))
        enough = [listener.messages + 2 for listener in listeners]
        await turns_until(
            lambda: all(
                each.messages >= count for each, count in zip(listeners, enough, strict=True)
            )
        )
        assert started.admission.active == 21
        slow.socket.transport.abort()


async def test_nothing_is_left_of_a_slow_consumer() -> None:
    """Slots, streams, tasks, descriptors and memory are as they were before it came."""
    async with one(*ENDLESS) as (started, other):
        await other.fence()
        before, others = held(started), set(started._connections)
        async with peer(started.address.url, receive_buffer=SMALL_BUFFER) as slow:
            await fall_silent(slow)
            remains = references(started, others)
            await turns_until(lambda: len(started._connections) == 1)
            slow.socket.transport.abort()
        await turns_until(lambda: held(started) == before)
        gc.collect()
        assert not [reference for reference in remains if reference() is not None]


async def test_a_slow_consumer_that_half_leaves(caplog: pytest.LogCaptureFixture) -> None:
    """A client that reads nothing and says that it will send nothing more is gone, without a fuss."""
    async with (
        server(ENDLESS[0], "server.write_seconds=600") as started,
        peer(started.address.url, receive_buffer=SMALL_BUFFER) as slow,
    ):
        (connection,) = started._connections
        await fall_silent(slow)
        await turns_until(lambda: socket_of(connection).paused)
        own = slow.socket.transport.get_extra_info("socket")
        with socket.socket(fileno=os.dup(own.fileno())) as half:
            half.shutdown(socket.SHUT_WR)
        slow.socket.transport.resume_reading()
        await turns_until(lambda: not started._connections)
        assert await metric(started, "orpheus_contexts_total", outcome="disconnected") == 2
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
