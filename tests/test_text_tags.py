"""Tags in text: the model's own reach the engine whole, and nothing is heard of all others."""

import pytest

from orpheus_ws.text import Segmenter
from orpheus_ws.tokens import TAGS
from tests.test_text import segments


def test_tag_split_across_messages() -> None:
    """tag-split-across-messages: a tag cut in two reaches the engine whole."""
    assert segments("That is so funny <lau", "gh> I can not stop.") == [
        "That is so funny <laugh> I can not stop."
    ]


def test_unknown_tag() -> None:
    """unknown-tag: tags the model does not know are removed and counted; their words stay."""
    segmenter = Segmenter()
    assert segmenter.feed("Hello <whisper>there</whisper>.") + segmenter.flush() == ["Hello there."]
    assert segmenter.unknown_tags == 2


@pytest.mark.parametrize(
    "text",
    [
        '<speak version="1.1" xmlns="http://www.w3.org/2001/10/synthesis" xml:lang="en"> Hello there.',
        "<?xml version='1.0' encoding='utf-8'?> <!DOCTYPE speak> Hello there.",
        'Hello <prosody rate = "slow"\n  pitch="-2st"\n  volume="soft" range="high">there</prosody>.',
        'Hello there<mark name="' + "x" * 511 + '">.',
        'Hello there<audio src="' + "x" * 400 + '"/>.',
    ],
)
def test_unknown_tags_with_attributes(text: str) -> None:
    """What is written for a voice that reads SSML is not read aloud, however it is cut."""
    assert segments(text) == ["Hello there."]
    assert segments(*text) == ["Hello there."]


def test_a_tag_without_an_end_is_text() -> None:
    """What begins like a tag with attributes and goes on for too long is spoken, however it is cut."""
    text = 'Now <b is="' + "so " * 200 + 'it is.">'
    words = text.replace("<", " ").replace(">", " ").split()
    assert " ".join(segments(text)).split() == words
    assert segments(*text) == segments(text)


@pytest.mark.parametrize(
    ("begun", "rest", "spoken"),
    [
        ("<chuck", "le> indeed.", ["<chuckle> indeed."]),
        ('<prosody rate="slow" pi', 'tch="x">indeed.</prosody>', ["indeed."]),
    ],
)
def test_release_keeps_an_open_tag(begun: str, rest: str, spoken: list[str]) -> None:
    """A stall inside a tag releases the words before it and keeps the tag whole."""
    segmenter = Segmenter()
    assert segmenter.feed(f"So funny {begun}") == []
    assert segmenter.release() == ["So funny"]
    assert segmenter.feed(rest) + segmenter.flush() == spoken


def test_release_cuts_no_word_at_a_tag() -> None:
    """What a tag that is not whole yet stands in may be the middle of a word, whatever is before it."""
    segmenter = Segmenter()
    assert segmenter.feed("It is on air.<em") == []
    assert segmenter.release() == ["It is on"]
    assert segmenter.feed(">com") + segmenter.flush() == ["air.com"]


@pytest.mark.parametrize("tag", TAGS)
def test_the_models_tags_pass(tag: str) -> None:
    """Each of the model's own tags reaches the engine, in lower case."""
    assert segments(f"Oh <{tag.upper()}> well.") == [f"Oh <{tag}> well."]


def test_words_after_a_bracket_are_not_held_for_ever() -> None:
    """Text after a `<` that becomes no tag is released by the timer like any other."""
    segmenter = Segmenter()
    assert segmenter.feed("If a <b then it is true. ") == []
    assert segmenter.release() == ["If a b then it is true."]
