"""Clients that send without end: it costs them, little memory, and nobody else."""

import asyncio

import msgpack
import pytest

from orpheus_ws import messages as m
from orpheus_ws.server import Server, http_protocol, inflow
from orpheus_ws.server.handshake import AdmittedConnection
from orpheus_ws.trace import clock
from tests.harness import Peer, peer, server, turns_until
from tests.server_peers import one, socket_of
from tests.test_server_handshake_queue import raw

MASK = bytes(4)
RATE = 100
BURST = int(RATE * inflow.BURST_SECONDS)
LIMITED = f"limits.messages_per_second={RATE}"


def frame(first: int, payload: bytes = b"") -> bytes:
    """A short frame of a client's: its first byte, and a payload under a mask that changes nothing."""
    assert len(payload) < 126
    return bytes([first, 0x80 | len(payload)]) + MASK + payload


PING = frame(0x89)
PONG = frame(0x8A)
MESSAGE = frame(0x82, msgpack.packb({"type": "ping", "id": 0}))
FRAGMENT = frame(0x00)
FIRST_FRAGMENT = frame(0x02)
CLOSE = frame(0x88, b"\x03\xe8")


async def pour(flooder: Peer, data: bytes) -> None:
    """Write as much of it as is taken at once, past the library."""
    flooder.socket.transport.write(data)
    await asyncio.sleep(0)


def end_of(started: Server, connected: Peer) -> AdmittedConnection:
    """The server's end of a socket."""
    for connection in started._connections:
        found = socket_of(connection)
        assert isinstance(found, AdmittedConnection)
        if found.remote_address == connected.socket.local_address:
            return found
    raise AssertionError("it is not admitted")


@pytest.mark.parametrize("kind", [PING, PONG, MESSAGE], ids=["ping", "pong", "message"])
async def test_a_million_frames(kind: bytes) -> None:
    """Of a million tiny frames no more are read than the burst and the rate; others are answered."""
    async with (
        server(LIMITED) as started,
        peer(started.address.url) as flooder,
        peer(started.address.url) as victim,
    ):
        flooded = end_of(started, flooder)
        assert flooded._inflow is not None
        taken = 0
        original = flooded._take

        def taking(data: bytes) -> int:
            nonlocal taken
            taken += (frames := original(data))
            return frames

        flooded._inflow._take = taking
        await pour(flooder, kind * 1_000_000)
        await turns_until(lambda: taken >= BURST - 10)
        for _ in range(20):
            await victim.fence()
            assert len(flooded._inflow._held) <= inflow.MOST_HELD_BYTES
            assert len(flooded.recv_messages.frames) < 200
            assert flooded.transport.get_write_buffer_size() < 100_000
        # The burst, what one piece had beyond it, and what the rate allowed while this was looked at.
        assert taken < BURST + inflow.PIECE_BYTES / len(kind) + 30 * RATE
        flooder.socket.transport.abort()


async def test_at_the_rate_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many messages as may come at once are answered at once; one more has to wait."""
    moment = clock()
    # However slow the machine is, nothing flows in before the last two.
    monkeypatch.setattr(inflow, "clock", lambda: moment)
    async with one("limits.messages_per_second=1") as (_, connected):
        burst = int(inflow.BURST_SECONDS)
        # The handshake and the harness's own message were frames as well.
        for number in range(burst - 2):
            await connected.send(m.Ping(id=number))
            await connected.wait_for(m.Pong)
        before = clock()
        lag = before - moment
        monkeypatch.setattr(inflow, "clock", lambda: clock() - lag)
        for over in ("over", "waits"):
            await connected.send(m.Ping(id=over))
            assert (await connected.wait_for(m.Pong)).id == over
        assert clock() - before > 0.9


async def test_fragments_without_end() -> None:
    """A message of endless empty fragments is failed with 1009, and holds no slot."""
    async with one("limits.messages_per_second=1000000") as (started, flooder):
        await pour(flooder, FIRST_FRAGMENT + FRAGMENT * 10_000)
        await flooder.socket.wait_closed()
        assert flooder.socket.protocol.close_rcvd is not None
        assert flooder.socket.protocol.close_rcvd.code == 1009
        await turns_until(lambda: started.admission.active == 0)


async def test_close_frames_without_end() -> None:
    """After the first nothing is read for, and the slot is free."""
    async with one() as (started, flooder):
        await pour(flooder, CLOSE * 100_000)
        await flooder.socket.wait_closed()
        await turns_until(lambda: started.admission.active == 0)


async def test_half_closed_after_the_handshake() -> None:
    """A client that says that it will send no more has left: its slot is free."""
    async with one() as (started, half):
        half.socket.transport.write_eof()
        await turns_until(lambda: started.admission.active == 0)


async def test_half_closed_behind_a_flood() -> None:
    """What came before the end is worked for at its rate, and the end is seen after it."""
    async with one(LIMITED) as (started, half):
        await pour(half, MESSAGE * (BURST + 20))
        half.socket.transport.write_eof()
        await turns_until(lambda: started.admission.active == 0)


async def test_a_large_message_in_pieces() -> None:
    """A message as long as may be arrives whole, however small the pieces; one byte more is 1009."""
    async with one() as (started, connected):
        room = started.config.limits.message_bytes
        empty = len(msgpack.packb({"type": "text", "context": "a", "text": "a" * 60_000})) - 60_000
        await connected.send(m.Text(context="a", text=" " * (room - empty)))
        await connected.fence()
        await connected.send(m.Text(context="a", text=" " * (room - empty + 1)))
        await connected.socket.wait_closed()
        assert connected.socket.protocol.close_rcvd is not None
        assert connected.socket.protocol.close_rcvd.code == 1009


@pytest.mark.parametrize("subprotocol", ["tts.v1.msgpack", "tts.v1.json"])
async def test_nesting_without_end(subprotocol: str) -> None:
    """Values in values, as deep as a message is long, are a bad message and no worse."""
    async with one(subprotocol=subprotocol) as (started, connected):
        deep = b"\x91" * 60_000 if "msgpack" in subprotocol else "[" * 60_000
        await connected.socket.send(deep)
        assert (await connected.wait_for(m.Error)).code == "bad_message"
        async with peer(started.address.url) as other:
            await other.fence()


async def test_a_body_in_the_smallest_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a request in 40 000 chunks little is worked for in a turn: others are answered meanwhile."""
    taken = 0
    original = http_protocol.Protocol._take

    def taking(protocol: http_protocol.Protocol, data: bytes) -> int:
        nonlocal taken
        taken += len(data)
        return original(protocol, data)

    monkeypatch.setattr(http_protocol.Protocol, "_take", taking)
    body = b"1\r\na\r\n" * 40_000
    async with (
        server("server.http_port=0") as started,
        peer(started.address.url) as victim,
        raw(started, b"", "http_port") as caller,
    ):
        head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        caller.writer.write(head + body)
        await victim.fence()
        assert taken < len(body) / 2
        caller.writer.write(b"0\r\n\r\n")
        assert await caller.status() == b"400"
