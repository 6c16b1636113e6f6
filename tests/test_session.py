"""Session: what a peer gets for one utterance, and how contexts are opened."""

from collections import Counter
from typing import Any

import pytest

from orpheus_ws import messages as m
from orpheus_ws.context import Reason
from orpheus_ws.session import (
    Wait,
)
from tests.session_driver import CHUNK, Driver, codes, only, say, segments, warned

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
