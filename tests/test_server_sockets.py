"""The server over real sockets: admission, keys, limits, slow and silent peers."""

import asyncio
import contextlib
import json
import socket

import msgpack
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from orpheus_ws import config
from orpheus_ws import messages as m
from orpheus_ws.access_tokens import make_token
from orpheus_ws.audio import Player
from orpheus_ws.errors import StartupError
from orpheus_ws.server import Server
from orpheus_ws.session import Session
from orpheus_ws.trace import clock
from tests.harness import audio, pcm, peer, server, turns_until
from tests.server_peers import SENTENCE, STEPPED, closed, http, metric, one, socket_of

# Sockets ------------------------------------------------------------------------------------------


async def test_full_server() -> None:
    """full-server: one socket too many gets 503 with Retry-After, and a free slot admits again."""
    async with server("engine.capacity=2") as started, peer(started.address.url):
        async with peer(started.address.url):
            with pytest.raises(InvalidStatus) as refusal:
                await connect(started.address.url)
            assert refusal.value.response.status_code == 503
            assert refusal.value.response.headers["Retry-After"] == "1"
            assert json.loads((await http(started, "/capacity"))[1]) == {
                "max": 2,
                "active": 2,
                "draining": False,
                "streams": 2,
                "source": "configured",
            }
            assert (await http(started, "/readyz"))[0] == 200
        await turns_until(lambda: started.admission.active == 1)
        async with peer(started.address.url) as admitted:
            await admitted.say("a", SENTENCE)
            assert pcm(await admitted.utterance("a"))
        assert await metric(started, "orpheus_handshakes_refused_total", reason="full") == 1


async def exchange(started: Server, request: bytes, until: bytes | None = None) -> bytes:
    """Send bytes, and read to the end of the connection, or of a head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", started.address.port)
    try:
        writer.write(request)
        return await (reader.read() if until is None else reader.readuntil(until))
    finally:
        writer.close()


async def test_nothing_is_compressed() -> None:
    """Audio hardly gets smaller, and the library's compression is costly: who offers it goes without."""
    async with server() as started, connect(started.address.url, compression="deflate") as socket:
        assert socket.protocol.extensions == []


async def test_refused_upgrades_hold_no_slot() -> None:
    """A handshake that fails for another reason never takes a slot."""
    async with server("engine.capacity=1") as started:
        for _ in range(3):
            with pytest.raises(InvalidStatus):
                await connect(started.address.url, subprotocols=[Subprotocol("tts.v9.morse")])
            status, body = await http(started, "/v1/tts")
            assert status == 426
            assert "tts.v1.json" in json.loads(body)["message"]
        assert await metric(started, "orpheus_handshakes_refused_total", reason="handshake") == 6
        async with peer(started.address.url):
            assert started.admission.active == 1


