"""Many utterances that wait for one socket, and those that stop waiting."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from orpheus_ws import messages as m
from orpheus_ws.client import Client, connect
from orpheus_ws.errors import Disconnected, Refused
from tests.client_peers import VirtualTime, address, heard, refusing
from tests.harness import server, turns_until
from tests.server_peers import socket_of


async def test_a_storm_shares_one_attempt() -> None:
    """Twenty utterances that find the socket gone open one, between them, and are spoken in order."""
    time = VirtualTime()
    async with server() as started, address(started.address.port) as where:
        async with connect(where.url, backoff=time.backoff()) as client:
            where.behind = None
            for connection in started._connections:
                socket_of(connection).transport.abort()
            await turns_until(lambda: client._connection.closed)  # type: ignore[union-attr]
            order: list[int] = []

            async def speak(number: int) -> None:
                utterance = client.speak("Hi.", lead_ms=10_000)
                assert await heard(utterance) > 0
                order.append(number)

            async def repair() -> None:
                where.behind = started.address.port

            time.meanwhile = repair
            await asyncio.gather(*(speak(number) for number in range(20)))
            assert order == list(range(20))
        # One at first, one that failed, one that worked.
        assert where.accepted == 3
        assert len(time.slept) == 1


async def test_a_storm_fails_together() -> None:
    """Twenty utterances whose key was withdrawn ask once."""
    async with (
        refusing(401) as (url, answered),
        server() as started,
        address(started.address.port) as where,
        connect(where.url) as client,
    ):
        where.behind = int(url.rpartition(":")[2].partition("/")[0])
        for connection in started._connections:
            socket_of(connection).transport.abort()
        await turns_until(lambda: client._connection.closed)  # type: ignore[union-attr]
        failures = await asyncio.gather(
            *(heard(client.speak("Hi.")) for _ in range(20)), return_exceptions=True
        )
    assert all(isinstance(failure, Refused) for failure in failures)
    assert answered == [401]


@contextlib.asynccontextmanager
async def waiting_for_ever() -> AsyncIterator[tuple[Client, asyncio.Event]]:
    """A client that lost its server and sleeps before its next attempt until the end of time."""
    time = VirtualTime()
    asleep = asyncio.Event()

    async def sleep() -> None:
        asleep.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            asleep.clear()

    time.meanwhile = sleep
    async with contextlib.AsyncExitStack() as stack:
        async with server() as gone:
            client = await stack.enter_async_context(
                connect(gone.address.url, backoff=time.backoff())
            )
        await turns_until(lambda: client._connection.closed)  # type: ignore[union-attr]
        yield client, asleep


async def test_cancelling_while_waiting_leaves_nothing() -> None:
    """Who gives up disturbs nobody, and when the last one does the attempt ends with no trace."""
    async with waiting_for_ever() as (client, asleep):
        before = asyncio.all_tasks()
        waiting = [asyncio.create_task(heard(client.speak("Hi."))) for _ in range(3)]
        await asleep.wait()
        for task in waiting:
            assert asleep.is_set()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
        assert not asleep.is_set()
        assert asyncio.all_tasks() == before


async def test_barge_in_while_waiting() -> None:
    """An utterance that is cancelled before there is a socket ends at once, and quietly."""
    async with waiting_for_ever() as (client, asleep):
        utterance = client.speak("Hi.")
        listening = asyncio.create_task(heard(utterance))
        await asleep.wait()
        await utterance.cancel(played_ms=0)
        assert await listening == 0
        assert utterance.result == m.Cancelled(context=utterance.context, sent_ms=0.0)
        assert not asleep.is_set()


async def test_closing_while_waiting() -> None:
    """Leaving the block ends what still waits for a socket, with an error and not with silence."""
    async with waiting_for_ever() as (client, asleep):
        listening = asyncio.create_task(heard(client.speak("Hi.")))
        await asleep.wait()
    with pytest.raises(Disconnected, match="this client was closed"):
        await listening


async def test_a_cancelled_attempt_is_not_joined() -> None:
    """Who comes while an attempt that nobody wants is still ending gets an attempt of its own."""
    time = VirtualTime()
    asleep = asyncio.Semaphore(0)
    ending = asyncio.Event()
    end = asyncio.Event()

    async def sleep() -> None:
        asleep.release()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ending.set()
            await end.wait()

    time.meanwhile = sleep
    async with contextlib.AsyncExitStack() as stack:
        async with server() as gone:
            client = await stack.enter_async_context(
                connect(gone.address.url, backoff=time.backoff())
            )
        await turns_until(lambda: client._connection.closed)  # type: ignore[union-attr]
        first = asyncio.create_task(heard(client.speak("Hi.")))
        await asleep.acquire()
        first.cancel()
        await ending.wait()
        second = asyncio.create_task(heard(client.speak("Hi.")))
        await asleep.acquire()
        end.set()
        await asyncio.gather(first, return_exceptions=True)
        assert not second.done()
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second


async def test_barge_in_at_any_time_of_reconnecting() -> None:
    """Whenever an utterance is cancelled while its socket opens, nothing is left speaking."""
    settings = ("engine.options.step_seconds=0.01", "engine.options.fault=never_stops")
    async with server(*settings) as started, connect(started.address.url) as client:
        for turns in range(60):
            for connection in started._connections:
                socket_of(connection).transport.abort()
            await turns_until(lambda: client._connection.closed)  # type: ignore[union-attr]
            utterance = client.speak("Hi there.")
            listening = asyncio.create_task(heard(utterance))
            for _ in range(turns):
                await asyncio.sleep(0)
            await utterance.cancel()
            await listening
            assert isinstance(utterance.result, m.Cancelled)
            # What the server thinks is open when it has seen everything that was sent.
            await client.speak("Quick.", sampling=m.Sampling(max_tokens=7)).read()
            assert started.engine.statistics().active == 0
