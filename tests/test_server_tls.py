"""TLS at the server's own ports: real handshakes, certificates that change, clients that do not speak it."""

import asyncio
import contextlib
import datetime
import json
import logging
import math
import os
import socket
import ssl
import time
from pathlib import Path

import pytest

from orpheus_ws import messages as m
from orpheus_ws.client import connect, connect_sync
from orpheus_ws.config import ServerConfig
from orpheus_ws.errors import ClientError, StartupError
from orpheus_ws.server import Server, tls
from orpheus_ws.server.scrapes import Scrapes
from tests.certificates import Authority
from tests.harness import peer, server, turns_until
from tests.http_peers import SPEECH, speech
from tests.server_peers import SENTENCE, STEPPED, closed, http, metric
from tests.test_server_slow import ENDLESS, MAX_UNSENT, SMALL_BUFFER, fall_silent


@pytest.fixture(autouse=True)
def _read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read again when a test asks for it, and not also because it has taken two seconds."""
    monkeypatch.setattr("orpheus_ws.server.reload.LOOK_SECONDS", 3600.0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority that has signed a certificate."""
    made = Authority(tmp_path)
    made.issue()
    return made


async def served_serial(started: Server, authority: Authority) -> str:
    """Serial number of the certificate that a new client is shown."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", started.address.port, ssl=authority.context
    )
    shown = writer.get_extra_info("peercert")["serialNumber"]
    writer.transport.abort()
    return str(shown)


async def test_a_client_speaks(authority: Authority) -> None:
    """The SDK, with and without an event loop, speaks at a wss:// address whose authority it knows."""
    async with server(*authority.settings) as started:
        assert started.address.url.startswith("wss://127.0.0.1:")
        async with connect(started.address.url, ssl_context=authority.context) as client:
            assert await client.speak("Hello.").read()

        def blocking() -> bytes:
            with connect_sync(started.address.url, ssl_context=authority.context) as client:
                return client.speak("Hello.").read()

        assert await asyncio.to_thread(blocking)


async def test_strangers(authority: Authority, tmp_path: Path) -> None:
    """A client that does not know the authority, or speaks no TLS, gets an error and no socket."""
    async with server(*authority.settings) as started:
        for url, context in (
            (started.address.url, None),
            (started.address.url, Authority(tmp_path).context),
            (started.address.url.replace("wss:", "ws:"), None),
        ):
            with pytest.raises(ClientError):
                async with connect(url, ssl_context=context, patience=0):
                    pass
        assert started.admission.active == 0


@pytest.mark.parametrize(
    ("version", "agreed"),
    [("TLSv1", None), ("TLSv1_1", None), ("TLSv1_2", "TLSv1.2"), ("TLSv1_3", "TLSv1.3")],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_versions(authority: Authority, version: str, agreed: str | None) -> None:
    """TLS 1.2 and 1.3 are spoken, and nothing older."""
    context = authority.context
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    async with server(*authority.settings) as started:
        opening = asyncio.open_connection("127.0.0.1", started.address.port, ssl=context)
        if agreed is None:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await opening
            return
        _, writer = await opening
        assert writer.get_extra_info("ssl_object").version() == agreed
        writer.transport.abort()


async def test_http(authority: Authority) -> None:
    """The port of HTTP speaks TLS as well; that of the metrics does not."""
    async with server("server.http_port=0", *authority.settings) as started:
        url = started.address.http_url
        assert url is not None
        assert url.startswith("https://")
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", started.address.http_port, ssl=authority.context
        )
        asked = json.dumps(speech(f"{SENTENCE} " * 3)).encode()
        head = f"POST {SPEECH} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(asked)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + asked)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert len(answer) > 100_000
        writer.transport.abort()
        assert await metric(started, "orpheus_sockets_admitted") > 0


async def test_a_renewed_certificate(authority: Authority) -> None:
    """A new pair is shown to whoever comes next; who is spoken to meanwhile hears all of it."""
    old = authority.issue()
    async with server(*authority.settings, STEPPED) as started:
        assert await served_serial(started, authority) == old
        async with peer(started.address.url, tls=authority.context) as connected:
            await connected.say("a", SENTENCE)
            await connected.wait_for(m.Audio)
            new = authority.issue()
            started.reloading.ask()
            while await served_serial(started, authority) != new:
                pass
            assert isinstance((await connected.utterance("a"))[-1], m.Done)
        assert await metric(started, "orpheus_reloads_total", what="certificate", outcome="done")


