"""Session: one terminal message per context, and nothing after it."""

import numpy as np
import pytest

from orpheus_ws import messages as m
from orpheus_ws.context import Silence, State
from orpheus_ws.errors import BadMessage, EngineFailed, MessageTooBig, OrpheusError, SlowConsumer
from orpheus_ws.pcm import ENCODINGS, SAMPLE_RATES
from orpheus_ws.session import (
    REMEMBERED_CONTEXTS,
    Wait,
    error_message,
)
from tests.session_driver import CHUNK, Driver, codes, only, say, segments, warned

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


every_ending = pytest.mark.parametrize("how", ["done", "cancelled", "error"])


@every_ending
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


@every_ending
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


@pytest.mark.parametrize("rate", SAMPLE_RATES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_text_without_sound(encoding: str, rate: int) -> None:
    """Where a turn must sound, it is 100 ms of nothing in the format of its context."""
    driver = Driver(silence=Silence.OF_TEXT)
    opened = m.Open(context="a", encoding=encoding, sample_rate=rate, words=True)
    driver.receive(opened, *say("a", "… 🙂"))
    driver.run()
    segment, audio, words, done = driver.sent
    assert segment == m.Segment(context="a", index=0, text="", offset=0)
    assert isinstance(audio, m.Audio)
    assert audio.pcm == ENCODINGS[encoding](np.zeros(rate // 10, np.float32))
    assert words == m.Words(context="a", words=())
    assert isinstance(done, m.Done)
    assert (done.reason, done.audio_ms, done.chars) == ("empty", 100, 0)


@pytest.mark.parametrize("text", ["", " \n", "Hello there."])
def test_nothing_is_silent_that_needs_not(text: str) -> None:
    """No text at all has no sound anywhere, and words have their own."""
    plain, sounding = Driver(), Driver(silence=Silence.OF_TEXT)
    for driver in (plain, sounding):
        driver.receive(*say("a", text))
        driver.run()
    assert sounding.transcript() == plain.transcript()


@pytest.mark.parametrize("text", ["", " \n", "… 🙂"])
def test_a_turn_that_always_sounds(text: str) -> None:
    """Where every turn must sound, one without any text does, too."""
    driver = Driver(silence=Silence.ALWAYS)
    driver.receive(*say("a", text))
    driver.run()
    assert driver.transcript() == ["segment a", "audio a", "done a"]


def test_silence_for_somebody_who_has_left() -> None:
    """What was cancelled before it was its turn is not answered with silence."""
    driver = Driver(silence=Silence.OF_TEXT)
    driver.receive(*say("a", "🙂"), m.Cancel(context="a"))
    driver.run()
    assert driver.transcript() == ["cancelled a"]


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


@pytest.mark.parametrize(("context_id", "cancelled"), [("a", "a"), ("*", "ab"), ("never", "")])
@pytest.mark.parametrize("closing", [False, True])
def test_a_cancel_that_does_not_fit(context_id: str, cancelled: str, *, closing: bool) -> None:
    """It is warned of and cancels all the same, without the texts, also after `close`."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="Hello. "), m.Text(context="b", text="Hello. "))
    if closing:
        driver.receive(m.Close())
    warning, *replies = driver.session.refuse(
        BadMessage("'played_ms' must be float >= 0.0", context=context_id, cancels=True)
    )
    assert codes([warning]) == [("bad_message", None if context_id == "*" else context_id)]
    assert replies == [m.Cancelled(context=one, sent_ms=0.0) for one in cancelled]
    assert "".join(one.id for one in driver.session.contexts) == "ab".replace(cancelled, "")


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
    abandoned = driver.session.contexts
    driver.session.abandon()
    assert [(context.id, context.state) for context in abandoned] == [
        ("a", State.CANCELLED),
        ("b", State.CANCELLED),
    ]
    assert [context.audio(b"\0\0", 1) for context in abandoned] == [None, None]
    assert driver.session.contexts == ()
    driver.session.abandon()


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
