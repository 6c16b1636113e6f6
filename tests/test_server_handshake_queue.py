"""Before the handshake: who waits, who is refused, who gets in though a storm goes on."""

import asyncio
import contextlib
import gc
import re
from collections.abc import AsyncIterator
from types import ModuleType

import pytest

from orpheus_ws import messages as m
from orpheus_ws.server import Server, handshake_queue, scrapes
from orpheus_ws.server.handshake import AdmittedConnection
from orpheus_ws.server.handshake_queue import HEAD_BYTES
from orpheus_ws.trace import clock
from tests.harness import peer, server, turns_until
from tests.server_peers import http, metric

UPGRADE = (
    b"GET /v1/tts HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
SLOW = ("server.handshakes_per_second=1", "auth.keys.alice=secret")
PORTS = ("port", "http_port", "metrics_port")
HTTP = "server.http_port=0"


class Raw:
    """A TCP connection and what comes back on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def status(self) -> bytes:
        """Of the answer; empty if there is none."""
        return (await self.reader.read(4096))[9:12]

    @property
    def answered(self) -> bool:
        """Whether something has come back and was not read."""
        return bool(self.reader._buffer)  # type: ignore[attr-defined]

    async def closed(self) -> None:
        """Wait until the server has closed."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass


@contextlib.asynccontextmanager
async def raw(started: Server, sent: bytes = b"", port: str = "port") -> AsyncIterator[Raw]:
    """Connect to one of the server's ports and send something."""
    number: int = getattr(started.address, port)
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    try:
        writer.write(sent)
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def no_turn_comes(queue: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a queue's clock stand still: however slow the machine is, nobody gets more than there was at once."""
    moment = clock()
    monkeypatch.setattr(queue, "clock", lambda: moment)


def turns_come(queue: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have its clock go on."""
    monkeypatch.setattr(queue, "clock", clock)


@contextlib.asynccontextmanager
async def crowd(started: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A queue with no turn left, nor any to come, whose line for connections without a key is full."""
    no_turn_comes(handshake_queue, monkeypatch)
    monkeypatch.setattr(handshake_queue, "MAX_WAITING", 2)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(raw(started, UPGRADE + b"\r\n"))  # takes what there was
        for _ in range(2):
            await stack.enter_async_context(raw(started, UPGRADE + b"\r\n"))
        await turns_until(lambda: len(started.handshake_queue._without_key) == 2)
        yield


async def test_a_full_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who finds the line full is told 503 and when to come again, and is counted."""
    async with server(*SLOW) as started, crowd(started, monkeypatch):
        async with raw(started, UPGRADE + b"\r\n") as refused:
            answer = await refused.reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 1\r\n" in answer
        assert b'"error":"busy"' in answer
        assert await metric(started, "orpheus_handshakes_refused_total", reason="busy") == 1


async def test_a_key_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever shows a key gets in at the next turn, whoever waits without one; a wrong one is none."""
    async with server(*SLOW) as started, crowd(started, monkeypatch):
        async with raw(started, UPGRADE + b"X-API-Key: wrong\r\n\r\n") as refused:
            assert await refused.status() == b"503"
        async with raw(started, UPGRADE + b"X-API-Key: secret\r\n\r\n") as known:
            await turns_until(lambda: len(started.handshake_queue._with_key) == 1)
            turns_come(handshake_queue, monkeypatch)
            assert await known.status() == b"101"


async def test_without_a_key_there_is_a_turn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many with a key wait, each fourth turn is for somebody without."""
    monkeypatch.setattr(handshake_queue, "MAX_WAITING", 100)
    with_key = UPGRADE + b"X-API-Key: secret\r\n\r\n"
    settings = ("server.handshakes_per_second=40", "auth.keys.alice=secret")
    async with server(*settings) as started, contextlib.AsyncExitStack() as stack:
        no_turn_comes(handshake_queue, monkeypatch)
        for _ in range(60):
            await stack.enter_async_context(raw(started, with_key))
        anonymous = await stack.enter_async_context(raw(started, UPGRADE + b"\r\n"))
        await turns_until(lambda: len(started.handshake_queue._without_key) == 1)
        turns_come(handshake_queue, monkeypatch)
        assert await anonymous.status() == b"401"
        assert started.handshake_queue._with_key


async def test_probes_are_answered_in_a_storm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the process is alive, and ready as far as is known, is said though nobody gets in."""
    async with server(*SLOW, HTTP) as started, crowd(started, monkeypatch):
        assert await http(started, "/healthz") == (200, '{"alive":true}\n')
        assert (await http(started, "/healthz", port=started.address.http_port))[0] == 200
        assert await http(started, "/readyz") == (200, '{"ready":true}\n')
        started.admission.draining = True
        assert (await http(started, "/readyz"))[0] == 503


async def test_a_burst_waits_and_is_served() -> None:
    """More than may come at once is not refused: it has its turn a little later, in order."""
    async with server("server.handshakes_per_second=40") as started:
        statuses = []
        async with contextlib.AsyncExitStack() as stack:
            everyone = [
                await stack.enter_async_context(raw(started, UPGRADE + b"\r\n")) for _ in range(30)
            ]
            statuses = [await each.status() for each in everyone]
        assert statuses == [b"101"] * 30


async def test_refusals_leave_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a refused connection was is gone with it, without the collector: it would stop everybody."""
    async with server(*SLOW) as started, crowd(started, monkeypatch):
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                async with raw(started, UPGRADE + b"\r\n") as refused:
                    assert await refused.status() == b"503"
                async with raw(started, b"GET"):
                    pass
            await turns_until(lambda: started.handshake_queue.waiting <= 2)
            await asyncio.sleep(0)
            kept = [each for each in gc.get_objects() if type(each) is AdmittedConnection]
            assert len(kept) <= 5
            kept.clear()
        finally:
            gc.enable()


async def test_leaving_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes while he waits leaves his place to another, and nothing behind."""
    async with server(*SLOW) as started:
        async with crowd(started, monkeypatch):
            pass
        await turns_until(lambda: started.handshake_queue.waiting == 0)


async def test_those_who_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than may be silent, and the one that is silent for longest goes; others get in."""
    monkeypatch.setattr(handshake_queue, "MAX_SILENT", 3)
    async with server() as started, contextlib.AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(raw(started, b"GET /v1")) for _ in range(3)]
        await turns_until(lambda: started.handshake_queue.waiting == 3)
        async with peer(started.address.url) as connected:
            await connected.fence()
        assert await silent[0].status() == b"503"
        assert started.handshake_queue.waiting == 2


@pytest.mark.parametrize("port", PORTS)
async def test_a_head_that_trickles(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """slowloris: whoever sends his head byte by byte is cut off when his time is over."""
    monkeypatch.setattr(scrapes, "SCRAPE_SECONDS", 0.3)
    async with (
        server("server.handshake_seconds=0.3", HTTP) as started,
        raw(started, b"", port) as slow,
    ):
        with contextlib.suppress(ConnectionError):
            for byte in b"GET /metrics HTTP/1.1\r\nX-Long: " + b"a" * 100_000:
                # uvloop does not tell of a write to what is closed as of a connection's end.
                if slow.reader.at_eof() or slow.writer.is_closing():
                    break
                slow.writer.write(bytes([byte]))
                await slow.writer.drain()
                await asyncio.sleep(0.01)
        await slow.closed()
        assert started.handshake_queue.waiting == 0


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    "line", [b"X-Long: " + b"a" * 100_000, b"X: y\r\n" * 20_000, b"a" * 100_000]
)
async def test_a_head_without_end(port: str, line: bytes) -> None:
    """A header of 100 kB, or thousands of them, is refused with 431 before its end."""
    async with (
        server(HTTP) as started,
        raw(started, b"GET /v1/tts HTTP/1.1\r\n" + line, port) as long,
    ):
        with contextlib.suppress(ConnectionError):
            assert await long.status() in (b"431", b"")
        await long.closed()


@pytest.mark.parametrize("port", ["port", "http_port"])
async def test_a_head_as_long_as_may_be(port: str) -> None:
    """Heads up to the limit are read: at it one is answered, one past it refused."""
    begin = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    lines = b"".join(b"X-%d: %s\r\n" % (n, b"a" * 4000) for n in range(3))
    for extra, status in ((0, b"200"), (1, b"431")):
        rest = b"X: " + b"a" * (HEAD_BYTES - len(begin) - len(lines) - 5 + extra) + b"\r\n"
        async with server(HTTP) as started, raw(started, b"", port) as asking:
            asking.writer.write(begin + lines + rest)
            await turns_until(lambda: bool(started.handshake_queue.waiting) or asking.answered)
            if extra == 0:
                asking.writer.write(b"\r\n")
            assert await asking.status() == status


@pytest.mark.parametrize("port", ["port", "http_port"])
@pytest.mark.parametrize("known", [b"", b"X-API-Key: secret\r\n"])
async def test_a_head_that_is_too_long_and_whole(port: str, known: bytes) -> None:
    """It is refused with 431 though its end is there already, whoever sends it."""
    lines = b"".join(b"X-%d: %s\r\n" % (n, b"a" * 4000) for n in range(5))
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + known + lines
    async with server(HTTP, "auth.keys.alice=secret") as started:
        async with raw(started, head + b"\r\n", port) as asking:
            assert await asking.status() == b"431"
        assert started.handshake_queue.waiting == 0


async def test_half_closed_before_the_head() -> None:
    """Whoever says that no more will come, before his head is complete, is gone."""
    async with server() as started, raw(started, UPGRADE) as half:
        await turns_until(lambda: started.handshake_queue.waiting == 1)
        half.writer.write_eof()
        await half.closed()
        assert started.handshake_queue.waiting == 0


async def test_requests_on_one_connection_wait_as_well() -> None:
    """Past the rate a connection over HTTP gets one answer, and has to wait for its turn again."""
    async with server("server.handshakes_per_second=1", HTTP) as started:
        ask = b"GET /capacity HTTP/1.1\r\nHost: x\r\n\r\n"
        async with raw(started, ask * 50, "http_port") as greedy:
            answers = await greedy.reader.read()
        assert answers.count(b"HTTP/1.1 200") < 5
        assert b"connection: close" in answers


async def test_a_crowd_at_the_metrics() -> None:
    """A thousand who connect there and say nothing, or never read, keep no scrape away."""
    async with server() as started, contextlib.AsyncExitStack() as stack:
        for number in range(1000):
            sent = b"" if number % 100 else b"GET /metrics HTTP/1.1\r\n\r\n"
            await stack.enter_async_context(raw(started, sent, "metrics_port"))
        assert await metric(started, "orpheus_sockets_admitted") > 0


async def test_health_in_a_crowd_of_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told at once, whoever waits for his scrape: a server is not killed for being looked at."""
    monkeypatch.setattr(scrapes, "SCRAPES_PER_SECOND", 0.01)
    async with server() as started:
        port = started.address.metrics_port
        assert (await http(started, "/metrics", port=port))[0] == 200
        async with raw(started, b"GET /metrics HTTP/1.1\r\n\r\n", "metrics_port"):
            assert await http(started, "/healthz", port=port) == (200, '{"alive":true}\n')


async def test_nothing_waits_when_the_server_stops() -> None:
    """Those that wait are cut off with the server, whatever they wait for."""
    async with contextlib.AsyncExitStack() as stack:
        async with server(*SLOW) as started:
            silent = await stack.enter_async_context(raw(started, b"GET"))
            await turns_until(lambda: started.handshake_queue.waiting == 1)
        await silent.closed()
        assert started.handshake_queue.waiting == 0


async def test_the_greeting_says_how_fast() -> None:
    """`ready` has the rate of messages, so that a client can keep to it."""
    async with (
        server("limits.messages_per_second=7") as started,
        raw(started, UPGRADE + b"\r\n") as asking,
    ):
        await asking.reader.readuntil(b'"messages_per_second":7')
    assert "messages_per_second" in m.Limits.__struct_fields__


async def test_a_body_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a head that waits for its turn a body may come, but no more than there is room for."""
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    most = handshake_queue.HEAD_BYTES + handshake_queue.BODY_BYTES
    monkeypatch.setattr(handshake_queue, "MAX_WAITING", 100)
    settings = ("server.handshakes_per_second=1", "server.handshake_seconds=60", HTTP)
    async with server(*settings) as started, contextlib.AsyncExitStack() as stack:
        for _ in range(20):
            await stack.enter_async_context(raw(started, UPGRADE + b"\r\n"))
        await turns_until(lambda: len(started.handshake_queue._without_key) >= 15)
        waiting = await stack.enter_async_context(raw(started, head, "http_port"))
        waiting.writer.write(b"a" * (most - len(head)))
        last = list(started.handshake_queue._without_key)[-1]
        await turns_until(lambda: any(g.size == most for g in started.handshake_queue._without_key))
        assert last.asked
        waiting.writer.write(b"a")
        assert await waiting.status() == b"503"


async def test_refused_handshakes_leave_no_garbage() -> None:
    """Nor is anything left for the collector of those who had their turn and were refused."""
    async with server("auth.keys.alice=secret") as started:
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                async with raw(started, UPGRADE + b"\r\n") as asking:
                    assert await asking.status() == b"401"
            # The last of them may be under way: only the test's timeout notices what would stay for ever.
            await turns_until(
                lambda: sum(type(o) is AdmittedConnection for o in gc.get_objects()) <= 3
            )
        finally:
            gc.enable()


@pytest.mark.parametrize("port", ["port", "http_port"])
async def test_a_turn_that_comes_too_late(
    port: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is cut off in the very moment of his turn is nobody's trouble, and the next has his."""
    settings = ("server.handshakes_per_second=10", HTTP)
    async with server(*settings) as started, contextlib.AsyncExitStack() as stack:
        no_turn_comes(handshake_queue, monkeypatch)
        ask = UPGRADE + b"\r\n" if port == "port" else b"GET /capacity HTTP/1.1\r\nHost: x\r\n\r\n"
        await stack.enter_async_context(raw(started, ask, port))
        late = await stack.enter_async_context(raw(started, ask, port))
        await turns_until(lambda: len(started.handshake_queue._without_key) == 1)
        next_one = await stack.enter_async_context(raw(started, ask, port))
        await turns_until(lambda: len(started.handshake_queue._without_key) == 2)
        next(iter(started.handshake_queue._without_key)).transport.abort()
        started.handshake_queue._bucket._tokens = 1.0
        started.handshake_queue._tick()
        await late.closed()
        turns_come(handshake_queue, monkeypatch)
        assert await next_one.status() in (b"101", b"200")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


class Looking:
    """A pattern that adds up how many bytes it is shown."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern = pattern
        self.bytes = 0

    def search(self, text: bytes, begin: int) -> re.Match[bytes] | None:
        """As the pattern itself."""
        self.bytes += len(text) - begin
        return self.pattern.search(text, begin)


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n", b"\r\n\n", b"\n\r\n"])
async def test_a_head_in_single_bytes(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is found wherever it is cut, and a byte costs the same however many came before it."""
    looking = Looking(handshake_queue._END)
    monkeypatch.setattr(handshake_queue, "_END", looking)
    head = b"GET /capacity HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 5000 + end
    async with server() as started, raw(started):
        await turns_until(lambda: started.handshake_queue.waiting == 1)
        pending = next(iter(started.handshake_queue._silent))
        asked = []
        for byte in head:
            pending.feed(bytes([byte]))
            asked.append(pending.asked)
        assert asked == [False] * (len(head) - 1) + [True]
    assert looking.bytes <= 4 * len(head)
