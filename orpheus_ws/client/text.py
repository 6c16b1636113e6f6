"""What is to be spoken, as pieces that can be sent.

Rule: pieces are put together by the server as they are, so nothing is added here, and nothing lost but
what cannot be encoded. The event loop never waits for an ordinary iterator: it may be a language
model's stream, and gets a thread of its own.
"""

import asyncio
import concurrent.futures
import contextvars
import queue
import re
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Final, cast

from orpheus_ws.errors import ClientError

SpokenText = str | Iterable[str | None] | AsyncIterable[str | None]
"""Text as a whole, or in pieces as they come; None among them is passed over."""

_SENTENCE_END: Final = r"[.!?…]+[\"'”’)\]]*\s"
_PAUSES: Final = tuple(map(re.compile, (r"\n\n", _SENTENCE_END, r"\s")))
"""Where a long text is best cut, the best first."""
_NATURAL: Final = re.compile(rf"(?:\n\n|{_SENTENCE_END})\s*\Z")

_END: Final = object()
_Wanted = queue.SimpleQueue[concurrent.futures.Future[object] | None]


def check_text(text: object) -> None:
    """Raise `ClientError` for what cannot be text at all, before anybody waits for it."""
    if isinstance(text, bytes | bytearray) or not isinstance(text, Iterable | AsyncIterable):
        raise ClientError("the text must be a str, or an iterator or async iterator of them")


def is_whole(text: SpokenText) -> bool:
    """Whether the text is all there, so that it can be read again."""
    return isinstance(text, Sequence)


def ends_sentence(piece: str) -> bool:
    """Whether a pause after this piece is natural."""
    return _NATURAL.search(piece) is not None


async def pieces(text: SpokenText, size: int) -> AsyncGenerator[str, None]:
    """The text in pieces of at most `size` characters; long ones are cut at a pause if there is one.

    Closing this closes a generator that was given as text, so that what writes it stops, too.
    """
    source = _source(text)
    try:
        async for piece in source:
            if not isinstance(piece, str | None):
                raise ClientError("a piece of the text is no str")
            # Half a surrogate pair, as cut JSON has it, cannot be sent and has no sound.
            rest = "" if piece is None else piece.encode("utf-8", "ignore").decode()
            while rest:
                cut = _cut(rest, size)
                yield rest[:cut]
                rest = rest[cut:]
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


def _source(text: SpokenText) -> AsyncIterator[str | None]:
    if isinstance(text, AsyncIterable):
        return aiter(text)
    return _each([text] if isinstance(text, str) else text)


async def _each(text: Iterable[str | None]) -> AsyncGenerator[str | None, None]:
    if isinstance(text, Sequence):
        for piece in text:
            yield piece
        return
    wanted: _Wanted = queue.SimpleQueue()
    context = contextvars.copy_context()
    # A daemon: it may wait for a text that nobody wants any more when the program ends.
    threading.Thread(target=context.run, args=(_feed, iter(text), wanted), daemon=True).start()
    try:
        while True:
            answer: concurrent.futures.Future[object] = concurrent.futures.Future()
            wanted.put(answer)
            piece = await asyncio.wrap_future(answer)
            if piece is _END:
                return
            yield cast(str | None, piece)
    finally:
        wanted.put(None)


def _feed(iterator: Iterator[str | None], wanted: _Wanted) -> None:
    """Answer with the next piece each time one is wanted, until None is."""
    while (answer := wanted.get()) is not None:
        if not answer.set_running_or_notify_cancel():
            continue
        try:
            answer.set_result(next(iterator, _END))
        except BaseException as error:  # noqa: BLE001 - raised where the utterance is iterated
            answer.set_exception(error)
    if isinstance(iterator, Generator):
        iterator.close()


def _cut(text: str, size: int) -> int:
    """Where to end a piece of at most `size` characters."""
    if len(text) <= size:
        return len(text)
    for pause in _PAUSES:
        # Not too early: a book's title is not worth a piece of its own.
        ends = [match.end() for match in pause.finditer(text, size // 2, size)]
        if ends:
            return ends[-1]
    return size
