"""Session: one terminal message per context, contexts in order, nothing after the end.

`Driver` plays the reader and the speaker of `server/connection.py` by hand: no socket, no clock, no
engine. A segment is a few audio messages, and anything may be received between two of them.
"""

import itertools
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from orpheus_ws import messages as m
from orpheus_ws.context import TERMINAL, TRANSITIONS, Context, Reason, State
from orpheus_ws.errors import BadMessage, EngineFailed, MessageTooBig, OrpheusError, SlowConsumer
from orpheus_ws.session import (
    REMEMBERED_CONTEXTS,
    Action,
    Goodbye,
    Say,
    Session,
    Speak,
    Wait,
    error_message,
)

RATE = 24_000
CHUNK = 2400
"""Samples of one audio message: 100 ms."""
IDLE_SECONDS = 30.0

Move = tuple[Context, State | None, State]


class Driver:
    """Both sides of one socket's session. `sent` is what the peer has got, in order."""

    def __init__(self, *, contexts: int = 4, text_chars: int = 400, chunks: int = 3) -> None:
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
                idle_seconds=900,
                session_seconds=86_400,
            ),
            context_idle_seconds=IDLE_SECONDS,
            new_seed=lambda: next(seeds),
            moved=lambda context, old, new: self.moves.append((context, old, new)),
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


# One utterance ------------------------------------------------------------------------------------


def test_life_of_an_utterance() -> None:
    """Text and `end` give started, segment, contiguous audio and one `done` that adds up."""
    driver = Driver()
    driver.receive(*say("a", "Hello there."))
    assert driver.run() == Wait(None)
    assert driver.transcript() == ["started a", "segment a", "audio a", "done a"]
    audio = [message for message in driver.sent if isinstance(message, m.Audio)]
    assert [message.seq for message in audio] == [0, 1, 2]
    assert [message.offset for message in audio] == [0, CHUNK, 2 * CHUNK]
    done = only(driver, m.Done)
    assert (done.reason, done.audio_ms, done.chars) == ("end", 300.0, len("Hello there."))
    assert driver.session.contexts == ()


def test_segments_share_one_count_of_samples() -> None:
    """Sequence numbers and offsets go on from one segment to the next; indices count segments."""
    driver = Driver()
    driver.receive(*say("a", "This is one. This is two."))
    driver.run()
    found = [message for message in driver.sent if isinstance(message, m.Segment)]
    assert [(one.index, one.text, one.offset) for one in found] == [
        (0, "This is one.", 0),
        (1, "This is two.", 3 * CHUNK),
    ]
    assert [one.seq for one in driver.sent if isinstance(one, m.Audio)] == [0, 1, 2, 3, 4, 5]


def test_started_tells_the_wait() -> None:
    """`queue_ms` is the time from the message that completed the first segment to its turn."""
    driver = Driver()
    driver.receive(m.Open(context="a"))
    driver.now += 5
    driver.receive(*say("a", "Hello there."))
    driver.now += 0.25
    driver.run()
    (started,) = (message for message in driver.sent if isinstance(message, m.Started))
    assert started.queue_ms == pytest.approx(250.0)


def test_done_tells_what_the_trace_knows() -> None:
    """`ttfa_ms` and `rtf` come from the trace, and are absent while it knows nothing."""
    driver = Driver()
    driver.receive(*say("a", "Hello there."))
    driver.step()
    trace = driver.context("a").trace
    trace.first_audio_at, trace.audio_seconds, trace.wall_seconds = driver.now + 0.125, 3.0, 2.0
    driver.run()
    done = only(driver, m.Done)
    assert (done.ttfa_ms, done.rtf) == (125.0, 1.5)
    other = Driver()
    other.receive(m.End(context="a"))
    other.run()
    assert (only(other, m.Done).ttfa_ms, only(other, m.Done).rtf) == (None, None)


@pytest.mark.parametrize("text", [None, "", "   \n\t ", "!!! ... ???", "🎉🎉"])
def test_nothing_to_say(text: str | None) -> None:
    """blank, only-punctuation, no text: `done` with reason empty, no audio, no `started`."""
    driver = Driver()
    if text is not None:
        driver.receive(m.Text(context="a", text=text))
    driver.receive(m.End(context="a"))
    assert driver.run() == Wait(None)
    assert driver.sent == [m.Done(context="a", reason="empty", audio_ms=0, chars=0)]


@pytest.mark.parametrize(
    ("reasons", "worst"),
    [
        (("end", "end"), "end"),
        (("length", "end"), "length"),
        (("end", "loop"), "loop"),
        (("loop", "length"), "loop"),
        (("length", "loop"), "loop"),
        (("end", "length"), "length"),
    ],
)
def test_done_has_the_worst_reason(reasons: tuple[Reason, Reason], worst: Reason) -> None:
    """never-stops, loop-then-more: each early stop is warned of, the next segment is spoken."""
    driver = Driver()
    driver.reasons = dict(zip(("This is one.", "This is two."), reasons, strict=True))
    driver.receive(*say("a", "This is one. This is two."))
    driver.run()
    assert only(driver, m.Done).reason == worst
    assert segments(driver) == ["This is one.", "This is two."]
    warnings = [message.code for message in driver.sent if isinstance(message, m.Warn)]
    assert warnings == [f"segment_{reason}" for reason in reasons if reason != "end"]


def test_unknown_tags_are_warned_of_once() -> None:
    """unknown-tag: tags that are removed give one warning per context."""
    driver = Driver()
    assert codes(driver.receive(m.Text(context="a", text="Hello <b>there</b>. "))) == [
        ("unknown_tag", "a")
    ]
    assert driver.receive(*say("a", "More <i>tags</i>.")) == []


def test_tag_that_only_the_end_decides() -> None:
    """A tag removed by `end` or `flush` alone is not missed: what is still open is no tag."""
    driver = Driver()
    assert driver.receive(m.Text(context="a", text="Hello <b"), m.Flush(context="a", id=1)) == []
    driver.run()
    assert segments(driver) == ["Hello b"]