BODIES = {
    "length": b"Content-Length: 2\r\n\r\n{}",
    "lower case": b"content-length: 2\r\n\r\n{}",
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "still to come": b"Content-Length: 60000\r\n\r\n{",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/tts"])
async def test_a_request_with_a_body(body: bytes, path: str) -> None:
    """Whoever posts to the port of sockets is told in words where to, whatever follows, and counted."""
    async with server() as started:
        answer = await exchange(started, f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + body)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"server.http_port" in answer
        assert await metric(started, "orpheus_handshakes_refused_total", reason="request") == 1


async def test_an_upgrade_with_a_body() -> None:
    """What follows it cannot be told from frames: it is refused, and no socket comes of it."""
    head = (
        b"GET /v1/tts HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    )
    async with server() as started:
        assert await exchange(started, head + b"\r\n", until=b"\r\n\r\n")
        answer = await exchange(started, head + BODIES["length"])
        assert answer.startswith(b"HTTP/1.1 400 ")


async def test_clients_that_vanish_during_the_handshake() -> None:
    """A client that asks for a socket and is gone before the answer leaves no slot taken."""
    async with server("engine.capacity=20") as started:
        request = (
            b"GET /v1/tts HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        for number in range(50):
            _, writer = await asyncio.open_connection("127.0.0.1", started.address.port)
            writer.write(request)
            if number % 2:
                writer.transport.abort()
            else:
                writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        await turns_until(lambda: started.admission.active == 0)
        async with peer(started.address.url) as connected:
            await connected.say("a", SENTENCE)
            assert pcm(await connected.utterance("a"))


async def test_hostile_paths() -> None:
    """Addresses that are none get 404 like any other unknown one."""
    async with server() as started:
        for path in ("//[", "/%ff", "/v1/tts/../x", "/v1/ttsx"):
            assert (await http(started, path))[0] == 404


async def test_keys() -> None:
    """With keys configured only their holders get in, by header or by token."""
    async with server("auth.keys.alice=secret-a") as started:
        url = started.address.url
        for headers in (
            {"Authorization": "Bearer secret-a"},
            {"Authorization": "Api-Key secret-a"},
            {"Authorization": "Token secret-a"},
            {"X-API-Key": "secret-a"},
            {"xi-api-key": "secret-a"},
        ):
            async with peer(url, headers=headers):
                pass
        token = make_token("alice", "secret-a", expires=4_000_000_000)
        async with peer(f"{url}?token={token}"):
            pass
        for wrong in ({}, {"Authorization": "Bearer secret-b"}, {"X-API-Key": ""}):
            with pytest.raises(InvalidStatus) as refusal:
                await connect(url, additional_headers=wrong)
            assert refusal.value.response.status_code == 401
        with pytest.raises(InvalidStatus):
            await connect(f"{url}?token={token}x")
        assert (await http(started, "/healthz"))[0] == 200


async def test_origins() -> None:
    """With an allow-list of origins other browsers' pages are refused with 403."""
    async with server("auth.origins=https://app.example") as started:
        with pytest.raises(InvalidStatus) as refusal:
            await connect(started.address.url, origin="https://evil.example")  # type: ignore[arg-type]
        assert refusal.value.response.status_code == 403
        async with peer(started.address.url, headers={"Origin": "https://app.example"}):
            pass


async def test_pages_of_other_hosts_without_keys() -> None:
    """Without keys a page from another host may not speak through this machine."""
    async with server() as started:
        host = f"127.0.0.1:{started.address.port}"
        async with peer(started.address.url, headers={"Origin": f"http://{host}"}):
            pass
        with pytest.raises(InvalidStatus) as refusal:
            await connect(started.address.url, additional_headers={"Origin": "http://evil.example"})
        assert refusal.value.response.status_code == 403


async def test_open_to_the_network_by_oversight() -> None:
    """Listening beyond loopback without keys is a start-up error that says what to set."""
    with pytest.raises(StartupError, match=r"auth\.keys"):
        async with server("server.host=0.0.0.0"):
            pass


async def test_port_in_use() -> None:
    """A taken port is a start-up error that names the setting."""
    async with server() as started:
        with pytest.raises(StartupError, match=r"server\.port"):
            async with server(f"server.port={started.address.port}"):
                pass


async def test_idle_socket_survives_unanswered_pings() -> None:
    """idle-socket: a client that answers no ping is kept, and is served when it speaks."""
    async with one("server.ping_seconds=0.01") as (started, connected):
        connected.socket.transport.pause_reading()
        (connection,) = started._connections
        pings = socket_of(connection).pending_pings
        await turns_until(lambda: len(pings) >= 20)
        connected.socket.transport.resume_reading()
        await connected.say("a", SENTENCE)
        assert pcm(await connected.utterance("a"))


def test_how_long_a_socket_may_be_idle() -> None:
    """By default no socket is closed for ten minutes without a word, nor for its age on that day."""
    limits = config.load().limits
    assert limits.idle_seconds > 600
    assert limits.session_seconds >= 86_400


async def test_idle_and_session_limits() -> None:
    """A socket without an open context is closed when its idle or session time is over."""
    async with one("limits.idle_seconds=0.2") as (_, connected):
        assert await closed(connected) == (1001, "idle")
    async with one("limits.session_seconds=0.2") as (_, connected):
        assert await closed(connected) == (1001, "session_expired")


async def test_session_limit_waits_for_open_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An utterance that is under way when the session's time is over is spoken to its end."""
    async with one("limits.session_seconds=60", STEPPED) as (_, connected):
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Audio)
        for user in ("connection", "spoken_context"):
            monkeypatch.setattr(f"orpheus_ws.server.{user}.clock", lambda: clock() + 60)
        assert isinstance((await connected.utterance("a"))[-1], m.Done)
        assert await closed(connected) == (1001, "session_expired")


async def test_close_speaks_what_is_open() -> None:
    """`close` ends every context, speaks it, and closes with 1000."""
    async with one() as (_, connected):
        await connected.send(
            m.Text(context="a", text=SENTENCE), m.Text(context="b", text=SENTENCE), m.Close()
        )
        received = await connected.utterance("b")
        assert {x.context for x in received if isinstance(x, m.Done)} == {"a", "b"}
        assert await closed(connected) == (1000, "closed")


async def test_audio_runs_at_most_lead_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is taken from the codec only when the listener has no more than `lead_ms` in hand."""
    ahead: list[float] = []

    class RecordingPlayer(Player):
        def receive(self, seconds: float, now: float) -> None:
            ahead.append(self.in_hand(now))
            super().receive(seconds, now)

    monkeypatch.setattr("orpheus_ws.server.spoken_context.Player", RecordingPlayer)
    async with one("engine.options.fault=never_stops") as (_, connected):
        await connected.send(m.Open(context="a", lead_ms=300, sampling=m.Sampling(max_tokens=140)))
        await connected.say("a", SENTENCE)
        received = await connected.utterance("a")
    assert len(pcm(received)) == 20 * 2048 * 2
    # The very last samples are held for the fade, and follow the chunk before at once.
    assert max(ahead[:-1]) <= 0.3
    assert max(ahead) > 0.1


async def test_a_flood_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one client floods, another has its answer after a few of the flood's messages."""
    seen: list[object] = []
    original = Session.receive

    def recording(session: Session, message: m.ClientMessage, now: float) -> list[m.ServerMessage]:
        seen.append(getattr(message, "id", None))
        return original(session, message, now)

    async with (
        server() as started,
        peer(started.address.url) as flooder,
        peer(started.address.url) as victim,
    ):
        monkeypatch.setattr(Session, "receive", recording)
        frame = msgpack.packb({"type": "ping", "id": "flood"})
        for _ in range(5000):
            flooder.socket.protocol.send_binary(frame)
        # All at once, and the victim's right behind, before the server gets its turn.
        flooder.socket.transport.write(b"".join(flooder.socket.protocol.data_to_send()))
        await victim.send(m.Ping(id="victim"))
        await victim.wait_for(m.Pong)
        assert len(seen) <= 100
        flooder.socket.transport.abort()


async def test_pings_that_nobody_reads() -> None:
    """A client that pings without reading the answers is cut off before they fill the memory."""
    # What it may send is no obstacle here.
    fast = server("limits.messages_per_second=1000000")
    async with fast as started, peer(started.address.url) as connected:
        connected.socket.transport.pause_reading()
        payload = b"x" * 125
        with contextlib.suppress(ConnectionClosed):
            while started.admission.active:
                for _ in range(500):
                    await connected.socket.ping(payload + b"")
                    payload = payload[1:] + payload[:1]
                    connected.socket.pending_pings.clear()
        await turns_until(lambda: started.admission.active == 0)
        connected.socket.transport.abort()


async def test_close_codes_of_clients_make_no_labels() -> None:
    """Codes that a client invents are counted together."""
    async with server() as started:
        for code in (1000, 3001, 3002, 4999):
            async with peer(started.address.url) as connected:
                await connected.socket.close(code)
        await turns_until(lambda: not started._connections)
        assert await metric(started, "orpheus_socket_closes_total", code="other") == 3
        assert await metric(started, "orpheus_socket_closes_total", code="1000") == 1


async def test_lead_is_the_listeners() -> None:
    """Contexts one after the other share the lead: many short ones do not run far ahead."""
    async with one() as (started, connected):
        await connected.send(m.Config(lead_ms=500))
        for number in range(6):
            await connected.say(f"{number}", "Hi there.")
        received = await connected.utterance("5")
        (connection,) = started._connections
        assert connection._spoken is not None
        total = len(b"".join(message.pcm for message in audio(received))) / 48_000
        assert total > 1.5
        assert connection._spoken.player.in_hand(clock()) <= 0.5 + 0.5


async def test_what_was_cancelled_is_in_nobodys_hand() -> None:
    """Whoever interrupts throws away what was sent, so the next context has a lead of its own."""
    async with one("engine.options.fault=never_stops", "engine.options.fault_requests=1") as (
        started,
        connected,
    ):
        (connection,) = started._connections
        await connected.say("a", SENTENCE)
        seconds = 0.0
        while seconds < 5.0:
            seconds += len((await connected.wait_for(m.Audio)).pcm) / 48_000
        await connected.send(m.Cancel(context="a"))
        await connected.say("b", "Hi there.")
        received = await connected.utterance("b")
        own = len(pcm(received, "b")) / 48_000
        assert connection._spoken is not None
        assert connection._spoken.player.in_hand(clock()) <= own + Player.PREBUFFER < 1.5


async def test_a_shutdown_waits_for_nobody_who_does_not_read() -> None:
    """Leaving the server ends although a client reads nothing, and no task stays behind."""
    before = len(asyncio.all_tasks())
    settings = ("engine.options.fault=never_stops", "server.write_seconds=60")
    async with server(*settings) as started, peer(started.address.url) as deaf:
        deaf.socket.transport.pause_reading()
        for number in range(8):
            await deaf.say(f"{number}", SENTENCE)
        await turns_until(lambda: started.engine.statistics().tokens > 0)
        await started.drain()
        deaf.socket.transport.abort()
    await turns_until(lambda: len(asyncio.all_tasks()) <= before)


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("server.port", "--port"),
        ("server.http_port", "--http-port"),
        ("server.metrics_port", "--metrics-port"),
    ],
)
async def test_a_port_that_is_taken(key: str, option: str) -> None:
    """It is said before the engine is opened, which may take minutes and would complain here."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"{key}={taken.getsockname()[1]}"
        advice = rf"cannot listen on .*; change {key} \({option}\), or use 0"
        with pytest.raises(StartupError, match=advice):
            async with server("engine.options.fault=nonsense", port):
                pass


async def test_a_second_server() -> None:
    """One with the same configuration is told of the port that clients know, not of the metrics'."""
    async with server() as started:
        taken = (
            f"server.port={started.address.port}",
            f"server.metrics_port={started.address.metrics_port}",
        )
        with pytest.raises(StartupError, match=r"change server.port \(--port\)"):
            async with server(*taken):
                pass
