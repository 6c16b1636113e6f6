"""Over TLS: records that are data to nobody, from whoever has nothing else to send, and from others."""

import asyncio
from pathlib import Path

import pytest

from orpheus_ws import messages as m
from orpheus_ws.server import Server
from tests.certificates import Authority
from tests.harness import peer, server, turns_until
from tests.server_peers import held
from tests.test_server_garbage import UPGRADE
from tests.tls_attacker import TLS_1_2, TlsAttacker

ALIVE = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
HTTP = "server.http_port=0"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority that has signed a certificate."""
    made = Authority(tmp_path)
    made.issue()
    return made


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("where", ["before the handshake", "on a socket", "over http"])
async def test_key_updates_without_end(where: str, ask: bool, authority: Authority) -> None:
    """Whoever sends nothing else is cut off, before he has a key and after, and holds nothing then."""

    def flood(port: int) -> None:
        with TlsAttacker(port) as attacker:
            if where == "on a socket":
                assert attacker.write(UPGRADE)
                assert b"ready" in attacker.read(until=b"ready")
            while attacker.update_key(ask=ask):
                pass

    async with server(HTTP, *authority.settings) as started:
        port = started.address.http_port if where == "over http" else started.address.port
        assert port is not None
        await asyncio.to_thread(flood, port)
        before = held(started)
        await asyncio.to_thread(flood, port)
        await turns_until(lambda: held(started) <= before)
        assert await speaks(started, authority)


async def speaks(started: Server, authority: Authority) -> bool:
    """Whether somebody else is served."""
    async with peer(started.address.url, tls=authority.context) as other:
        await other.say("a", "Hello.")
        return isinstance((await other.utterance("a"))[-1], m.Done)


@pytest.mark.parametrize("port", ["port", "http_port"])
async def test_key_updates_now_and_then(port: str, authority: Authority) -> None:
    """They are a client's right, also before it has said a word."""

    def ask(number: int) -> bytes:
        with TlsAttacker(number) as client:
            for _ in range(100):
                assert client.update_key(ask=True)
            assert client.write(ALIVE)
            return client.read(until=b"alive")

    async with server(HTTP, *authority.settings) as started:
        assert b"200 OK" in await asyncio.to_thread(ask, getattr(started.address, port))


@pytest.mark.parametrize("port", ["port", "http_port"])
async def test_a_record_for_each_byte(port: str, authority: Authority) -> None:
    """Data is data, however little of it is in a record."""

    def ask(number: int) -> bytes:
        with TlsAttacker(number) as client:
            head = ALIVE.replace(b"Host: a", b"Host: a\r\nX-Long: " + b"a" * 8000)
            assert all(client.write(bytes([byte])) for byte in head)
            return client.read(until=b"alive")

    async with server(HTTP, *authority.settings) as started:
        assert b"200 OK" in await asyncio.to_thread(ask, getattr(started.address, port))


async def test_more_than_is_read(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends faster than he is read from is held back, which is not for nothing."""
    monkeypatch.setattr("orpheus_ws.server.tls_flood.LOOK_SECONDS", 0.001)
    settings = ("limits.messages_per_second=20", *authority.settings)
    async with (
        server(*settings) as started,
        peer(started.address.url, tls=authority.context) as eager,
    ):
        await eager.send(*[m.Ping(id=1)] * 100)
        for _ in range(80):
            await eager.receive()
        # From now on nothing is read for a second, and little has come.
        await eager.send(*[m.Text(context="a", text=" " * 15_000)] * 20)
        assert len(await eager.fence()) >= 20


async def test_renegotiation(authority: Authority) -> None:
    """Nobody has a handshake twice: it is what costs the most."""

    def ask(port: int) -> bool:
        with TlsAttacker(port, TLS_1_2) as client:
            return client.renegotiate()

    async with server(*authority.settings) as started:
        for _ in range(5):
            assert not await asyncio.to_thread(ask, started.address.port)
        assert await speaks(started, authority)