# Opening ------------------------------------------------------------------------------------------


def test_contexts_are_spoken_in_the_order_opened() -> None:
    """The order of `open` counts, not that of texts or ends, and one context is finished first."""
    driver = Driver()
    driver.receive(m.Open(context="b"), *say("a", "Hello from a."))
    assert isinstance(driver.run(), Wait)
    assert driver.sent == []
    driver.receive(*say("b", "Hello from b."))
    driver.run()
    assert driver.transcript() == [
        "started b", "segment b", "audio b", "done b",
        "started a", "segment a", "audio a", "done a",
    ]  # fmt: skip


def test_config_is_sticky() -> None:
    """`config` sets the defaults of contexts opened after it, `open` overrides what it names."""
    driver = Driver(contexts=9)
    driver.receive(m.Text(context="before", text="x"))
    driver.receive(
        m.Config(voice="leo", sampling=m.Sampling(temperature=0.9, top_p=0.5), lead_ms=300),
        m.Config(segment=m.Segmentation(mode="clause"), words=True),
        m.Text(context="implicit", text="x"),
        m.Open(context="explicit", voice="tara", sampling=m.Sampling(top_p=0.6)),
        m.Text(context="after", text="x"),
    )
    found = {context.id: context.settings for context in driver.session.contexts}
    assert (found["before"].voice, found["before"].temperature) == ("tara", 0.6)
    for context_id in ("implicit", "after"):
        spoken = found[context_id]
        assert (spoken.voice, spoken.temperature, spoken.top_p) == ("leo", 0.9, 0.5)
        assert (spoken.mode, spoken.words, spoken.lead_ms) == ("clause", True, 300)
    spoken = found["explicit"]
    assert (spoken.voice, spoken.temperature, spoken.top_p) == ("tara", 0.9, 0.6)
    assert (spoken.mode, spoken.words, spoken.lead_ms) == ("clause", True, 300)


WRONG = pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"voice": "nobody"}, "unknown_voice"),
        ({"encoding": "mp3"}, "unsupported_format"),
        ({"sample_rate": 44_100}, "unsupported_format"),
        ({"sample_rate": 0}, "unsupported_format"),
    ],
)


@WRONG
def test_config_that_cannot_be(wrong: dict[str, Any], code: str) -> None:
    """A `config` with an unknown value changes nothing and costs neither socket nor contexts."""
    driver = Driver()
    (error,) = driver.receive(m.Config(**wrong, lead_ms=300))
    assert isinstance(error, m.Error)
    assert (error.code, error.context, error.retryable, error.fatal) == (code, None, False, False)
    driver.receive(*say("a", "Hello there."))
    assert driver.context("a").settings.lead_ms == 2000
    driver.run()
    assert driver.transcript()[-1] == "done a"


@WRONG
def test_open_that_cannot_be(wrong: dict[str, Any], code: str) -> None:
    """A refused `open` is terminal for its id; a later correct one makes it usable."""
    driver = Driver()
    (error,) = driver.receive(m.Open(context="a", **wrong))
    assert isinstance(error, m.Error)
    assert (error.code, error.context, error.retryable, error.fatal) == (code, "a", False, False)
    assert codes(driver.receive(*say("a", "Hello there."))) == warned("a")
    assert driver.run() == Wait(None)
    driver.receive(m.Open(context="a"), *say("a", "Hello there."))
    driver.run()
    assert driver.transcript()[-1] == "done a"


def test_star_names_no_context() -> None:
    """`*` means all contexts, so no context can be called that."""
    for message in (m.Open(context="*"), m.Text(context="*", text="x"), m.End(context="*")):
        driver = Driver()
        assert codes(driver.receive(message)) == [("bad_message", "*")]
        assert driver.session.contexts == ()


def test_already_open() -> None:
    """`open` for an open context is warned of and changes nothing, also after its `end`."""
    driver = Driver()
    driver.receive(m.Open(context="a", lead_ms=300))
    assert codes(driver.receive(m.Open(context="a", lead_ms=900))) == [("already_open", "a")]
    driver.receive(*say("a", "Hello there."))
    assert codes(driver.receive(m.Open(context="a", voice="nobody"))) == [("already_open", "a")]
    assert driver.context("a").settings.lead_ms == 300
    driver.run()
    assert only(driver, m.Done).chars == len("Hello there.")


def test_context_limit() -> None:
    """The limit is reached without an error, one more is refused, and one that ends makes room."""
    driver = Driver(contexts=3)
    assert driver.receive(*(m.Open(context=one) for one in "abc")) == []
    (error,) = driver.receive(m.Open(context="d"))
    assert isinstance(error, m.Error)
    assert (error.code, error.context, error.retryable) == ("context_limit", "d", True)
    assert codes(driver.receive(m.Text(context="e", text="x"))) == [("context_limit", "e")]
    assert codes(driver.receive(m.End(context="f"))) == [("context_limit", "f")]
    assert [context.id for context in driver.session.contexts] == ["a", "b", "c"]
    driver.receive(m.Cancel(context="b"))
    assert driver.receive(m.Open(context="d")) == []
    assert [context.id for context in driver.session.contexts] == ["a", "c", "d"]


def test_seeds() -> None:
    """A seed is fixed for the whole context: the client's, or one drawn when it names none."""
    driver = Driver(contexts=9)
    driver.receive(m.Open(context="a"), m.Open(context="b", sampling=m.Sampling(seed=0)))
    driver.receive(m.Text(context="c", text="x"), m.Config(sampling=m.Sampling(seed=7)))
    driver.receive(m.Text(context="d", text="x"), m.Text(context="e", text="x"))
    found = {context.id: context.settings.seed for context in driver.session.contexts}
    assert found == {"a": 1000, "b": 0, "c": 1001, "d": 7, "e": 7}
    context = driver.context("c")
    driver.receive(*say("c", " One. Two."))
    driver.settle()
    assert context.settings.seed == 1001


