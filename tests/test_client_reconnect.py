"""The client when servers restart, drain, fill up and die: never silent, never twice."""

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator

import pytest

from orpheus_ws import messages as m
from orpheus_ws.client import Client, connect, make_client
from orpheus_ws.client.connection import open_connection
from orpheus_ws.errors import ClientError, Disconnected, Refused, Unreachable
from orpheus_ws.server import Server
from tests.client_peers import FaultySocket, VirtualTime, address, faulty, heard, refusing
from tests.harness import peer, server, turns_until

SENTENCE = "The quick brown fox jumps over the lazy dog."
STEPPED = "engine.options.step_seconds=0.01"


async def speaks(client: Client) -> bool:
    """Whether an utterance on this client has sound and comes to its end."""
    utterance = client.speak(SENTENCE, lead_ms=10_000)
    return await heard(utterance) > 0 and isinstance(utterance.result, m.Done)


def on(started: Server) -> str:
    """The setting that starts a server where another one was."""
    return f"server.port={started.address.port}"


async def serving(port: int, *settings: str) -> tuple[asyncio.subprocess.Process, str]:
    """A server in a process of its own, and its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orpheus_ws", "serve", "--engine", "simulated"),
        *(part for each in ("codec.name=simulated", *settings) for part in ("--set", each)),
        *("--port", str(port), "--metrics-port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    return process, json.loads(await process.stdout.readline())["url"]


async def test_a_client_without_a_socket() -> None:
    """One that was made and not connected opens nothing before it speaks, and then keeps its socket."""
    async with server() as started:
        client = make_client(started.address.url)
        try:
            assert (client.connected, started.admission.active) == (False, 0)
            assert await speaks(client)
            assert await speaks(client)
            assert (client.connected, started.admission.active) == (True, 1)
            await started.drain()
            await turns_until(lambda: not client.connected)
        finally:
            await client.close()


# Servers that come back ---------------------------------------------------------------------------


async def test_a_server_that_restarts_between_utterances() -> None:
    """restart-1012: after a restart the next utterance is simply spoken, on a fresh socket."""
    async with contextlib.AsyncExitStack() as stack:
        async with server() as first:
            client = await stack.enter_async_context(connect(first.address.url))
            assert await speaks(client)
            session = client.ready.session
            await first.drain()
        async with server(on(first)):
            assert await speaks(client)
            assert client.ready.session != session


async def test_a_server_that_dies_in_the_middle() -> None:
    """What was partly heard raises Disconnected, retryable and with the code; the next is spoken."""
    async with contextlib.AsyncExitStack() as stack:
        async with server(STEPPED) as first:
            client = await stack.enter_async_context(connect(first.address.url))
            dying = client.speak(SENTENCE)
            chunks = aiter(dying)
            assert await anext(chunks)
        with pytest.raises(Disconnected, match="1001 shutdown") as lost:
            async for _ in chunks:
                pass
        assert lost.value.close_code == 1001
        assert lost.value.retryable
        async with server(on(first)):
            assert await speaks(client)


async def test_a_server_that_is_killed() -> None:
    """A server process that dies without a word is noticed at once, and its successor speaks."""
    async with contextlib.AsyncExitStack() as stack:
        # Twenty seconds of speech: it is in the middle of it when it is killed, however late that is.
        process, url = await serving(0, STEPPED, "engine.options.fault=never_stops")
        client = await stack.enter_async_context(connect(url))
        chunks = aiter(client.speak(SENTENCE))
        assert await anext(chunks)
        process.kill()
        with pytest.raises(Disconnected, match="the connection was lost"):
            async for _ in chunks:
                pass
        await process.wait()
        process, _ = await serving(int(url.split(":")[2].partition("/")[0]))
        try:
            assert await speaks(client)
        finally:
            process.kill()
            await process.wait()


async def test_an_idle_socket_is_not_replaced_before_it_is_needed() -> None:
    """A client that was closed for being idle takes no slot again until it speaks, or is told to."""

    async def grow_idle(started: Server) -> None:
        (connection,) = started._connections
        connection.leave(1001, "idle")
        await turns_until(lambda: started.admission.active == 0)

    async with server() as started, connect(started.address.url) as client:
        await grow_idle(started)
        for _ in range(50):
            await asyncio.sleep(0)
        assert started.admission.active == 0
        assert await speaks(client)
        await grow_idle(started)
        session = client.ready.session
        await client.connection()
        assert client.ready.session != session


async def test_waiting_for_a_server() -> None:
    """A client may be there before its server is, and waits for it."""
    time = VirtualTime()
    async with contextlib.AsyncExitStack() as stack:
        async with server() as gone:
            pass

        async def start() -> None:
            time.meanwhile = lambda: asyncio.sleep(0)
            await stack.enter_async_context(server(on(gone)))

        time.meanwhile = start
        async with connect(gone.address.url, backoff=time.backoff()) as client:
            assert await speaks(client)
    assert len(time.slept) == 1


async def test_no_server_within_patience() -> None:
    """When no server comes back the utterance raises, after the waits and not before."""
    time = VirtualTime(chance=1.0)
    async with contextlib.AsyncExitStack() as stack:
        async with server() as gone:
            client = await stack.enter_async_context(
                connect(gone.address.url, patience=1.0, backoff=time.backoff())
            )
        with pytest.raises(Unreachable, match="is the server running"):
            await heard(client.speak(SENTENCE))
        assert time.slept == [0.2, 0.4]


async def test_a_full_server_frees_a_slot() -> None:
    """A full server's Retry-After is waited for, and then there is room."""
    time = VirtualTime()
    async with contextlib.AsyncExitStack() as stack:
        started = await stack.enter_async_context(server("engine.capacity=1"))
        holder = contextlib.AsyncExitStack()
        await holder.enter_async_context(peer(started.address.url))

        async def free() -> None:
            await holder.aclose()
            await turns_until(lambda: started.admission.active == 0)

        time.meanwhile = free
        async with connect(started.address.url, backoff=time.backoff()) as client:
            assert await speaks(client)
    assert time.slept == [1.1]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_mistake_is_told_at_once(status: int) -> None:
    """A wrong key, origin or path is asked about once."""
    time = VirtualTime()
    async with refusing(status) as (url, answered):
        with pytest.raises(Refused) as refused:
            async with connect(url, patience=60.0, backoff=time.backoff()):
                pass
    assert (refused.value.status, answered, time.slept) == (status, [status], [])
    assert not refused.value.retryable


