"""The queue before TLS: who may begin a handshake, who is cut off, and what is left of either."""

import asyncio
import contextlib
import gc
from pathlib import Path

import pytest

from orpheus_ws import messages as m
from orpheus_ws.server import Server, tls_queue
from orpheus_ws.server.handshake import AdmittedConnection
from tests.certificates import Authority
from tests.harness import peer, server, turns_until
from tests.server_peers import held
from tests.test_server_handshake_queue import no_turn_comes, raw

HTTP = "server.http_port=0"
HELLO = b"\x16\x03\x01\x02\x00"
"""How a handshake begins; the 512 bytes that it promises never come."""
PORTS = pytest.mark.parametrize("port", ["port", "http_port"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority that has signed a certificate."""
    made = Authority(tmp_path)
    made.issue()
    return made


def waiting(started: Server) -> int:
    """How many have no TLS yet."""
    assert started.tls_queue is not None
    return started.tls_queue.waiting


@PORTS
@pytest.mark.parametrize("sent", [b"", HELLO])
async def test_those_who_begin_no_handshake(
    port: str, sent: bytes, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many connect and say nothing, or begin and go no further, others get in meanwhile."""
    monkeypatch.setattr(tls_queue, "MAX_SILENT", 3)
    monkeypatch.setattr(tls_queue, "MAX_HANDSHAKES", 3)
    async with (
        server(*authority.settings, HTTP) as started,
        contextlib.AsyncExitStack() as stack,
    ):
        before = held(started)[1]
        crowd = [await stack.enter_async_context(raw(started, sent, port)) for _ in range(8)]
        async with peer(started.address.url, tls=authority.context) as connected:
            await connected.say("a", "Hello.")
            assert isinstance((await connected.utterance("a"))[-1], m.Done)
        for gone in crowd[:4]:
            await gone.closed()
        assert waiting(started) <= 4
        assert held(started)[1] <= before + len(crowd) + 8  # our ends, and what is left of theirs


@PORTS
async def test_a_handshake_has_its_time(port: str, authority: Authority) -> None:
    """Whoever has said nothing, or no more than a beginning, when his time is over is cut off."""
    settings = (*authority.settings, "server.handshake_seconds=0.2", HTTP)
    async with server(*settings) as started:
        for sent in (b"", HELLO):
            async with raw(started, sent, port) as slow:
                await slow.closed()
        await turns_until(lambda: waiting(started) == 0)


@PORTS
@pytest.mark.parametrize("sent", [b"", HELLO])
async def test_leaving_before_tls(port: str, sent: bytes, authority: Authority) -> None:
    """Whoever goes before his TLS handshake is over leaves nothing behind."""
    async with server(*authority.settings, HTTP) as started:
        before = held(started)
        for _ in range(5):
            async with raw(started, sent, port):
                await turns_until(lambda: waiting(started) == 1)
            await turns_until(lambda: waiting(started) == 0)
        await turns_until(lambda: held(started) == before)


async def test_handshakes_have_their_turn(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the rate a handshake waits; who finds the line full is cut off, and is counted."""
    monkeypatch.setattr(tls_queue, "MAX_WAITING", 2)
    settings = (*authority.settings, "server.handshakes_per_second=1", HTTP)
    async with server(*settings) as started, contextlib.AsyncExitStack() as stack:
        no_turn_comes(tls_queue, monkeypatch)
        busy = started.metrics.handshakes_refused.labels("busy")._value
        for port in ("port", "http_port", "port"):
            await stack.enter_async_context(raw(started, HELLO, port))
        await turns_until(lambda: waiting(started) == 3)
        async with raw(started, HELLO) as refused:
            await refused.closed()
        assert busy.get() == 1


async def test_no_handshake_leaves_garbage(authority: Authority) -> None:
    """What a failed handshake was is gone with it, without the collector."""
    async with server(*authority.settings) as started:
        gc.collect()
        gc.disable()
        try:
            for sent in (b"", HELLO, b"GET / HTTP/1.1\r\n\r\n") * 7:
                async with raw(started, sent):
                    await turns_until(lambda: waiting(started) == 1)
                await turns_until(lambda: waiting(started) == 0)
            await asyncio.sleep(0)
            kept = [each for each in gc.get_objects() if type(each) is AdmittedConnection]
            assert len(kept) <= 5
            kept.clear()
        finally:
            gc.enable()


@pytest.mark.parametrize("sent", [b"", HELLO])
async def test_nobody_waits_when_the_server_stops(sent: bytes, authority: Authority) -> None:
    """Who has no TLS yet is cut off with the server."""
    async with contextlib.AsyncExitStack() as stack:
        async with server(*authority.settings, HTTP) as started:
            for port in ("port", "http_port"):
                outside = await stack.enter_async_context(raw(started, sent, port))
            await turns_until(lambda: waiting(started) == 2)
        await outside.closed()
        assert waiting(started) == 0