def test_handles() -> None:
    """After 70000 contexts handles are still 16 bits wide and differ from those in use."""
    driver = Driver()
    driver.receive(m.Open(context="first"))
    kept = {driver.context("first").handle}
    seen: Counter[int] = Counter()
    for index in range(70_000):
        context_id = f"c{index}"
        driver.session.receive(m.Open(context=context_id), driver.now)
        handle = driver.session.contexts[-1].handle
        assert 0 <= handle < 2**16
        assert handle not in kept
        seen[handle] += 1
        if index == 10_000:
            kept.add(handle)  # another that stays
        else:
            driver.session.receive(m.Cancel(context=context_id), driver.now)
    assert max(seen.values()) == 2


# Endings ------------------------------------------------------------------------------------------


def ended(driver: Driver, how: str) -> None:
    """End the context `a` in one of the ways there are."""
    driver.receive(m.Text(context="a", text="Hello there. And on it goes."))
    driver.step()
    driver.step()
    if how == "done":
        driver.receive(m.End(context="a"))
        driver.run()
    elif how == "cancelled":
        driver.receive(m.Cancel(context="a"))
    else:
        driver.fail(EngineFailed("the engine failed; try again"))
    driver.run()
    assert driver.transcript()[-1] == f"{how} a"
    driver.sent.clear()


ENDINGS = pytest.mark.parametrize("how", ["done", "cancelled", "error"])


@ENDINGS
def test_ghost_context(how: str) -> None:
    """ghost-context: late messages get one warning, and nothing is spoken until an `open`."""
    driver = Driver()
    ended(driver, how)
    late: list[m.ClientMessage] = [
        m.Text(context="a", text="Too late."),
        m.Flush(context="a", id=1),
        m.End(context="a"),
    ]
    assert codes(driver.receive(*late, *late)) == warned("a")
    assert driver.run() == Wait(None)
    assert driver.transcript() == ["warn a"]


@pytest.mark.parametrize("late", [m.Text(context="a", text="x"), m.Flush(context="a")])
def test_closed_context_is_warned_of_once_whatever_came_first(late: m.ClientMessage) -> None:
    """The first late message is warned of, of any kind, and each life of an id has its warning."""
    driver = Driver()
    for _ in range(2):
        driver.receive(m.Open(context="a"), m.Cancel(context="a"))
        assert codes(driver.receive(late, m.End(context="a"))) == warned("a")


@ENDINGS
def test_open_again(how: str) -> None:
    """An explicit `open` uses an ended id again, as a context of its own that counts from zero."""
    driver = Driver()
    ended(driver, how)
    assert driver.receive(m.Open(context="a"), *say("a", "Here again.")) == []
    driver.run()
    assert driver.transcript() == ["started a", "segment a", "audio a", "done a"]
    audio = [message for message in driver.sent if isinstance(message, m.Audio)]
    assert (audio[0].seq, audio[0].offset) == (0, 0)
    assert only(driver, m.Done).chars == len("Here again.")


def test_after_end() -> None:
    """Between `end` and `done` more text and flushes are dropped with one warning; `end` repeats."""
    driver = Driver()
    driver.receive(*say("a", "Hello there."))
    assert driver.receive(m.End(context="a")) == []
    assert codes(driver.receive(m.Text(context="a", text=" More."))) == warned("a")
    assert driver.receive(m.Flush(context="a", id=1), m.Text(context="a", text=" More.")) == []
    assert driver.receive(m.End(context="a")) == []
    driver.run()
    assert segments(driver) == ["Hello there."]
    assert driver.transcript() == ["warn a", "started a", "segment a", "audio a", "done a"]


def test_cancel_after_end() -> None:
    """cancel-after-end: it cancels before `done`; later, again, and for unknown ids it is nothing."""
    driver = Driver()
    driver.receive(*say("a", "Hello there."))
    driver.step()
    assert driver.receive(m.Cancel(context="a")) == [m.Cancelled(context="a", sent_ms=0)]
    assert driver.receive(m.Cancel(context="a"), m.Cancel(context="a", played_ms=5)) == []
    assert driver.receive(m.Cancel(context="never"), m.Cancel(context="*")) == []
    driver.receive(*say("b", "Hello there."))
    driver.run()
    assert driver.receive(m.Cancel(context="b")) == []
    # An id that was only ever cancelled was never used: it opens by text.
    driver.receive(*say("never", "Hello there."))
    driver.run()
    assert driver.transcript()[-1] == "done never"


def test_cancel_all() -> None:
    """`cancel` of `*` ends every open context, in order, each with its own terminal message."""
    driver = Driver(chunks=6)
    for context_id in "abc":
        driver.receive(m.Text(context=context_id, text=f"Hello from {context_id}. "))
    driver.receive(m.Flush(context="a", id=1))
    for _ in range(6):
        driver.step()
    driver.sent.clear()
    replies = driver.receive(m.Cancel(context="*", played_ms=10_000))
    assert replies == [
        m.Cancelled(context="a", sent_ms=500, text_spoken="Hello", text_remaining="from a."),
        m.Cancelled(context="b", sent_ms=0, text_spoken="", text_remaining="Hello from b."),
        m.Cancelled(context="c", sent_ms=0, text_spoken="", text_remaining="Hello from c."),
    ]
    assert driver.run() == Wait(None)
    assert driver.sent == replies


def test_late_audio_after_cancel() -> None:
    """late-audio-after-cancel: nothing of a cancelled context follows; the next one is complete."""
    driver = Driver()
    driver.receive(*say("a", "Hello there. And on it goes."))
    driver.step()
    driver.step()
    cancelled = driver.context("a")
    assert driver.receive(m.Cancel(context="a")) == [m.Cancelled(context="a", sent_ms=100.0)]
    assert cancelled.audio(b"\0\0", 1) is None
    assert cancelled.delivered == CHUNK
    driver.receive(*say("b", "Something else."))
    driver.run()
    assert driver.transcript() == [
        "started a", "segment a", "audio a", "cancelled a",
        "started b", "segment b", "audio b", "done b",
    ]  # fmt: skip
    assert only(driver, m.Done).audio_ms == 300.0