async def test_a_certificate_is_looked_at(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody need say that it has changed."""
    monkeypatch.setattr("orpheus_ws.server.reload.LOOK_SECONDS", 0.01)
    async with server(*authority.settings) as started:
        new = authority.issue()
        while await served_serial(started, authority) != new:
            pass


async def test_a_certificate_that_changes_while_it_is_read(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was tried is what is shown, though by then the files are a pair no more."""
    authority.issue()
    reading = tls.read_context

    def read(config: ServerConfig) -> ssl.SSLContext:
        context = reading(config)
        key = authority.key.read_bytes()
        authority.issue()
        authority.put(authority.key, key)
        return context

    async with server(*authority.settings) as started:
        new = authority.issue()
        monkeypatch.setattr(tls, "read_context", read)
        done = started.metrics.reloads.labels("certificate", "done")._value
        started.reloading.ask()
        await turns_until(lambda: done.get() == 1)
        assert await served_serial(started, authority) == new


@pytest.mark.parametrize("broken", ["other key", "half", "gone", "empty"])
async def test_a_broken_certificate(
    authority: Authority, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One that cannot be used changes nothing but a metric, and says so in the log once."""
    old = authority.issue()
    async with server(*authority.settings) as started:
        good = authority.certificate.read_bytes()
        match broken:
            case "other key":
                authority.issue()
                authority.put(authority.certificate, good)
            case "half":
                authority.put(authority.certificate, good[: len(good) // 2])
            case "gone":
                authority.certificate.unlink()
            case _:
                authority.put(authority.certificate, b"")
        caplog.set_level(logging.ERROR)
        trusting = authority.context
        started.reloading.ask()
        failed = started.metrics.reloads.labels("certificate", "failed")
        await turns_until(lambda: failed._value.get() == 1)
        _, writer = await asyncio.open_connection("127.0.0.1", started.address.port, ssl=trusting)
        assert writer.get_extra_info("peercert")["serialNumber"] == old
        writer.transport.abort()
        assert [record.getMessage() for record in caplog.records] == [
            "not read again; what was read before stays in use"
        ]
        assert "PRIVATE" not in caplog.text


@pytest.mark.parametrize("broken", ["half configured", "gone", "no PEM", "other key", "passphrase"])
async def test_it_does_not_start(authority: Authority, broken: str) -> None:
    """Files that cannot be used are said at the start, before anything is loaded, in one line."""
    settings = authority.settings
    match broken:
        case "half configured":
            settings = settings[:1]
        case "gone":
            authority.key.unlink()
        case "no PEM":
            authority.key.write_text("secret-in-the-wrong-place")
        case "other key":
            good = authority.key.read_bytes()
            authority.issue()
            authority.put(authority.key, good)
        case _:
            assert broken == "passphrase"
            authority.put(authority.key, encrypted(authority.key.read_bytes()))
    with pytest.raises(StartupError) as caught:
        async with server(*settings):
            pass
    assert "\n" not in str(caught.value)
    assert "tls_" in str(caught.value) or "PEM" in str(caught.value)
    assert "secret-in" not in str(caught.value)


def encrypted(pem: bytes) -> bytes:
    """The same private key, with a passphrase."""
    from cryptography.hazmat.primitives import serialization as s

    return s.load_pem_private_key(pem, None).private_bytes(
        s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"passphrase")
    )


async def test_a_handshake_that_never_ends(authority: Authority) -> None:
    """Who opens a connection and says nothing is cut off after `server.handshake_seconds`."""
    async with server(*authority.settings, "server.handshake_seconds=0.2") as started:
        reader, writer = await asyncio.open_connection("127.0.0.1", started.address.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.transport.abort()
        assert started.admission.active == 0


async def test_slots_come_back(authority: Authority) -> None:
    """However a client over TLS leaves, its slot is free again."""
    async with server(*authority.settings, "engine.capacity=1") as started:
        for way in ("close", "abort", "shutdown"):
            async with peer(started.address.url, tls=authority.context) as connected:
                await connected.say("a", "Hello.")
                await connected.wait_for(m.Audio)
                if way == "abort":
                    connected.socket.transport.abort()
                elif way == "shutdown":
                    # uvloop does not lend its sockets for this.
                    raw = connected.socket.transport.get_extra_info("socket")
                    with socket.socket(fileno=os.dup(raw.fileno())) as same:
                        same.shutdown(socket.SHUT_WR)
            await turns_until(lambda: started.admission.active == 0)


async def test_who_reads_nothing(authority: Authority) -> None:
    """A slow consumer is closed over TLS as it is without, and little more waits for it until then.

    A client's own event loop reads 256 KiB ahead for TLS, whether the client reads or not.
    """
    async with (
        server(*authority.settings, *ENDLESS) as started,
        peer(started.address.url, tls=authority.context, receive_buffer=SMALL_BUFFER) as slow,
    ):
        await fall_silent(slow, 10_000)
        closes = started.metrics.socket_closes.labels("1008")
        await turns_until(lambda: closes._value.get() == 1)
        await turns_until(lambda: started.admission.active == 0)
        sent = 48_000 * await metric(started, "orpheus_audio_seconds_total")
        assert sent - 262_144 < MAX_UNSENT + 65_536
        slow.socket.transport.abort()


async def test_draining(authority: Authority) -> None:
    """A server over TLS drains like any other: what is said is said, then 1012."""
    async with (
        server(*authority.settings, STEPPED) as started,
        peer(started.address.url, tls=authority.context) as one,
    ):
        await one.say("a", SENTENCE)
        await one.wait_for(m.Audio)
        draining = asyncio.create_task(started.drain(lambda _low, _high: 0.0))
        ended = await one.utterance("a")
        assert isinstance(ended[-1], m.Done)
        assert await closed(one) == (1012, "restart")
        assert await draining == 0
        status, _ = await http(started, "/metrics", port=started.address.metrics_port)
        assert status == 200


async def reread(started: Server, outcome: str) -> None:
    """Have the server read its certificate again, and wait for what comes of it."""
    counted = started.metrics.reloads.labels("certificate", outcome)._value
    before = counted.get()
    started.reloading.ask()
    await turns_until(lambda: counted.get() > before)


@pytest.mark.parametrize("days", [90, 5, -1])
async def test_its_end_is_told(authority: Authority, days: float) -> None:
    """The metric has the end of the certificate that is shown, also of one that is over."""
    authority.issue()
    async with server(*authority.settings) as started:
        authority.issue(days=days)
        await reread(started, "done")
        end = await metric(started, "orpheus_certificate_expires_timestamp_seconds")
        assert end - time.time() == pytest.approx(days * 86_400, abs=600)


async def test_its_end_without_one() -> None:
    """Without TLS no alert can take the metric for an end."""
    async with server() as started:
        assert math.isnan(await metric(started, "orpheus_certificate_expires_timestamp_seconds"))


async def test_a_failure_ends(authority: Authority) -> None:
    """What could not be read shows until it can be, of its own kind alone."""
    async with server(*authority.settings) as started:
        key, shown = authority.key.read_bytes(), []
        for content, outcome in ((b"", "failed"), (key, "done")):
            authority.put(authority.key, content)
            await reread(started, outcome)
            shown += [
                await metric(started, "orpheus_reload_failed", what=what)
                for what in ("keys", "certificate")
            ]
        assert shown == [0, 1, 0, 0]


async def test_a_certificate_for_no_server(authority: Authority) -> None:
    """One that no client would take is like one that cannot be read."""
    old = authority.issue()
    async with server(*authority.settings) as started:
        authority.put(authority.certificate, for_clients(authority.key.read_bytes()))
        await reread(started, "failed")
        assert await served_serial(started, authority) == old


def for_clients(key: bytes) -> bytes:
    """A certificate of this private key for clients, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    private = load_pem_private_key(key, None)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    made = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=private.public_key(),  # type: ignore[arg-type]
        serial_number=x509.random_serial_number(),
        not_valid_before=now,
        not_valid_after=now + datetime.timedelta(days=90),
    ).add_extension(usage, critical=True)
    return made.sign(private, hashes.SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]


async def test_health_without_tls(authority: Authority) -> None:
    """Whoever looks after the process needs no certificate: it is told at the port of the metrics."""
    async with server(*authority.settings) as started:
        for path in ("/healthz", "/health", "/v1/health/live"):
            status, body = await http(started, path, port=started.address.metrics_port)
            assert (status, json.loads(body)) == (200, {"alive": True})
        assert (await http(started, "/metrics", port=started.address.metrics_port))[0] == 200


@pytest.mark.parametrize(("late", "status"), [(0.0, 200), (3.9, 200), (4.0, 503), (600.0, 503)])
async def test_health_of_an_event_loop_that_stands_still(late: float, status: int) -> None:
    """It is told by a thread of its own, which goes on when the event loop does not."""
    async with server() as started:
        port, asked = started.address.metrics_port, "/healthz"
        standing = await asyncio.to_thread(
            Scrapes, "127.0.0.1", 0, started.metrics.registry, lambda: late
        )
        try:
            assert (await http(started, asked, port=standing.port))[0] == status
            assert (await http(started, "/metrics", port=standing.port))[0] == 200
            assert (await http(started, asked, port=port))[0] == 200
        finally:
            await asyncio.to_thread(standing.close)
