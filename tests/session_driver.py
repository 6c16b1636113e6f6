"""A session driven by hand, for tests of sessions.

Rule: `Driver` plays the reader and the speaker of `server/connection.py`: no socket, no clock, no
engine. A segment is a few audio messages, and anything may be received between two of them.
"""

import itertools
from collections.abc import Iterator

from orpheus_ws import messages as m
from orpheus_ws.context import Context, Reason, Silence, State
from orpheus_ws.errors import OrpheusError
from orpheus_ws.session import (
    Action,
    Goodbye,
    Say,
    Session,
    Speak,
    Wait,
)

RATE = 24_000
CHUNK = 2400
"""Samples of one audio message: 100 ms."""
IDLE_SECONDS = 30.0

Move = tuple[Context, State | None, State]


class Driver:
    """Both sides of one socket's session. `sent` is what the peer has got, in order."""

    def __init__(
        self,
        *,
        contexts: int = 4,
        text_chars: int = 400,
        chunks: int = 3,
        silence: Silence = Silence.NEVER,
    ) -> None:
        self.now = 100.0
        self.sent: list[m.ServerMessage] = []
        self.moves: list[Move] = []
        self.chunks = chunks
        self.reasons: dict[str, Reason] = {}
        """How segments end, by their text; `end` when not named."""
        self.speaking: Context | None = None
        self._speech: Iterator[None] = iter(())
        seeds = itertools.count(1000)
        self.session = Session(
            voices=("tara", "leo"),
            limits=m.Limits(
                contexts=contexts,
                text_chars=text_chars,
                message_bytes=65_536,
                messages_per_second=500,
                idle_seconds=900,
                session_seconds=86_400,
            ),
            context_idle_seconds=IDLE_SECONDS,
            new_seed=lambda: next(seeds),
            moved=lambda context, old, new: self.moves.append((context, old, new)),
            silence=silence,
        )

    def receive(self, *messages: m.ClientMessage) -> list[m.ServerMessage]:
        """What the reader does: return what is answered at once."""
        replies = [reply for one in messages for reply in self.session.receive(one, self.now)]
        self.sent += replies
        return replies

    def step(self) -> Action | None:
        """One move of the speaker: go on with a segment (None), or ask the session and obey."""
        if self.speaking is not None:
            if next(self._speech, self) is self:
                self.speaking = None
            return None
        action = self.session.next(self.now)
        if isinstance(action, Say | Speak):
            self.sent += action.replies
        if isinstance(action, Speak):
            self.speaking, self._speech = action.context, self._utter(action.context, action.text)
            next(self._speech)
        return action

    def run(self) -> Action:
        """Speak until there is nothing to do now."""
        for _ in range(10_000):
            if isinstance(action := self.step(), Wait | Goodbye):
                return action
        raise AssertionError("the session never comes to rest")

    def settle(self) -> Action:
        """Speak, letting time pass, until nothing more will happen by itself."""
        while isinstance(action := self.run(), Wait) and action.until is not None:
            assert action.until > self.now
            self.now = action.until
        return action

    def fail(self, error: OrpheusError) -> None:
        """What the speaker does when synthesis raises in the middle of a segment."""
        assert self.speaking is not None
        self.sent.append(self.session.fail(self.speaking, error))

    def context(self, context_id: str) -> Context:
        """The live context of that id."""
        (found,) = (one for one in self.session.contexts if one.id == context_id)
        return found

    def transcript(self) -> list[str]:
        """`type context` of all that was sent; audio messages in a row are one."""
        names = (
            f"{type(message).__name__.lower()} {getattr(message, 'context', '')}".strip()
            for message in self.sent
        )
        return [name for name, _ in itertools.groupby(names)]

    def _utter(self, context: Context, text: str) -> Iterator[None]:
        for index in range(self.chunks):
            yield  # engine and codec work; the reader may receive
            if not context.live:
                return
            if index == 0:
                self.sent.append(context.segment(text))
            audio = context.audio(bytes(2 * CHUNK), CHUNK)
            assert audio is not None
            self.sent.append(audio)
        yield
        if context.live:
            self.sent += context.end_segment(text, self.reasons.get(text, "end"))


def say(context_id: str, text: str) -> tuple[m.Text, m.End]:
    """A whole utterance in one message."""
    return m.Text(context=context_id, text=text), m.End(context=context_id)


def only(driver: Driver, kind: type[m.Done]) -> m.Done:
    """The one `done` that was sent."""
    (found,) = (message for message in driver.sent if isinstance(message, kind))
    return found


def codes(replies: list[m.ServerMessage]) -> list[tuple[str, str | None]]:
    """Code and context of warnings and errors, of which there must be nothing else."""
    assert all(isinstance(reply, m.Warn | m.Error) for reply in replies)
    return [(one.code, one.context) for one in replies if isinstance(one, m.Warn | m.Error)]


def warned(context_id: str) -> list[tuple[str, str | None]]:
    """`codes` of the answer to the first message for a closed context."""
    return [("closed_context", context_id)]


def segments(driver: Driver) -> list[str]:
    """Texts of the segments that were spoken."""
    return [message.text for message in driver.sent if isinstance(message, m.Segment)]