def test_rapid_barge_in() -> None:
    """rapid-barge-in: 20 contexts opened and cancelled never meet the limit; the 21st is spoken."""
    driver = Driver(contexts=1)
    for index in range(20):
        driver.receive(m.Text(context=f"c{index}", text="Hello there. And on it goes."))
        for _ in range(index % 4):
            driver.step()
        driver.now += 0.1
        driver.receive(m.Cancel(context=f"c{index}"))
    driver.receive(*say("last", "Hello there."))
    driver.run()
    assert not [message for message in driver.sent if isinstance(message, m.Error)]
    assert [one.context for one in driver.sent if isinstance(one, m.Cancelled)] == [
        f"c{index}" for index in range(20)
    ]
    assert driver.transcript()[-4:] == ["started last", "segment last", "audio last", "done last"]


def test_a_failure_is_the_contexts_own() -> None:
    """A context that fails in the middle of a segment has its `error`; the next one is spoken."""
    driver = Driver()
    driver.receive(*say("a", "Hello there."), *say("b", "Hello there."))
    driver.step()
    driver.step()
    driver.fail(EngineFailed("the engine failed; try again"))
    driver.run()
    (error,) = (message for message in driver.sent if isinstance(message, m.Error))
    assert (error.code, error.context, error.retryable, error.fatal) == (
        "engine_failed",
        "a",
        True,
        False,
    )
    assert driver.transcript() == [
        "started a", "segment a", "audio a", "error a",
        "started b", "segment b", "audio b", "done b",
    ]  # fmt: skip


def test_abandon() -> None:
    """When the socket is gone every live context ends, none is left, and nothing can be sent."""
    driver = Driver()
    driver.receive(*say("a", "Hello there."), m.Open(context="b"))
    driver.step()
    abandoned = driver.session.abandon()
    assert [(context.id, context.state) for context in abandoned] == [
        ("a", State.CANCELLED),
        ("b", State.CANCELLED),
    ]
    assert [context.audio(b"\0\0", 1) for context in abandoned] == [None, None]
    assert driver.session.contexts == ()
    assert driver.session.abandon() == ()


def test_only_the_last_ended_contexts_are_remembered() -> None:
    """An ended id is told from a new one until 1024 others have ended after it."""
    driver = Driver()
    driver.receive(m.Open(context="a"), m.Cancel(context="a"))
    for index in range(REMEMBERED_CONTEXTS - 1):
        driver.receive(m.Open(context=f"c{index}"), m.Cancel(context=f"c{index}"))
    assert codes(driver.receive(m.Text(context="a", text="x"))) == warned("a")
    driver.receive(m.Open(context="last"), m.Cancel(context="last"))
    assert driver.receive(m.Text(context="a", text="x")) == []
    assert [context.id for context in driver.session.contexts] == ["a"]
    assert codes(driver.receive(m.Text(context="c0", text="x"))) == warned("c0")


def test_the_latest_end_of_an_id_counts() -> None:
    """A refused `open` of an ended id is an end of its own, from which it is remembered anew."""
    driver = Driver()
    driver.receive(m.Open(context="a"), m.Cancel(context="a"))
    for index in range(REMEMBERED_CONTEXTS - 1):
        driver.receive(m.Open(context=f"c{index}"), m.Cancel(context=f"c{index}"))
    assert codes(driver.receive(m.Open(context="a", voice="nobody"))) == [("unknown_voice", "a")]
    driver.receive(m.Open(context="last"), m.Cancel(context="last"))
    assert codes(driver.receive(m.Text(context="a", text="x"))) == warned("a")


@pytest.mark.parametrize(
    ("error", "context", "fatal"),
    [
        (MessageTooBig("send less"), None, True),
        (SlowConsumer("nothing was read"), None, True),
        (SlowConsumer("nothing was read"), "a", False),
        (BadMessage("not one of ours"), None, False),
        (EngineFailed("the engine failed"), "a", False),
    ],
)
def test_error_message(error: OrpheusError, context: str | None, fatal: bool) -> None:
    """An error is fatal when it closes the socket, which one about a context never does."""
    assert error_message(error, context=context) == m.Error(
        context=context,
        code=error.code,
        message=str(error),
        retryable=error.retryable,
        fatal=fatal,
    )


# Text in, flush, close ----------------------------------------------------------------------------


def test_text_chars() -> None:
    """As much text as the limit may wait; one character more ends that context alone."""
    driver = Driver(text_chars=20)
    assert driver.receive(m.Text(context="a", text="x" * 20), m.Open(context="b")) == []
    (error,) = driver.receive(m.Text(context="a", text="x"))
    assert isinstance(error, m.Error)
    assert (error.code, error.context, error.retryable) == ("text_too_long", "a", False)
    assert codes(driver.receive(m.Text(context="c", text="x" * 21))) == [("text_too_long", "c")]
    assert [context.id for context in driver.session.contexts] == ["b"]
    assert codes(driver.receive(m.Text(context="c", text="x"))) == warned("c")


def test_text_chars_counts_what_waits() -> None:
    """Text that is being spoken makes room for more; text queued behind it does not."""
    driver = Driver(text_chars=20)
    driver.receive(m.Text(context="a", text="This is some text. "), m.Flush(context="a"))
    assert driver.context("a").unspoken_chars == 18
    driver.step()
    assert driver.context("a").unspoken_chars == 0
    assert driver.receive(m.Text(context="a", text="This is more of it.")) == []
    assert driver.receive(m.Flush(context="a")) == []
    assert codes(driver.receive(m.Text(context="a", text="xx"))) == [("text_too_long", "a")]


