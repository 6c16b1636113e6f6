"""Something being spoken: its text on the way out, its audio on the way in.

Rule: nothing is ever spoken twice to a listener. An utterance goes again, once, on a fresh socket if
the first was lost before anything came back and its text is still whole; otherwise `Disconnected` is
the caller's to decide about. However an utterance is left, the server is told.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from orpheus_ws import messages as m
from orpheus_ws.client.connection import Connection
from orpheus_ws.client.text import SpokenText, ends_sentence, is_whole, pieces
from orpheus_ws.errors import ClientError, Disconnected

PIECE_CHARS: Final = 4096
"""A long text is sent in pieces of at most this many characters."""

LONGEST_CHAR: Final = 4
"""Bytes of a character in a message."""

FRAME_BYTES: Final = 64
"""Far above what a message of text has besides the text."""

PARTS: Final = 4
"""A long text is handed over in parts of a quarter of what may wait to be spoken. Two parts, each
longer by a piece, are within that limit, and one is minutes of speech."""


class Utterance:
    """Iterate it, once, for its audio; then `result` says how it ended.

    Iteration yields `messages.Audio` (`pcm`, `seq`, `offset`) and ends quietly when the utterance
    was cancelled. It raises `UtteranceFailed` when the server answers with an error, `Refused` or
    `Unreachable` when there is no server within the client's patience, `Disconnected` when the
    socket ends first, and whatever the text's own iterator raises. Leaving the loop early, or
    cancelling its task, cancels the utterance on the server.
    """

    def __init__(
        self, connection: Callable[[], Awaitable[Connection]], opening: m.Open, text: SpokenText
    ) -> None:
        self.context = opening.context
        self.result: m.Done | m.Cancelled | None = None
        self.warnings: list[m.Warn] = []
        self._find_connection = connection
        self._opening = opening
        self._text = text
        self._iterated = False
        self._cancelled = False
        # Of the attempt under way: where it is spoken, what came of it, room for more text.
        self._connection: Connection | None = None
        self._inbox: asyncio.Queue[m.ServerMessage | BaseException] = asyncio.Queue()
        self._room = asyncio.Semaphore()
        self._repeatable = True

    async def __aiter__(self) -> AsyncGenerator[m.Audio, None]:
        """See the class."""
        async with contextlib.aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, m.Audio):
                    yield event

    async def read(self) -> bytes:
        """Speak to the end and return all PCM. Cancelling this cancels the utterance."""
        return b"".join([chunk.pcm async for chunk in self])

    async def events(self) -> AsyncGenerator[m.ServerMessage, None]:
        """Like iterating, but yields every message of the utterance, its `done` included."""
        if self._iterated:
            raise ClientError("an utterance is spoken once; call speak again")
        self._iterated = True
        for final in (False, True):
            try:
                async with contextlib.aclosing(self._attempt()) as messages:
                    async for message in messages:
                        yield message
            except Disconnected:
                if final or not self._repeatable:
                    raise
            else:
                return

    async def cancel(self, *, played_ms: float | None = None) -> None:
        """Stop speaking (barge-in). `played_ms`, if known, is how much the listener heard.

        The loop over the utterance ends once the server has confirmed, or at once if nothing was
        sent yet; no audio comes after that. One that is cancelled before it is iterated says
        nothing; one that has ended stays as it is. A player that counts a little below zero has
        played nothing. What is no number cancels as well, without it, and then raises `ClientError`.
        """
        heard = None if played_ms is None else _milliseconds(played_ms)
        self._cancelled = True
        self._repeatable = False
        if self._connection is None:
            self._inbox.put_nowait(m.Cancelled(context=self.context, sent_ms=0.0))
        else:
            # If the socket is lost, the loop says so.
            with contextlib.suppress(ClientError):
                await self._connection.send(m.Cancel(context=self.context, played_ms=heard))
        if played_ms is not None and heard is None:
            raise ClientError("played_ms must be a number; it was cancelled without one")

    async def _attempt(self) -> AsyncGenerator[m.ServerMessage, None]:
        """Speak on one connection; yields what the server says, the terminal message included."""
        if not self._cancelled:
            self._connection, self._inbox = None, asyncio.Queue()
            self._room = asyncio.Semaphore()
        sender = asyncio.create_task(self._send())
        ended = False
        try:
            while not ended:
                message = await self._inbox.get()
                if isinstance(message, BaseException):
                    raise message
                ended = self._note(message)
                yield message
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            if self._connection is not None:
                self._connection.leave(self.context)
                if not ended:
                    with contextlib.suppress(ClientError):
                        await self._connection.send(m.Cancel(context=self.context))

    def _note(self, message: m.ServerMessage) -> bool:
        """Keep what matters of a message; true at the terminal one."""
        self._repeatable = False
        if isinstance(message, m.Warn):
            self.warnings.append(message)
        elif isinstance(message, m.Flushed):
            self._room.release()
        elif isinstance(message, m.Done | m.Cancelled):
            self.result = message
        return self.result is not None

    async def _send(self) -> None:
        """Find a connection and send the text; failures go to the inbox."""
        try:
            connection = await self._find_connection()
            if not self._cancelled:
                self._connection = connection
                connection.enter(self.context, self._inbox.put_nowait)
                await connection.send(self._opening)
                await self._send_text(connection)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._inbox.put_nowait(ClientError("what writes the text was cancelled"))
            raise
        except BaseException as error:  # noqa: BLE001 - raised where the utterance is iterated
            self._inbox.put_nowait(error)

    async def _send_text(self, connection: Connection) -> None:
        self._repeatable = self._repeatable and is_whole(self._text)
        limits = connection.ready.limits
        part = max(1, limits.text_chars // PARTS)
        fits = max(1, (limits.message_bytes - FRAME_BYTES) // LONGEST_CHAR)
        sent = 0
        parts = 0
        async with contextlib.aclosing(pieces(self._text, min(PIECE_CHARS, part, fits))) as text:
            async for piece in text:
                await connection.send(m.Text(context=self.context, text=piece))
                sent += len(piece)
                if sent >= part and ends_sentence(piece):
                    # The answer says that the part is spoken; one may wait while another is.
                    await connection.send(m.Flush(context=self.context, id=parts))
                    await self._room.acquire()
                    sent, parts = 0, parts + 1
        await connection.send(m.End(context=self.context))


def _milliseconds(played: float) -> float | None:
    """What the protocol takes for this number, of whatever library's kind; None if it is none."""
    try:
        number = float(played)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else min(max(number, 0.0), m.MAX_PLAYED_MS)
