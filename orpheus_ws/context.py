"""One utterance: its states, its text on the way to being spoken, what was delivered. Sans-I/O.

Rule: the states and what moves them are the literal table below. A context answers with messages;
it never sends. After its terminal state `audio` returns None, so no audio can follow the terminal
message whatever the caller is in the middle of.

    OPEN ──segment──► QUEUED ──turn──► SPEAKING ──dry──► STARVED
      │                                    ▲──segment───────┘
      └─ finish, cancel, fail (from any of them) ──► DONE, CANCELLED, FAILED
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, Literal, NamedTuple

from orpheus_ws import messages as m
from orpheus_ws.errors import RateLimited
from orpheus_ws.pcm import silence
from orpheus_ws.text import Segmenter, estimate_seconds, split_spoken, word_times
from orpheus_ws.trace import Trace

Reason = Literal["end", "empty", "length", "loop"]
_SEVERITY: Final[tuple[Reason, ...]] = ("end", "empty", "length", "loop")


class State(Enum):
    """Where a context stands."""

    OPEN = auto()
    QUEUED = auto()
    SPEAKING = auto()
    STARVED = auto()
    DONE = auto()
    CANCELLED = auto()
    FAILED = auto()


class Event(Enum):
    """What moves a context."""

    SEGMENT = auto()
    TURN = auto()
    DRY = auto()
    FINISH = auto()
    CANCEL = auto()
    FAIL = auto()


_ENDINGS: Final = {
    Event.FINISH: State.DONE,
    Event.CANCEL: State.CANCELLED,
    Event.FAIL: State.FAILED,
}
TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.OPEN: {Event.SEGMENT: State.QUEUED, **_ENDINGS},
    State.QUEUED: {Event.SEGMENT: State.QUEUED, Event.TURN: State.SPEAKING, **_ENDINGS},
    State.SPEAKING: {Event.SEGMENT: State.SPEAKING, Event.DRY: State.STARVED, **_ENDINGS},
    State.STARVED: {Event.SEGMENT: State.SPEAKING, **_ENDINGS},
    State.DONE: {},
    State.CANCELLED: {},
    State.FAILED: {},
}
TERMINAL: Final = frozenset(state for state, events in TRANSITIONS.items() if not events)

SILENCE_SECONDS: Final = 0.1
"""How long it is silent for a text that has no sound."""

MAX_FLUSHES: Final = 256
"""Flushes of one context that may wait to be answered; nothing grows with a slow client."""


class Silence(Enum):
    """What a turn is answered with in which nothing can be heard.

    Clients of others take a turn without audio for a failure, and repeat it.
    """

    NEVER = auto()
    """Nothing: it is `done`."""
    OF_TEXT = auto()
    """A moment of silence, if there was text. White space alone is none: it is how clients end a turn."""
    ALWAYS = auto()
    """A moment of silence."""


Moved = Callable[["Context", State | None, State], None]
"""Hears of every change of state, from old (None: it did not exist) to new. May not call back."""


class FlushMark(NamedTuple):
    """Where in the queue a `flush` is to be answered."""

    id: str | int | None


class _Spoken(NamedTuple):
    text: str
    start: int
    end: int | None  # None while it is being spoken


class Context:
    """One utterance of a socket. Times are arguments, in seconds of any one clock."""

    def __init__(
        self, context_id: str, handle: int, settings: m.Settings, moved: Moved, now: float
    ) -> None:
        self.id = context_id
        self.handle = handle
        self.settings = settings
        self.state = State.OPEN
        self.live = True
        """Whether its terminal message is still to come."""
        self.trace = Trace()
        self.trace.opened_at = now
        self.ended = False
        """No more text will come."""
        self.delivered = 0
        """Samples handed to the socket."""
        self.idle_since = now
        """When it last got text or ran dry."""
        self._moved = moved
        self._has_text = (
            False  # more than white space; that may have no sound, as an emoji has none
        )
        self._segmenter = Segmenter(settings.mode)
        self._queue: deque[str | FlushMark] = deque()
        self._queued_chars = 0
        self._taken = ""  # the segment being spoken, until its first audio
        self._flushes = 0
        self._seq = 0
        self._spoken: list[_Spoken] = []
        self._reason: Reason | None = None
        self._stall_at: float | None = None
        self._warned: set[str] = set()
        moved(self, None, State.OPEN)

    @property
    def unspoken_chars(self) -> int:
        """Characters of text that wait to be spoken."""
        return self._queued_chars + self._segmenter.pending

    # Text in -------------------------------------------------------------------------------------

    def feed(self, text: str, now: float) -> None:
        """More text arrived."""
        self._has_text = self._has_text or bool(text.strip())
        self._enqueue(self._segmenter.feed(text), now)
        self.idle_since = now
        self._stall_at = now + self.settings.max_delay_ms / 1000

    def flush(self, mark: FlushMark, now: float) -> None:
        """Everything so far is to be spoken, then `mark` answered. Raises `RateLimited`."""
        if self._flushes >= MAX_FLUSHES:
            raise RateLimited(f"at most {MAX_FLUSHES} flushes may wait; wait for `flushed`")
        self._enqueue(self._segmenter.flush(), now)
        self._queue.append(mark)
        self._flushes += 1

    def end(self, now: float) -> None:
        """No more text. Idempotent."""
        if not self.ended:
            self._enqueue(self._segmenter.flush(), now)
            self.ended = True

    def release_stalled(self, now: float) -> None:
        """Queue what may be spoken if the text has stalled for `max_delay_ms`."""
        due = self._stall_at
        if due is not None and due <= now and not self._queue:
            self._stall_at = None  # until more text comes there is nothing more to release
            self._enqueue(self._segmenter.release(), due)

    @property
    def stall_at(self) -> float | None:
        """When `release_stalled` will have something to do."""
        if self.settings.mode == "flush" or not self._segmenter.pending:
            return None
        return self._stall_at

    def _enqueue(self, segments: list[str], now: float) -> None:
        if segments:
            self._queue.extend(segments)
            self._queued_chars += sum(map(len, segments))
            if self.trace.ready_at is None:
                self.trace.ready_at = now
            self.move(Event.SEGMENT)

    # Speech out ----------------------------------------------------------------------------------

    def pop(self) -> str | FlushMark | None:
        """Take the next segment to speak or flush to answer."""
        if not self._queue:
            return None
        item = self._queue.popleft()
        if isinstance(item, str):
            self._queued_chars -= len(item)
            self.trace.chars += len(item)
            self._taken = item
        else:
            self._flushes -= 1
        return item

    @property
    def has_segment(self) -> bool:
        """Whether `pop` would give text to be spoken."""
        return bool(self._queue) and isinstance(self._queue[0], str)

    def silence(self, wanted: Silence) -> list[m.ServerMessage]:
        """A segment without a word: `SILENCE_SECONDS` of nothing, if that is wanted and nothing was heard."""
        if self.delivered or wanted is Silence.NEVER:
            return []
        if wanted is Silence.OF_TEXT and not self._has_text:
            return []
        samples = int(SILENCE_SECONDS * self.settings.sample_rate)
        pcm = silence(self.settings.encoding, samples)
        segment, audio = self.segment(""), self.audio(pcm, samples)
        assert audio is not None
        return [segment, audio, *self.end_segment("", "empty")]

    def begin(self, now: float) -> m.Started | None:
        """A segment is about to be spoken; `started` when it is the context's first."""
        if self.state is not State.QUEUED:
            return None
        self.move(Event.TURN)
        self.trace.turn_at = now
        queued = self.trace.since_ready(now) or 0.0
        return m.Started(context=self.id, handle=self.handle, queue_ms=round(queued * 1000, 3))

    def segment(self, text: str) -> m.Segment:
        """The first audio of `text` is about to be sent."""
        self._spoken.append(_Spoken(text, self.delivered, None))
        self._taken = ""
        return m.Segment(
            context=self.id, index=len(self._spoken) - 1, text=text, offset=self.delivered
        )

    def audio(self, pcm: bytes, samples: int) -> m.Audio | None:
        """The message for the next `samples` samples, or None when the context has ended."""
        if not self.live:
            return None
        message = m.Audio(
            context=self.id, handle=self.handle, seq=self._seq, offset=self.delivered, pcm=pcm
        )
        self._seq += 1
        self.delivered += samples
        return message

    def end_segment(self, text: str, reason: Reason) -> list[m.ServerMessage]:
        """`text` was spoken, or stopped early for `reason`."""
        if self._reason is None or _SEVERITY.index(reason) > _SEVERITY.index(self._reason):
            self._reason = reason
        replies: list[m.ServerMessage] = []
        if reason in ("length", "loop"):
            what = "max_tokens was reached" if reason == "length" else "the speech repeated itself"
            message = f"a segment was stopped early because {what}"
            replies.append(m.Warn(context=self.id, code=f"segment_{reason}", message=message))
        if self._spoken and self._spoken[-1].end is None:
            start = self._spoken[-1].start
            self._spoken[-1] = _Spoken(text, start, self.delivered)
            if self.settings.words:
                replies.append(self._words(text, start))
        return replies

    def _words(self, text: str, start: int) -> m.Words:
        times = word_times(text, self.ms(start), self.ms(self.delivered))
        words = tuple(
            m.Word(text=word, start_ms=round(begin, 1), end_ms=round(end, 1))
            for word, begin, end in times
        )
        return m.Words(context=self.id, words=words)

    # Endings -------------------------------------------------------------------------------------

    def move(self, event: Event) -> None:
        """Change state as the table says. An event the table does not know is a bug: KeyError."""
        old, new = self.state, TRANSITIONS[self.state][event]
        if new is old:
            return
        self.state = new
        self.live = new not in TERMINAL
        self._moved(self, old, new)

    def done(self) -> m.Done:
        """The terminal message of a context that was spoken to its end."""
        to_first_audio = self.trace.time_to_first_audio
        factor = self.trace.real_time_factor
        return m.Done(
            context=self.id,
            reason=self._reason or "empty",
            audio_ms=self.ms(self.delivered),
            chars=self.trace.chars,
            ttfa_ms=None if to_first_audio is None else round(to_first_audio * 1000, 3),
            rtf=None if factor is None else round(factor, 2),
            trace=self._times(),
        )

    def cancelled(self, played_ms: float | None) -> m.Cancelled:
        """The terminal message of a cancelled context; with texts if it is known what was heard."""
        spoken, remaining = (None, None) if played_ms is None else self._heard(played_ms)
        return m.Cancelled(
            context=self.id,
            sent_ms=self.ms(self.delivered),
            text_spoken=spoken,
            text_remaining=remaining,
            trace=self._times(),
        )

    def _times(self) -> m.Times | None:
        """When it got where, for a client that asked for it."""
        trace = self.trace
        if not self.settings.trace or trace.opened_at is None:
            return None
        moments = {
            "ready_ms": trace.ready_at,
            "turn_ms": trace.turn_at,
            "first_token_ms": trace.first_token_at,
            "first_frame_ms": trace.first_frame_at,
            "first_samples_ms": trace.first_samples_at,
            "first_chunk_ms": trace.first_byte_at,
            "first_audio_ms": trace.first_audio_at,
        }
        since = trace.opened_at
        return m.Times(
            **{
                name: round((moment - since) * 1000, 3)
                for name, moment in moments.items()
                if moment is not None
            }
        )

    def warn_once(self, code: str, message: str) -> list[m.ServerMessage]:
        """A warning, the first time `code` comes up in this context."""
        if code in self._warned:
            return []
        self._warned.add(code)
        return [m.Warn(context=self.id, code=code, message=message)]

    def warned_of(self, code: str) -> bool:
        """Whether `warn_once` has warned of it."""
        return code in self._warned

    def tag_warning(self) -> list[m.ServerMessage]:
        """A warning, the first time a tag had to be removed."""
        if not self._segmenter.unknown_tags:
            return []
        return self.warn_once("unknown_tag", "a tag that the voice does not know was removed")

    def _heard(self, played_ms: float) -> tuple[str, str]:
        """Split the text at what the listener heard."""
        rate = self.settings.sample_rate
        played = min(played_ms / 1000 * rate, self.delivered)
        spoken: list[str] = []
        remaining: list[str] = []
        for text, start, end in self._spoken:
            length = (
                max(self.delivered - start, int(estimate_seconds(text) * rate))
                if end is None
                else end - start
            )
            fraction = (played - start) / length if length > 0 else 0.0
            heard, rest = split_spoken(text, min(1.0, max(0.0, fraction)))
            spoken.append(heard)
            remaining.append(rest)
        remaining.append(self._taken)
        remaining += [item for item in self._queue if isinstance(item, str)]
        remaining.append(self._segmenter.held.strip())
        return " ".join(filter(None, spoken)), " ".join(filter(None, remaining))

    def ms(self, samples: int) -> float:
        """Samples at the negotiated rate as milliseconds."""
        return round(samples * 1000 / self.settings.sample_rate, 3)

    def summary(self) -> dict[str, object]:
        """What may be logged of it: figures, never its text or what the client called it."""
        trace = self.trace
        return {
            "outcome": trace.outcome,
            "error": trace.error,
            "handle": self.handle,
            "segments": trace.segments,
            "chars": trace.chars,
            "frames": trace.frames,
            "sent_ms": round(self.ms(self.delivered)),
            "ttfb_ms": _rounded_ms(trace.since_ready(trace.first_byte_at)),
            "ttfa_ms": _rounded_ms(trace.time_to_first_audio),
            "rtf": None if trace.real_time_factor is None else round(trace.real_time_factor, 2),
            "trimmed_ms": round(trace.trimmed_seconds * 1000),
            "tokens": trace.tokens,
            "invalid_tokens": trace.invalid_tokens,
            "dropped_tokens": trace.dropped_tokens,
            "traceparent": self.settings.traceparent,
            "trace_id": trace.trace_id,
        }


def _rounded_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