def test_flush() -> None:
    """`flushed` follows the audio of the text before that flush, in the order of the flushes."""
    driver = Driver()
    driver.receive(
        m.Text(context="a", text="This is one"),
        m.Flush(context="a", id="x"),
        m.Text(context="a", text="this is two"),
        m.Flush(context="a", id=7),
        m.Flush(context="a"),
        *say("a", "this is three"),
    )
    driver.run()
    assert segments(driver) == ["This is one", "this is two", "this is three"]
    spoken = ["segment a", "audio a"]
    assert driver.transcript() == [
        "started a", *spoken, "flushed a", *spoken, "flushed a", *spoken, "done a",
    ]  # fmt: skip
    flushed = [message.id for message in driver.sent if isinstance(message, m.Flushed)]
    assert flushed == ["x", 7, None]


def test_flush_of_an_unknown_context() -> None:
    """There is nothing to wait for, so it is answered at once, and opens nothing."""
    driver = Driver()
    assert driver.receive(m.Flush(context="a", id=3)) == [m.Flushed(context="a", id=3)]
    assert driver.session.contexts == ()
    driver.receive(*say("a", "Hello there."))
    driver.run()
    assert driver.transcript()[-1] == "done a"


def test_flush_waits_for_the_turn() -> None:
    """A flush without text is answered in its context's turn, after the audio of earlier ones."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="Hello there."), m.Open(context="b"))
    assert driver.receive(m.Flush(context="b", id=1)) == []
    driver.now += 0.4
    driver.run()
    assert driver.transcript() == ["started a", "segment a", "audio a"]
    driver.receive(m.End(context="a"))
    driver.run()
    assert driver.transcript()[-2:] == ["done a", "flushed b"]


def test_ping_is_answered_at_once() -> None:
    """`pong` follows everything that was decided before, without waiting for the speaker."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="x"), m.Cancel(context="a"), m.Ping(id="fence"))
    assert driver.sent == [m.Cancelled(context="a", sent_ms=0), m.Pong(id="fence")]


def test_close() -> None:
    """`close` ends every open context; the goodbye comes after all of them were spoken."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="Hello from a"), m.Flush(context="a", id=1))
    driver.receive(m.Text(context="b", text="Hello from b"), m.Open(context="c"))
    driver.step()
    driver.step()
    assert driver.receive(m.Close()) == []
    assert driver.run() == Goodbye()
    assert driver.transcript() == [
        "started a", "segment a", "audio a", "flushed a", "done a",
        "started b", "segment b", "audio b", "done b", "done c",
    ]  # fmt: skip


def test_close_with_nothing_open() -> None:
    """`close` on a silent socket is a goodbye at once."""
    driver = Driver()
    driver.receive(m.Close())
    assert driver.run() == Goodbye()
    assert driver.sent == []


# Time ---------------------------------------------------------------------------------------------


def test_held_sentence() -> None:
    """held-sentence: a complete sentence without a successor is spoken within max_delay_ms."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="The first sentence is complete. "))
    assert driver.run() == Wait(driver.now + 0.4)
    driver.now += 0.4
    driver.run()
    assert segments(driver) == ["The first sentence is complete."]


@pytest.mark.parametrize("delay", [0, 1, 400, 5000])
def test_max_delay(delay: int) -> None:
    """Stalled text is spoken up to its last white space after `max_delay_ms`, and not before."""
    driver = Driver()
    driver.receive(m.Config(segment=m.Segmentation(max_delay_ms=delay)))
    driver.receive(m.Text(context="a", text="The extra"))
    due = driver.now + delay / 1000
    if delay:
        assert driver.run() == Wait(due)
        driver.now = due - 0.0005
        assert driver.run() == Wait(due)
        assert driver.sent == []
        driver.now = due
    # Nothing more can be released of a word that is not complete, so nothing is waited for.
    assert driver.run() == Wait(None)
    assert segments(driver) == ["The"]
    driver.receive(*say("a", "ordinary result arrived."))
    driver.run()
    assert segments(driver) == ["The", "extraordinary result arrived."]


def test_more_text_restarts_the_delay() -> None:
    """The delay is counted from the latest text."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="Some text "))
    driver.now += 0.3
    driver.receive(m.Text(context="a", text="and more "))
    assert driver.run() == Wait(driver.now + 0.4)
    driver.settle()
    assert segments(driver) == ["Some text and more"]


def test_released_text_starts_the_clock() -> None:
    """t0 of text that only the timer completes is when the timer fires."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="Some text "))
    driver.now += 0.75
    driver.step()
    assert driver.context("a").trace.ready_at == driver.now


def test_delay_passes_while_speaking() -> None:
    """Text that stalls during a segment is spoken right after it, without another delay."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="This is one. Then comes more"))
    driver.step()
    driver.now += 0.4
    driver.run()
    assert segments(driver) == ["This is one.", "Then comes"]


def test_delay_cuts_nothing_that_need_not_be_spoken_yet() -> None:
    """While another segment is still queued, stalled text may go on as the sentence it is."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="This is one. This is two. Then comes"))
    driver.step()
    driver.now += 1
    while segments(driver)[-1:] != ["This is two."]:
        driver.step()
    driver.receive(*say("a", " more of it."))
    driver.run()
    assert segments(driver) == ["This is one.", "This is two.", "Then comes more of it."]