async def test_a_proxy_without_a_server_behind() -> None:
    """Gateway errors and limits pass; a Retry-After that is no number is not followed."""
    time = VirtualTime(chance=0.0)
    for header in ("Wed, 21 Oct 2026 07:28:00 GMT", "²", "-5", "soon"):
        async with refusing(502, 504, 429, 401, headers={"Retry-After": header}) as (url, answered):
            with pytest.raises(Refused) as refused:
                async with connect(url, backoff=time.backoff()):
                    pass
            assert refused.value.status == 401
            assert refused.value.retry_after is None
            assert answered == [502, 504, 429, 401]
    assert sum(time.slept) == 0.0


@pytest.mark.parametrize(
    ("status", "name", "values", "asked"),
    [
        (503, "Retry-After", ("1", "2"), 2.0),
        (503, "Retry-After", ("3", "Wed, 21 Oct 2026 07:28:00 GMT"), 3.0),
        (302, "Location", ("/a", "/b"), None),
    ],
)
async def test_a_header_that_comes_twice(
    status: int, name: str, values: tuple[str, ...], asked: float | None
) -> None:
    """What a proxy adds to a refusal does not change what is raised; the longer wait counts."""
    async with refusing(status, headers=[(name, value) for value in values]) as (url, _):
        with pytest.raises(ClientError) as failed:
            async with connect(url, patience=0):
                pass
    assert getattr(failed.value, "retry_after", None) == asked


async def test_a_socket_that_is_closing() -> None:
    """A socket that the server is closing gets no new work, however long the closing takes."""

    closing: list[FaultySocket] = []

    async def close_slowly(socket: FaultySocket) -> None:
        closing.append(socket)
        socket._socket.transport.pause_reading()
        socket._socket.protocol.send_close(1012, "restart")
        socket._socket.send_data()

    async with faulty(close_slowly, FaultySocket.speak) as servers, connect(servers.url) as client:
        old = client._connection
        assert old is not None
        await turns_until(lambda: not old.usable)
        assert not old.closed
        assert await heard(client.speak("Hello.")) == 1
        closing[0]._socket.transport.resume_reading()


