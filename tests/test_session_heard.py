"""Session: word times, and what the listener heard of a cancelled context."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws import messages as m
from orpheus_ws.session import (
    Speak,
)
from tests.session_driver import (
    Driver,
    say,
    segments,
)

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