def test_the_earlier_deadline_counts() -> None:
    """With a stall and idleness both ahead, the speaker wakes for the one that comes first."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="The extra"), m.Open(context="b"))
    assert driver.session.next(driver.now) == Wait(driver.now + 0.4)
    driver.now += 0.4
    driver.run()
    assert driver.session.next(driver.now) == Wait(driver.now + IDLE_SECONDS)


def test_flush_mode_has_no_timer() -> None:
    """In flush mode no amount of time speaks anything; `flush` does."""
    driver = Driver()
    driver.receive(m.Open(context="a", segment=m.Segmentation(mode="flush")))
    driver.receive(m.Text(context="a", text="This is one. This is two. And so on"))
    assert driver.settle() == Wait(None)
    driver.now += 1000
    assert driver.settle() == Wait(None)
    assert driver.sent == []
    driver.receive(m.Flush(context="a"))
    driver.run()
    assert segments(driver) == ["This is one. This is two. And so on"]


def test_flush_mode_speaks_no_paragraph_early() -> None:
    """In flush mode a blank line is no flush either."""
    driver = Driver()
    driver.receive(m.Open(context="a", segment=m.Segmentation(mode="flush")))
    driver.receive(m.Text(context="a", text="This is one.\n\nThis is two."))
    assert driver.settle() == Wait(None)
    assert segments(driver) == []


def test_idle_context() -> None:
    """A context without text while another waits behind it is ended with a warning, and in time."""
    driver = Driver()
    driver.receive(m.Open(context="a"))
    driver.now += 10
    driver.receive(*say("b", "Hello there."))
    due = driver.now - 10 + IDLE_SECONDS
    assert driver.run() == Wait(due)
    driver.now = due - 0.001
    assert driver.run() == Wait(due)
    driver.now = due
    assert driver.run() == Wait(None)
    assert driver.transcript() == [
        "warn a", "done a", "started b", "segment b", "audio b", "done b",
    ]  # fmt: skip
    assert codes(driver.sent[:1]) == [("context_idle", "a")]


def test_idle_context_speaks_what_it_holds() -> None:
    """A context ended for being idle is spoken to its end first."""
    driver = Driver()
    driver.receive(m.Open(context="a", segment=m.Segmentation(mode="flush")))
    driver.receive(m.Text(context="a", text="Hello there."), m.Open(context="b"))
    driver.settle()
    assert driver.transcript() == ["warn a", "started a", "segment a", "audio a", "done a"]


def test_idle_alone() -> None:
    """A context that nothing waits for may be silent for as long as it likes."""
    driver = Driver()
    driver.receive(m.Open(context="a"))
    driver.now += 100 * IDLE_SECONDS
    assert driver.run() == Wait(None)
    assert driver.context("a").live


def test_idle_starts_again_with_text_and_speech() -> None:
    """Idle time is counted from the latest text, and from when all of it was spoken."""
    driver = Driver()
    driver.receive(m.Open(context="a"), m.Open(context="b"))
    driver.now += 29
    driver.receive(m.Text(context="a", text=""))
    assert driver.run() == Wait(driver.now + IDLE_SECONDS)
    driver.receive(m.Text(context="a", text="Hello there."), m.Flush(context="a"))
    driver.step()
    driver.now += 50  # a slow engine
    assert driver.run() == Wait(driver.now + IDLE_SECONDS)
    assert driver.context("a").state is State.STARVED


# Words and what was heard -------------------------------------------------------------------------


def test_words() -> None:
    """Word times of a segment follow its audio, cover it without gaps, and say they are guesses."""
    driver = Driver()
    driver.receive(m.Open(context="a", words=True))
    driver.receive(*say("a", "Here is something. And more of it."))
    driver.run()
    spoken = ["segment a", "audio a", "words a"]
    assert driver.transcript() == ["started a", *spoken, *spoken, "done a"]
    first, second = (message for message in driver.sent if isinstance(message, m.Words))
    assert first.approx
    assert [word.text for word in first.words] == ["Here", "is", "something."]
    assert [word.text for word in second.words] == ["And", "more", "of", "it."]
    times = [*first.words, *second.words]
    assert (times[0].start_ms, times[-1].end_ms) == (0.0, 600.0)
    assert (first.words[-1].end_ms, second.words[0].start_ms) == (300.0, 300.0)
    assert all(a.end_ms == b.start_ms for a, b in itertools.pairwise(times))


def test_no_words_unless_asked() -> None:
    """Word times are only sent to those who asked."""
    driver = Driver()
    driver.receive(*say("a", "Here is something."))
    driver.run()
    assert not [message for message in driver.sent if isinstance(message, m.Words)]


def test_cancelled_without_played_ms() -> None:
    """Without `played_ms` nothing is said about texts."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="Hello there."))
    (cancelled,) = driver.receive(m.Cancel(context="a"))
    assert isinstance(cancelled, m.Cancelled)
    assert (cancelled.text_spoken, cancelled.text_remaining) == (None, None)


@pytest.mark.parametrize(
    ("played_ms", "spoken", "remaining"),
    [
        (0, "", "Here is something. And more of it. The rest"),
        (299, "Here is", "something. And more of it. The rest"),
        (300, "Here is something.", "And more of it. The rest"),
        (600, "Here is something. And more of it.", "The rest"),
        (10_000, "Here is something. And more of it.", "The rest"),
    ],
)
def test_cancelled_with_played_ms(played_ms: float, spoken: str, remaining: str) -> None:
    """What was heard is cut between words; more than was sent cannot have been heard."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="Here is something. And more of it. The rest"))
    driver.run()
    assert driver.context("a").ms(driver.context("a").delivered) == 600
    assert driver.receive(m.Cancel(context="a", played_ms=played_ms)) == [
        m.Cancelled(context="a", sent_ms=600, text_spoken=spoken, text_remaining=remaining)
    ]


@pytest.mark.parametrize("spoken", [0, 1])
def test_cancelled_before_the_first_audio_of_a_segment(spoken: int) -> None:
    """A segment handed to the engine that has no audio yet is still text that was not heard."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="This is one. This is two. And so"))
    for _ in range(spoken * (driver.chunks + 2) + 1):
        action = driver.step()
    assert isinstance(action, Speak)
    assert len(segments(driver)) == spoken
    (cancelled,) = driver.receive(m.Cancel(context="a", played_ms=300))
    assert isinstance(cancelled, m.Cancelled)
    assert cancelled.text_spoken == ("This is one." if spoken else "")
    everything = f"{cancelled.text_spoken} {cancelled.text_remaining}"
    assert everything.split() == ["This", "is", "one.", "This", "is", "two.", "And", "so"]


