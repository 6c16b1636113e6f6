"""One socket: which messages are legal when, and what comes next. Sans-I/O.

Rule: everything that decides the order of messages lives here and in `context.py`. Two callers drive
a session on one thread: a reader passes what arrives to `receive`, a speaker asks `next` what to do
and reports to the context what it did. Time is an argument. Contexts are spoken one at a time, in
the order they were opened. A cancelled context has its terminal message at once.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from orpheus_ws import messages as m
from orpheus_ws.context import Context, Event, FlushMark, Moved, Silence, State
from orpheus_ws.errors import BadMessage, ContextLimit, OrpheusError, TextTooLong, UnknownVoice
from orpheus_ws.pcm import check_format

REMEMBERED_CONTEXTS: Final = 1024
"""Ids of ended contexts kept, so that late messages for them are told from new ones."""

_UNFIT_CODE: Final = "bad_message"
_CLOSED_CODE: Final = "closed_context"
_CLOSED: Final = "the context takes no more text; `open` it again to use its id"


class Speak(NamedTuple):
    """Send `replies`, then speak `text` for `context`."""

    context: Context
    text: str
    replies: tuple[m.ServerMessage, ...]


class AwaitTurn(NamedTuple):
    """Wait until `context`, which has something to say, may speak, or until something is received."""

    context: Context


class Say(NamedTuple):
    """Send `replies` and ask again."""

    replies: tuple[m.ServerMessage, ...]


class Wait(NamedTuple):
    """Nothing to do until something is received, or until this time."""

    until: float | None


class Goodbye(NamedTuple):
    """Everything asked for was spoken and the client asked to close."""


Action = Speak | AwaitTurn | Say | Wait | Goodbye


class Allowance(Protocol):
    """What the socket shares with others of its kind."""

    def open(self) -> None:
        """Count one more open context. Raises `ContextLimit` when there may be none."""
        ...

    def close(self) -> None:
        """One of those has ended."""
        ...

    def take(self, chars: int, now: float) -> None:
        """Count so many characters of text. Raises `RateLimited`, or `TextTooLong` if it is for good."""
        ...


class _Unlimited:
    """For a socket that shares nothing."""

    def open(self) -> None:
        """See `Allowance`."""

    def close(self) -> None:
        """See `Allowance`."""

    def take(self, chars: int, now: float) -> None:
        """See `Allowance`."""


def _unheard(_context: Context, _old: State | None, _new: State) -> None:
    """Nobody wants to know."""


def _anybody(_context: Context) -> bool:
    """There is room for everybody."""
    return True


class Session:
    """The contexts of one socket. `new_seed` draws a seed for a context that names none.

    `allowance` is asked for every context and every text; `silence` says what a context is answered with
    in which nothing can be heard.
    """

    def __init__(
        self,
        *,
        voices: tuple[str, ...],
        limits: m.Limits,
        context_idle_seconds: float,
        new_seed: Callable[[], int],
        moved: Moved = _unheard,
        allowance: Allowance | None = None,
        silence: Silence = Silence.NEVER,
    ) -> None:
        self._voices = voices
        self._limits = limits
        self._context_idle_seconds = context_idle_seconds
        self._new_seed = new_seed
        self._moved = moved
        self._allowance = allowance or _Unlimited()
        self._silence = silence
        self._defaults = m.Settings(voice=voices[0])
        self._live: OrderedDict[str, Context] = OrderedDict()
        self._ended: OrderedDict[str, bool] = OrderedDict()  # id → already warned
        self._closing = False
        self._handle = 0

    @property
    def contexts(self) -> tuple[Context, ...]:
        """Live contexts in the order they are spoken."""
        return tuple(self._live.values())

    # The reader's side ---------------------------------------------------------------------------

    def receive(self, message: m.ClientMessage, now: float) -> list[m.ServerMessage]:
        """Take one message and return what to answer at once. Never raises for the peer's faults.

        After `close` only `cancel` and `ping` mean anything.
        """
        if self._closing and not isinstance(message, m.Cancel | m.Ping):
            return []
        match message:
            case m.Config():
                return self._configure(message)
            case m.Open():
                return self._open_explicitly(message, now)
            case m.Text():
                return self._text(message, now)
            case m.Flush():
                return self._flush(message, now)
            case m.End():
                return self._end(message.context, now)
            case m.Cancel():
                return self._cancel(message)
            case m.Ping():
                return [m.Pong(id=message.id)]
            case m.Close():
                self._closing = True
                return [reply for context in self.contexts for reply in self._end(context.id, now)]

    def refuse(self, error: BadMessage) -> list[m.ServerMessage]:
        """Answer a message that does not fit.

        An `open` that does not fit opens nothing. A `cancel` cancels all the same, and only says
        nothing of what was heard: whoever interrupts must not be talked over.
        """
        context = error.context
        if context is not None and error.cancels:
            named = None if context == m.ALL_CONTEXTS else context
            warning = m.Warn(context=named, code=_UNFIT_CODE, message=str(error))
            return [warning, *self._cancel(m.Cancel(context=context))]
        if context is None or context in self._live or context == m.ALL_CONTEXTS:
            return [error_message(error, context=None)]
        self._remember(context)
        return [error_message(error, context=context)]

    def _configure(self, message: m.Config) -> list[m.ServerMessage]:
        try:
            self._defaults = self._checked(self._defaults.updated(message))
        except OrpheusError as error:
            return [error_message(error, context=None)]
        return []

    def _open_explicitly(self, message: m.Open, now: float) -> list[m.ServerMessage]:
        if message.context in self._live:
            advice = "the context is open; cancel or end it before opening it again"
            return [m.Warn(context=message.context, code="already_open", message=advice)]
        opened = self._open(message.context, self._defaults.updated(message), now)
        return [opened] if isinstance(opened, m.Error) else []

    def _open(self, context_id: str, settings: m.Settings, now: float) -> Context | m.Error:
        try:
            if context_id == m.ALL_CONTEXTS:
                raise BadMessage(f"{m.ALL_CONTEXTS!r} means all contexts and cannot name one")
            if len(self._live) >= self._limits.contexts:
                raise ContextLimit(
                    f"at most {self._limits.contexts} contexts at once; end or cancel one first"
                )
            settings = self._checked(settings)
            self._allowance.open()
        except OrpheusError as error:
            self._remember(context_id)
            return error_message(error, context=context_id)
        if settings.seed is None:
            seed = m.Sampling(seed=self._new_seed())
            settings = settings.updated(m.Config(sampling=seed))
        self._ended.pop(context_id, None)
        context = Context(context_id, self._next_handle(), settings, self._moved, now)
        self._live[context_id] = context
        return context

    def _checked(self, settings: m.Settings) -> m.Settings:
        if settings.voice not in self._voices:
            raise UnknownVoice(f"use one of the voices: {', '.join(self._voices)}")
        check_format(settings.encoding, settings.sample_rate)
        return settings

    def _text(self, message: m.Text, now: float) -> list[m.ServerMessage]:
        context = self._live.get(message.context)
        if context is None:
            if message.context in self._ended:
                return self._late(message.context)
            opened = self._open(message.context, self._defaults, now)
            if isinstance(opened, m.Error):
                return [opened]
            context = opened
        if context.ended:
            return context.warn_once(_CLOSED_CODE, _CLOSED)
        if context.unspoken_chars + len(message.text) > self._limits.text_chars:
            limit = f"at most {self._limits.text_chars} characters may wait to be spoken"
            return [self.fail(context, TextTooLong(f"{limit}; send text as it is spoken"))]
        try:
            self._allowance.take(len(message.text), now)
        except OrpheusError as error:
            return [self.fail(context, error)]
        context.feed(message.text, now)
        return context.tag_warning()

    def _flush(self, message: m.Flush, now: float) -> list[m.ServerMessage]:
        context = self._live.get(message.context)
        if context is None:
            if message.context in self._ended:
                return self._late(message.context)
            return [m.Flushed(context=message.context, id=message.id)]
        if context.ended:
            return context.warn_once(_CLOSED_CODE, _CLOSED)
        try:
            context.flush(FlushMark(message.id), now)
        except OrpheusError as error:
            return [self.fail(context, error)]
        return context.tag_warning()

    def _end(self, context_id: str, now: float) -> list[m.ServerMessage]:
        context = self._live.get(context_id)
        if context is None:
            if context_id in self._ended:
                return self._late(context_id)
            # An utterance without any text is still answered.
            opened = self._open(context_id, self._defaults, now)
            if isinstance(opened, m.Error):
                return [opened]
            context = opened
        context.end(now)
        return context.tag_warning()

    def _cancel(self, message: m.Cancel) -> list[m.ServerMessage]:
        everything = message.context == m.ALL_CONTEXTS
        replies: list[m.ServerMessage] = []
        for context in self.contexts:
            if everything or context.id == message.context:
                replies.append(context.cancelled(message.played_ms))
                self._finish(context, Event.CANCEL)
        return replies

    def _late(self, context_id: str) -> list[m.ServerMessage]:
        if self._ended[context_id]:
            return []
        self._ended[context_id] = True
        return [m.Warn(context=context_id, code=_CLOSED_CODE, message=_CLOSED)]

    # The speaker's side --------------------------------------------------------------------------

    def next(self, now: float, may_speak: Callable[[Context], bool] = _anybody) -> Action:
        """What to do now. Ask again after doing it, and after every `receive`.

        `may_speak` is asked about a context that has a segment; one that may not keeps its text.
        """
        context = next(iter(self._live.values()), None)
        if context is None:
            return Goodbye() if self._closing else Wait(None)
        context.release_stalled(now)
        if context.has_segment and not may_speak(context):
            return AwaitTurn(context)
        item = context.pop()
        if isinstance(item, FlushMark):
            return Say((m.Flushed(context=context.id, id=item.id),))
        if item is not None:
            started = context.begin(now)
            return Speak(context, item, () if started is None else (started,))
        if context.ended:
            silence = context.silence(self._silence)
            self._finish(context, Event.FINISH)
            return Say((*silence, context.done()))
        if context.state is State.SPEAKING:
            context.move(Event.DRY)
            context.idle_since = now
        return self._wait(context, now)

    def _wait(self, context: Context, now: float) -> Action:
        deadlines = [] if context.stall_at is None else [context.stall_at]
        if len(self._live) > 1:
            idle_at = context.idle_since + self._context_idle_seconds
            if idle_at <= now:
                context.end(now)
                advice = "the context had no text for too long while another waited; it was ended"
                return Say(tuple(context.warn_once("context_idle", advice)))
            deadlines.append(idle_at)
        return Wait(min(deadlines, default=None))

    def fail(self, context: Context, error: OrpheusError) -> m.Error:
        """End a live context with an error."""
        context.trace.error = error.code
        self._finish(context, Event.FAIL)
        return error_message(error, context=context.id)

    def abandon(self) -> None:
        """The socket is gone: cancel what is live. Nobody hears of anything after that. Idempotent."""
        for context in self.contexts:
            self._finish(context, Event.CANCEL)
        self._moved = _unheard  # whoever listens has this session

    # Inside --------------------------------------------------------------------------------------

    def _finish(self, context: Context, event: Event) -> None:
        context.move(event)
        del self._live[context.id]
        self._allowance.close()
        self._remember(context.id, warned=context.warned_of(_CLOSED_CODE))

    def _remember(self, context_id: str, *, warned: bool = False) -> None:
        self._ended.pop(context_id, None)
        self._ended[context_id] = warned
        if len(self._ended) > REMEMBERED_CONTEXTS:
            self._ended.popitem(last=False)

    def _next_handle(self) -> int:
        taken = {context.handle for context in self._live.values()}
        while True:
            self._handle = (self._handle + 1) % 65_536
            if self._handle not in taken:
                return self._handle


def error_message(error: OrpheusError, *, context: str | None) -> m.Error:
    """The wire form of an error; without a context, fatal when it closes the socket."""
    return m.Error(
        context=context,
        code=error.code,
        message=str(error),
        retryable=error.retryable,
        retry_after_ms=error.retry_after_ms,
        fatal=context is None and error.close_code is not None,
    )
