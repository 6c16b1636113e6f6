"""Session: text in, flushes, timers."""

import pytest

from orpheus_ws import messages as m
from orpheus_ws.context import MAX_FLUSHES, State
from orpheus_ws.session import (
    Goodbye,
    Wait,
)
from tests.session_driver import IDLE_SECONDS, Driver, codes, say, segments, warned

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


def test_flushes_that_wait() -> None:
    """As many flushes as the limit may wait; one more ends that context alone."""
    driver = Driver()
    driver.receive(m.Open(context="b"), m.Text(context="a", text="It waits. "))
    for number in range(MAX_FLUSHES):
        assert driver.receive(m.Flush(context="a", id=number)) == []
    assert codes(driver.receive(m.Flush(context="a"))) == [("rate_limited", "a")]
    assert [context.id for context in driver.session.contexts] == ["b"]


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
    """t0 of text that only the timer completes is when the timer is due, asked or not."""
    driver = Driver()
    driver.receive(m.Text(context="a", text="Some text "))
    due = driver.now + 0.4
    driver.now += 0.75
    driver.step()
    assert driver.context("a").trace.ready_at == pytest.approx(due)


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