def test_cancelled_after_a_segment_without_audio() -> None:
    """A segment of which nothing was left to send is accounted for like any other."""
    driver = Driver(chunks=0)
    driver.receive(m.Text(context="a", text="This is one. And so"))
    driver.run()
    (cancelled,) = driver.receive(m.Cancel(context="a", played_ms=0))
    assert isinstance(cancelled, m.Cancelled)
    everything = f"{cancelled.text_spoken} {cancelled.text_remaining}"
    assert everything.split() == ["This", "is", "one.", "And", "so"]


SENTENCES = st.lists(
    st.sampled_from(
        [
            "Hello there. ",
            "It works! ",
            "Why is that? ",
            "one two ",
            "Then the sea",
            " came, ",
            "<lau",
        ]
    ),
    min_size=1,
    max_size=8,
)


@given(
    texts=SENTENCES,
    steps=st.integers(0, 25),
    pause=st.sampled_from([0.0, 1.0]),
    played=st.lists(st.floats(0, 3000), min_size=2, max_size=2).map(sorted),
)
@settings(max_examples=200, deadline=None)
def test_every_word_is_heard_or_remains(
    texts: list[str], steps: int, pause: float, played: list[float]
) -> None:
    """Whenever it is cancelled, no word is missing or told twice, and later hears no less."""
    found: list[list[str]] = []
    for played_ms in played:
        driver = Driver()
        driver.receive(*(m.Text(context="a", text=text) for text in texts))
        driver.now += pause
        for _ in range(steps):
            driver.step()
        (cancelled,) = driver.receive(m.Cancel(context="a", played_ms=played_ms))
        assert isinstance(cancelled, m.Cancelled)
        assert cancelled.text_spoken is not None
        assert cancelled.text_remaining is not None
        # Words are compared by their letters, for an unfinished tag may end up as a word.
        everything = letters(cancelled.text_spoken + cancelled.text_remaining)
        assert everything == letters("".join(texts))
        found.append(cancelled.text_spoken.split())
    assert found[1][: len(found[0])] == found[0]


def letters(text: str) -> str:
    """What is left when cutting and joining cannot matter."""
    return "".join(filter(str.isalnum, text))


# Everything at once -------------------------------------------------------------------------------