async def test_a_lost_connection_tells_whoever_comes_late() -> None:
    """An utterance that enters a connection when it has just been lost hears of it."""

    async def leave(socket: FaultySocket) -> None:
        await socket.close(1012, "restart")

    async with faulty(leave) as servers:
        connection = await open_connection(servers.url, api_key=None, open_timeout=10.0)
        await turns_until(lambda: connection.closed)
        told: list[object] = []
        connection.enter("late", told.append)
        assert [type(what) for what in told] == [Disconnected]
        await connection.close()


# Draining -----------------------------------------------------------------------------------------


async def test_draining() -> None:
    """What a draining server speaks it finishes; what comes after goes to the next server."""
    async with (
        server(STEPPED) as old,
        server() as new,
        address(old.address.port) as where,
        connect(where.url) as client,
    ):
        heard_new = asyncio.Event()

        async def written() -> AsyncIterator[str]:
            yield f"{SENTENCE} "
            await heard_new.wait()
            yield "And this is its end."

        first = client.speak(written(), lead_ms=10_000)
        events = first.events()
        async for event in events:
            if isinstance(event, m.Audio):
                break
        where.behind = new.address.port
        draining = asyncio.create_task(old.drain())
        await turns_until(lambda: not client._connection.usable)  # type: ignore[union-attr]
        assert await speaks(client)
        assert (old.admission.active, new.admission.active) == (1, 1)
        heard_new.set()
        spoken = [event.text async for event in events if isinstance(event, m.Segment)]
        assert spoken == ["And this is its end."]
        assert isinstance(first.result, m.Done)
        await draining
        assert await speaks(client)
        assert where.accepted == 2


# Strangers and secrets ----------------------------------------------------------------------------


async def test_a_server_that_turns_strange() -> None:
    """Something that is not the protocol ends the utterance, and the next gets a fresh socket."""

    async def babble(socket: FaultySocket) -> None:
        await socket.receive(m.End)
        await socket._socket.send(b"\xc1")

    async with faulty(babble, FaultySocket.speak) as servers, connect(servers.url) as client:
        with pytest.raises(ClientError, match="not the protocol"):
            await heard(client.speak("Hello."))
        assert await heard(client.speak("Hello.")) == 1


async def test_a_socket_that_ends_with_a_reason() -> None:
    """What a server says before it closes for good is told, and nothing new goes to that socket."""

    async def give_up(socket: FaultySocket) -> None:
        context = await socket.receive(m.End)
        await socket.send(m.Started(context=context, handle=1, queue_ms=0.0))
        reason = "the codec has died; try another server"
        await socket.send(m.Error(code="internal", message=reason, retryable=True, fatal=True))
        await socket.receive(m.Cancel)

    async with faulty(give_up, FaultySocket.speak) as servers, connect(servers.url) as client:
        first = client._connection
        assert first is not None
        utterance = client.speak("Hello.")
        listening = asyncio.create_task(heard(utterance))
        await turns_until(lambda: not first.usable)
        assert await heard(client.speak("Next.")) == 1
        await first.close()
        with pytest.raises(Disconnected, match="internal: the codec has died"):
            await listening
        assert servers.text(1) == "Next."


async def test_gone_before_ready() -> None:
    """A server that dies between the handshake and its greeting is tried again."""
    time = VirtualTime()
    async with server() as started, address() as where:

        async def repair() -> None:
            where.behind = started.address.port

        time.meanwhile = repair
        async with connect(where.url, backoff=time.backoff()) as client:
            assert await speaks(client)
    assert where.accepted == 2


async def test_no_secrets_in_logs(caplog: pytest.LogCaptureFixture) -> None:
    """At the chattiest level neither the key nor what is spoken is in an application's logs."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("websockets").setLevel(logging.WARNING)
    async with (
        server("auth.keys.a=s3cret-key") as started,
        connect(started.address.url, api_key="s3cret-key") as client,
    ):
        assert await heard(client.speak("Confidential words.")) > 0
    assert "s3cret-key" not in caplog.text
    assert "Confidential" not in caplog.text
