"""Nothing is spoken twice: what goes again when a socket is lost, and what is the caller's."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from orpheus_ws import messages as m
from orpheus_ws.client import SpokenText, connect
from orpheus_ws.errors import Disconnected
from tests.client_peers import FaultySocket, faulty, heard
from tests.harness import turns_until


async def lost_unanswered(socket: FaultySocket) -> None:
    """Take a whole utterance and die."""
    await socket.receive(m.End)
    await socket.lose()


async def lost_started(socket: FaultySocket) -> None:
    """Take a whole utterance, begin with it and die."""
    context = await socket.receive(m.End)
    await socket.send(m.Started(context=context, handle=1, queue_ms=0.0))
    await socket.lose()


async def lost_speaking(socket: FaultySocket) -> None:
    """Speak a sample and die."""
    context = await socket.receive(m.End)
    await socket.send(m.Audio(context=context, seq=0, offset=0, pcm=b"\0\0"))
    await socket.lose()


@pytest.mark.parametrize("text", ["Hello there.", ["Hello ", "there."], ("Hello ", None, "there.")])
async def test_unheard_whole_text_goes_again(text: SpokenText) -> None:
    """spoken-twice: text in memory of which nothing came back is sent again on the fresh socket, all of it."""
    async with (
        faulty(lost_unanswered, FaultySocket.speak) as servers,
        connect(servers.url) as client,
    ):
        utterance = client.speak(text)
        assert await heard(utterance) == 1
        assert isinstance(utterance.result, m.Done)
    assert [servers.text(0), servers.text(1)] == ["Hello there."] * 2


async def test_a_text_that_was_still_being_sent() -> None:
    """Reader and writer both notice that the socket is lost, and it is one loss all the same."""

    async def lost_reading(socket: FaultySocket) -> None:
        await socket.receive(m.Text)
        await socket.lose()

    text = ["These are words without an end and without a pause "] * 50_000
    async with (
        faulty(lost_reading, FaultySocket.speak) as servers,
        connect(servers.url) as client,
    ):
        assert await heard(client.speak(text)) == 1
    assert servers.text(1) == "".join(text)


async def test_once_only() -> None:
    """It is sent again once: a text that kills servers does not kill them all."""
    async with (
        faulty(lost_unanswered, lost_unanswered, FaultySocket.speak) as servers,
        connect(servers.url) as client,
    ):
        with pytest.raises(Disconnected):
            await heard(client.speak("Hello."))
        assert len(servers.heard) == 2
        assert await heard(client.speak("And on.")) == 1


@pytest.mark.parametrize("dying", [lost_started, lost_speaking])
async def test_what_was_begun_is_not_repeated(dying: object) -> None:
    """Once anything came back the utterance is not sent again, however whole its text."""
    async with faulty(dying, FaultySocket.speak) as servers, connect(servers.url) as client:  # type: ignore[arg-type]
        with pytest.raises(Disconnected) as lost:
            await heard(client.speak("Hello."))
        assert lost.value.retryable
        assert len(servers.heard) == 1
        assert await heard(client.speak("Next.")) == 1
        assert servers.text(1) == "Next."


async def test_text_that_was_read_is_not_repeated() -> None:
    """Text from an iterator is gone once it was read, so the caller is told instead."""

    async def written() -> AsyncIterator[str]:
        yield "Hello "
        yield "there."

    for text in (written(), iter(["Hello ", "there."])):
        async with (
            faulty(lost_unanswered, FaultySocket.speak) as servers,
            connect(servers.url) as client,
        ):
            with pytest.raises(Disconnected):
                await heard(client.speak(text))
            assert servers.text(0) == "Hello there."
            assert len(servers.heard) == 1


async def test_a_cancelled_utterance_is_not_repeated() -> None:
    """What the user interrupted stays silent when the socket is lost."""

    async def lose_the_cancelled(socket: FaultySocket) -> None:
        await socket.receive(m.Cancel)
        await socket.lose()

    async with (
        faulty(lose_the_cancelled, FaultySocket.speak) as servers,
        connect(servers.url) as client,
    ):
        utterance = client.speak("Hello.")
        listening = asyncio.create_task(heard(utterance))
        await turns_until(lambda: servers.text(0) == "Hello." if servers.heard else False)
        await utterance.cancel()
        with pytest.raises(Disconnected):
            await listening
        assert len(servers.heard) == 1


async def test_a_restart_in_the_very_moment() -> None:
    """What a closing server never read is spoken by the next one: the listener notices nothing."""

    async def leave(socket: FaultySocket) -> None:
        await socket.receive(m.Open)
        await socket.close(1012, "restart")

    async with faulty(leave, FaultySocket.speak) as servers, connect(servers.url) as client:
        assert await heard(client.speak("Hello.")) == 1
    assert servers.text(1) == "Hello."