class Life:
    """What a peer must see of one context, kept without looking into the session."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.state = State.OPEN
        self.terminals = 0
        self.audio: list[m.Audio] = []
        self.ended = False
        self.fed = ""
        self.spoken = ""
        self.flushes: deque[tuple[int, str]] = deque()
        """Flushes to be answered, with the letters that were fed before each."""


EDGES = {(old, new) for old, events in TRANSITIONS.items() for new in events.values() if old != new}
REFUSALS = ("context_limit", "unknown_voice", "unsupported_format", "bad_message")
LIMIT = 3
IDS = st.sampled_from(["a", "b", "c", "d", "e"])
TEXTS = st.sampled_from(
    [
        "Hello there. ", "It works! And", " so", "one two three ", "...", " ", "", "\n\n", "<laugh> ",
        "<lau", "friend.", "How are you? ", "Well, as far as I know, it is. ", "x" * 90,
    ]
)  # fmt: skip
OPTIONS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    voice=st.sampled_from(["tara", "tara", "tara", "leo", "nobody"]),
    words=st.booleans(),
    segment=st.builds(
        m.Segmentation,
        mode=st.sampled_from(["sentence", "clause", "flush"]),
        max_delay_ms=st.sampled_from([0, 400, 5000]),
    ),
)


class SessionMachine(RuleBasedStateMachine):
    """Any messages at any time while the speaker is anywhere: what a peer sees is always legal."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(contexts=LIMIT, text_chars=120, chunks=2)
        self.lives: list[Life] = []
        self.by_id: dict[str, Life | None] = {}
        """The latest life of an id; None when its latest `open` was refused."""
        self.warned_ids: set[str] = set()
        self.closing = False
        self.flush_id = 0
        self.heard_moves = self.heard_messages = 0

    # What the peer sends

    @rule(context_id=IDS, options=OPTIONS)
    def open(self, context_id: str, options: dict[str, Any]) -> None:
        known = self.live(context_id)
        replies = self.receive(m.Open(context=context_id, **options))
        if known is not None:
            assert codes(replies) == [("already_open", context_id)]

    @rule(options=OPTIONS)
    def config(self, options: dict[str, Any]) -> None:
        replies = self.receive(m.Config(**options))
        assert codes(replies) == ([("unknown_voice", None)] * (options["voice"] == "nobody"))

    @rule(context_id=IDS, text=TEXTS)
    def text(self, context_id: str, text: str) -> None:
        before = self.live(context_id)
        expected = self.dropped(context_id)
        replies = self.receive(m.Text(context=context_id, text=text))
        if expected is not None:
            assert codes(replies) == expected
        elif (life := self.live(context_id)) is not None:
            assert before in (life, None)
            life.fed += letters(text)

    @rule(context_id=IDS)
    def flush(self, context_id: str) -> None:
        self.flush_id += 1
        life = self.live(context_id)
        expected = self.dropped(context_id)
        if expected is None and life is not None:
            life.flushes.append((self.flush_id, life.fed))
        replies = self.receive(m.Flush(context=context_id, id=self.flush_id))
        if expected is not None:
            assert codes(replies) == expected
        elif life is None:
            assert replies == [m.Flushed(context=context_id, id=self.flush_id)]

    @rule(context_id=IDS)
    def end(self, context_id: str) -> None:
        life = self.live(context_id)
        expected = None if life is not None else self.dropped(context_id)
        replies = self.receive(m.End(context=context_id))
        if expected is not None:
            assert codes(replies) == expected
        elif (life := self.live(context_id)) is not None:
            life.ended = True

    @rule(
        context_id=st.one_of(IDS, st.just("*")),
        played_ms=st.one_of(st.none(), st.floats(0, 5000)),
    )
    def cancel(self, context_id: str, played_ms: float | None) -> None:
        live = [life for life in self.lives if life.state not in TERMINAL]
        due = [life for life in live if context_id in ("*", life.context.id)]
        replies = self.receive(m.Cancel(context=context_id, played_ms=played_ms))
        assert [reply.context for reply in replies if isinstance(reply, m.Cancelled)] == [
            life.context.id for life in due
        ]
        assert len(replies) == len(due)

    @rule(ping_id=st.integers())
    def ping(self, ping_id: int) -> None:
        assert self.receive(m.Ping(id=ping_id)) == [m.Pong(id=ping_id)]

    @precondition(lambda self: len(self.lives) > 6)
    @rule()
    def close(self) -> None:
        self.closing = True
        for life in self.lives:
            life.ended = True
        self.receive(m.Close())

    # What the speaker does

    @rule(steps=st.integers(1, 12))
    def speak(self, steps: int) -> None:
        for _ in range(steps):
            self.check_rest(self.driver.step())
            self.listen()

    @rule(seconds=st.sampled_from([0.05, 0.4, 6.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.driver.now += seconds

    @precondition(lambda self: self.driver.speaking is not None and self.driver.speaking.live)
    @rule()
    def fail(self) -> None:
        self.driver.fail(EngineFailed("the engine failed; try again"))
        self.listen()

    def teardown(self) -> None:
        """However it stands, `close` brings it to an end at which every context has had its own."""
        self.close()
        assert self.driver.settle() == Goodbye()
        self.listen()
        assert all(life.terminals == 1 for life in self.lives)

    # What must hold

    @invariant()
    def live_contexts(self) -> None:
        live = [life.context for life in self.lives if life.state not in TERMINAL]
        assert list(self.driver.session.contexts) == live
        assert len(live) <= LIMIT
        assert len({context.handle for context in live}) == len(live)

    @invariant()
    def one_terminal_message_each(self) -> None:
        assert all(life.terminals == (life.state in TERMINAL) for life in self.lives)

    def check_rest(self, action: Action | None) -> None:
        """A wait is for the future, and asking again is no news."""
        if isinstance(action, Wait):
            assert action.until is None or action.until > self.driver.now
            assert self.driver.session.next(self.driver.now) == action
        elif isinstance(action, Goodbye):
            assert self.closing
            assert all(life.state in TERMINAL for life in self.lives)

    def live(self, context_id: str) -> Life | None:
        life = self.by_id.get(context_id)
        return life if life is not None and life.state not in TERMINAL else None

    def dropped(self, context_id: str) -> list[tuple[str, str | None]] | None:
        """What answers text for a context that takes none any more; None for one that does."""
        life = self.live(context_id)
        if life is None:
            if context_id not in self.by_id:
                return None
        elif not life.ended:
            return None
        # A context is warned about once between its end and `done`, and once after.
        key = context_id if life is None else f"{context_id} ended"
        first = key not in self.warned_ids
        self.warned_ids.add(key)
        return warned(context_id) if first else []

    def receive(self, message: m.ClientMessage) -> list[m.ServerMessage]:
        replies = self.driver.receive(message)
        self.listen()
        return replies

    def listen(self) -> None:
        """Take note of what has happened since the last time."""
        driver = self.driver
        for context, old, new in driver.moves[self.heard_moves :]:
            self.moved(context, old, new)
        for message in driver.sent[self.heard_messages :]:
            self.hear(message)
        self.heard_moves, self.heard_messages = len(driver.moves), len(driver.sent)

    def moved(self, context: Context, old: State | None, new: State) -> None:
        if old is None:
            assert new is State.OPEN
            assert self.live(context.id) is None
            life = Life(context)
            self.lives.append(life)
            self.by_id[context.id] = life
            self.warned_ids -= {context.id, f"{context.id} ended"}
            return
        life = next(life for life in self.lives if life.context is context)
        assert life.state is old
        assert (old, new) in EDGES
        life.state = new

    def hear(self, message: m.ServerMessage) -> None:
        """Check one message against everything before it."""
        context_id = getattr(message, "context", None)
        if context_id is None or isinstance(message, m.Warn):
            if isinstance(message, m.Warn) and message.code == "context_idle":
                self.idle(context_id)
            return
        if isinstance(message, m.Error) and message.code in REFUSALS:
            assert self.live(context_id) is None
            self.by_id[context_id] = None
            self.warned_ids -= {context_id, f"{context_id} ended"}
            return
        life = self.by_id.get(context_id)
        if isinstance(message, m.Flushed) and (life is None or not life.flushes):
            assert context_id not in self.by_id
            return
        assert life is not None
        assert life.terminals == 0, f"{type(message).__name__} after the terminal message"
        match message:
            case m.Audio():
                self.hear_audio(life, message)
            case m.Segment():
                assert message.offset == CHUNK * len(life.audio)
                life.spoken += letters(message.text)
            case m.Flushed():
                assert (message.id, life.spoken) == life.flushes.popleft()
            case m.Done() | m.Cancelled() | m.Error():
                self.hear_terminal(life, message)
            case _:
                pass

    def idle(self, context_id: str | None) -> None:
        """A context was ended by the session, which it may do only while another waits."""
        life, *others = [one for one in self.lives if not one.terminals]
        assert life.context.id == context_id
        assert not life.ended
        assert others
        life.ended = True

    def hear_audio(self, life: Life, message: m.Audio) -> None:
        waiting = [one for one in self.lives if not one.terminals]
        assert waiting[0] is life, "spoken out of turn"
        assert message.handle == life.context.handle
        assert (message.seq, message.offset) == (len(life.audio), CHUNK * len(life.audio))
        life.audio.append(message)

    def hear_terminal(self, life: Life, message: m.Done | m.Cancelled | m.Error) -> None:
        life.terminals += 1
        ms = CHUNK * len(life.audio) * 1000 / RATE
        if isinstance(message, m.Done):
            assert life.spoken == life.fed
            assert not life.flushes
            assert message.audio_ms == ms
            assert (message.reason == "empty") == (not life.audio)
        elif isinstance(message, m.Cancelled):
            assert message.sent_ms == ms
            assert life.fed.startswith(letters(message.text_spoken or ""))


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
