"""What the client makes of text: pieces, long texts, and whoever writes it."""

import asyncio
import contextlib
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws import messages as m
from orpheus_ws.client import Client, SpokenText, connect
from orpheus_ws.client.text import ends_sentence, pieces
from orpheus_ws.errors import ClientError, UtteranceFailed
from tests.harness import server, turns_until

SHORT = m.Sampling(max_tokens=7)
"""One frame a segment: a book in a second."""


async def said(client: Client, text: SpokenText) -> list[str]:
    """The segments that a text became."""
    utterance = client.speak(text, lead_ms=10_000, sampling=SHORT)
    events = [event async for event in utterance.events()]
    assert isinstance(events[-1], m.Done)
    return [event.text for event in events if isinstance(event, m.Segment)]


async def collect(text: SpokenText, size: int) -> list[str]:
    """All pieces of a text."""
    return [piece async for piece in pieces(text, size)]


@settings(deadline=None)
@given(
    st.lists(st.none() | st.text(alphabet="ab .!\n…\ud83d", max_size=60), max_size=5),
    st.integers(1, 20),
)
def test_pieces_are_the_text(parts: list[str | None], size: int) -> None:
    """No piece is empty or too long, and together they are the text, but for what has no sound."""
    got = asyncio.run(collect(parts, size))
    assert "".join(got) == "".join(filter(None, parts)).replace("\ud83d", "")
    assert all(0 < len(piece) <= size for piece in got)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One paragraph.\n\nTwo. Three", "One paragraph.\n\n"),
        ("One two. Three. Four five", "One two. Three. "),
        ('Or.\n"So it is?"\nFour five', 'Or.\n"So it is?"\n'),
        ("So it is now.\nNot\nfor ever", "So it is now.\n"),
        ("one two three four five six", "one two three "),
        ("onetwothreefourfivesix", "onetwothreefourfiv"),
        ("A. two three four five six", "A. two three four "),
        ("Short.", "Short."),
    ],
)
async def test_long_texts_are_cut_at_pauses(text: str, first: str) -> None:
    """A piece ends with a paragraph, a sentence or a word, the best in its second half."""
    assert (await collect(text, 18))[0] == first


def test_the_end_of_a_sentence() -> None:
    """Only a piece that ends with a sentence and white space may be followed by a pause."""
    assert all(map(ends_sentence, ("One. ", "One.\n\n", "One… ", "“One!”\n", "One\n\n")))
    assert not any(map(ends_sentence, ("One.", "One ", "One\n", "1.5", "", " ")))


@pytest.mark.parametrize("kind", ["str", "paragraphs", "wrapped", "lines", "iterator"])
async def test_a_book(kind: str) -> None:
    """A text many times longer than may wait is spoken whole, however it is handed over."""
    sentences = [f"Sentence number {n} is here." for n in range(40)]
    lines = [f"{sentence}\n" for sentence in sentences]
    text: SpokenText = {
        "str": " ".join(sentences),
        "paragraphs": "\n\n".join(sentences),
        "wrapped": textwrap.fill(" ".join(sentences), 20),
        "lines": lines,
        "iterator": iter(lines),
    }[kind]
    assert sum(map(len, sentences)) > 4 * 200
    async with server("limits.text_chars=200") as started, connect(started.address.url) as client:
        assert await said(client, text) == sentences


async def test_a_text_without_sentences_may_be_too_long() -> None:
    """What has no place to wait at is refused by the server, and said to be."""
    async with server("limits.text_chars=500") as started, connect(started.address.url) as client:
        with pytest.raises(UtteranceFailed) as failed:
            await said(client, "word " * 1000)
        assert failed.value.code == "text_too_long"
        assert await said(client, "Hi.") == ["Hi."]


async def test_a_tiny_limit() -> None:
    """A server that lets almost no text wait is spoken to in single characters."""
    async with server("limits.text_chars=3") as started, connect(started.address.url) as client:
        with pytest.raises(UtteranceFailed):
            await said(client, "Hello. You. ")


@pytest.mark.parametrize("letter", ["a", "é", "語", "𝒜"])
async def test_tiny_messages(letter: str) -> None:
    """However short the server wants its messages, a long text fits, whatever it is written in."""
    async with (
        server("limits.message_bytes=256") as started,
        connect(started.address.url) as client,
    ):
        text = f"{letter * 20}. " * 60
        assert "".join(await said(client, text)).replace(" ", "") == text.replace(" ", "")


async def test_an_ordinary_iterator_does_not_block() -> None:
    """A generator that waits for its next word keeps nobody from speaking meanwhile."""
    written = threading.Event()
    threads: set[int] = set()

    def writing() -> Iterator[str]:
        threads.add(threading.get_ident())
        yield "One "
        assert written.wait(30)
        yield "two."

    async with server() as started, connect(started.address.url) as client:
        slow = asyncio.create_task(said(client, writing()))
        await turns_until(lambda: bool(threads))
        # One second client, for on one socket utterances are spoken in turn.
        async with connect(started.address.url) as other:
            assert await said(other, "Meanwhile.") == ["Meanwhile."]
        assert not slow.done()
        written.set()
        assert await slow == ["One two."]
    assert threading.get_ident() not in threads


async def test_whoever_writes_is_stopped() -> None:
    """When an utterance is left, the generator of its text is closed, so the model stops, too."""
    closed: list[str] = []
    done = threading.Event()

    async def typed() -> AsyncIterator[str]:
        with contextlib.ExitStack() as stack:
            stack.callback(closed.append, "async")
            while True:
                yield "Again and again. "

    def written() -> Iterator[str]:
        with contextlib.ExitStack() as stack:
            stack.callback(done.set)
            while True:
                yield "Again and again. "

    # The text has to wait, so it is not the generator that is waited for when it is left.
    async with server("limits.text_chars=100") as started, connect(started.address.url) as client:
        async with contextlib.aclosing(aiter(client.speak(typed(), sampling=SHORT))) as chunks:
            assert await anext(chunks)
        assert closed == ["async"]
        async with contextlib.aclosing(aiter(client.speak(written(), sampling=SHORT))) as chunks:
            assert await anext(chunks)
        await turns_until(done.is_set)


async def test_leaving_while_the_writer_sleeps() -> None:
    """A generator that is still waiting for its next word keeps nobody from leaving."""
    asleep = threading.Event()
    awake = threading.Event()

    def written() -> Iterator[str]:
        yield "One. Two"
        asleep.set()
        awake.wait(30)

    async with server() as started, connect(started.address.url) as client:
        utterance = client.speak(written())
        listening = asyncio.create_task(anext(aiter(utterance)))
        await turns_until(asleep.is_set)
        await utterance.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    awake.set()


async def test_a_writer_that_fails() -> None:
    """What the text's iterator raises is raised where the utterance is iterated."""

    def written() -> Iterator[str]:
        yield "One. "
        raise LookupError("no more")

    async with server() as started, connect(started.address.url) as client:
        with pytest.raises(LookupError, match="no more"):
            await said(client, written())
        await turns_until(lambda: started.engine.statistics().active == 0)

        async def cancelled() -> AsyncIterator[str]:
            yield "One. "
            raise asyncio.CancelledError

        with pytest.raises(ClientError, match="was cancelled"):
            await said(client, cancelled())
        assert await said(client, "Hi.") == ["Hi."]


async def test_text_that_cannot_be_encoded() -> None:
    """Half a surrogate pair, as cut JSON has it, is left out instead of failing the utterance."""
    async with server() as started, connect(started.address.url) as client:
        assert [chunk async for chunk in client.speak("Hi \ud83d there.")]
