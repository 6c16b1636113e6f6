"""Segmenter: cut at sentences, the same however the text arrives, and nothing lost."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws import text as text_module
from orpheus_ws.text import (
    MAX_SEGMENT_SECONDS,
    Mode,
    Segmenter,
    estimate_seconds,
    has_words,
    split_spoken,
    word_times,
)
from orpheus_ws.tokens import CODES_PER_FRAME, FRAME_SECONDS, MAX_TOKENS, TAGS


def segments(*messages: str, mode: Mode = "sentence") -> list[str]:
    """All segments of a context that receives these messages and then ends."""
    segmenter = Segmenter(mode)
    result: list[str] = []
    for message in messages:
        result += segmenter.feed(message)
    return result + segmenter.flush()


# Field cases of area text -------------------------------------------------------------------------


def test_join_no_space() -> None:
    """join-no-space: two messages without a space between them are two sentences."""
    assert segments("Nice to meet you, friend.", "How are you today?") == [
        "Nice to meet you, friend.",
        "How are you today?",
    ]


def test_join_fragments() -> None:
    """join-fragments: pieces of words are put together exactly."""
    assert segments("Hel", "lo wor", "ld, this is a te", "st.") == ["Hello world, this is a test."]


def test_long_single_message() -> None:
    """long-single-message: all 37 words of one message come out."""
    words = [f"word{chr(97 + index % 26)}" for index in range(37)]
    assert " ".join(segments(" ".join(words))).split() == words


def test_abbreviations() -> None:
    """abbreviations: full stops inside abbreviations and amounts end no sentence."""
    assert segments("Dr. Smith paid $3.50 at 5 p.m. on Jan. 3rd, i.e. yesterday. It was fine.") == [
        "Dr. Smith paid $3.50 at 5 p.m. on Jan. 3rd, i.e. yesterday.",
        "It was fine.",
    ]


@pytest.mark.parametrize("ending", [" ", ""])
def test_held_sentence(ending: str) -> None:
    """held-sentence: a complete sentence is released by the timer, also without a space after it."""
    segmenter = Segmenter()
    assert segmenter.feed("The first sentence is complete." + ending) == []
    assert segmenter.release() == ["The first sentence is complete."]
    assert segmenter.pending == 0


def test_pause_inside_word() -> None:
    """pause-inside-word: a stall inside a word never cuts it."""
    segmenter = Segmenter()
    assert segmenter.feed("The extra") == []
    assert segmenter.release() == ["The"]
    assert segmenter.feed("ordinary result arrived.") == []
    assert segmenter.flush() == ["extraordinary result arrived."]
    assert segments("The extra", "ordinary result arrived.") == [
        "The extraordinary result arrived."
    ]


def test_no_punctuation() -> None:
    """no-punctuation: 600 words are cut at word boundaries, each segment short enough, none lost."""
    words = ("alpha beta gamma delta epsilon zeta " * 100).split()
    result = segments(" ".join(words))
    assert " ".join(result).split() == words
    assert len(result) > 1
    assert all(estimate_seconds(segment) <= MAX_SEGMENT_SECONDS for segment in result)


def test_the_longest_segment_has_the_tokens_it_needs() -> None:
    """A segment may take 25 s, which is what the default `max_tokens` are enough for."""
    assert MAX_SEGMENT_SECONDS == 25
    seconds = MAX_TOKENS / CODES_PER_FRAME * FRAME_SECONDS
    assert pytest.approx(seconds, abs=FRAME_SECONDS) == MAX_SEGMENT_SECONDS


@pytest.mark.parametrize("text", ["!!! ... ???", "   \n\t ", "", "\n\n\n", "\u200b\u200d", "🎉🎉"])
def test_nothing_to_say(text: str) -> None:
    """only-punctuation, blank: text without a word gives no segment."""
    assert segments(text) == []


def test_one_word() -> None:
    """one-word: a single short word is a segment."""
    assert segments("Hi") == ["Hi"]


def test_emoji_and_control() -> None:
    """emoji-and-control: what has no sound is removed, the words stay."""
    assert segments("Great job 🎉\u0000\u200b!") == ["Great job !"]
    assert segments("caf\u00e9 20 \u00b0C \ud800ok\ufeff 👍🏽") == ["café 20 °C ok"]


def test_number_cut() -> None:
    """number-cut: a number cut at its decimal point is one number in one sentence."""
    assert segments("It costs 2.", "5 million.") == ["It costs 2.5 million."]


@pytest.mark.parametrize(
    ("text", "released", "rest"),
    [
        ("Visit www.example.", ["Visit"], "com for more."),
        ("Ask Mrs.", ["Ask"], " Jones."),
        ("We met in Jan.", ["We met in"], " 2024."),
        ("He said it was fine.", ["He said it was fine."], ""),
        ('He said "yes!"', ['He said "yes!"'], ""),
        ("Really?!", ["Really?!"], ""),
        ("It is version v2.", ["It is version"], "5 now."),
    ],
)
def test_a_stall_ends_only_what_has_ended(text: str, released: list[str], rest: str) -> None:
    """pause-inside-word: the timer takes addresses, numbers and abbreviations for unfinished."""
    segmenter = Segmenter()
    assert segmenter.feed(text) == []
    assert segmenter.release() == released
    whole = " ".join([*released, *segmenter.feed(rest), *segmenter.flush()])
    assert whole == " ".join((text + rest).split())


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("Nice, friend.How are you", "Nice, friend. How are you"),
        ("I use Vue.JS daily", "I use Vue.JS daily"),
        ("The U.S.A is big", "The U.S.A is big"),
        ("so.Then we", "so. Then we"),
        ("I.Then", "I.Then"),
        ("x2ok.Then", "x2ok. Then"),
        ("sehr schön.Wir gehen", "sehr schön. Wir gehen"),
    ],
)
def test_joining_rule(text: str, joined: str) -> None:
    """A space is supplied after a wholly lowercase word of two letters or more, and only there."""
    assert " ".join(segments(text)) == joined
    assert " ".join(segments(*text)) == joined


def test_flush_mode_never_cuts_before_a_flush() -> None:
    """In flush mode nothing is spoken before the flush, not even more than a segment holds."""
    segmenter = Segmenter("flush")
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"] * 50
    assert segmenter.feed(" ".join(words)) == []
    result = segmenter.flush()
    assert len(result) > 1
    assert " ".join(result).split() == words


def test_number_cut_survives_a_stall() -> None:
    """number-cut: not even the timer takes `2.` for the end of a sentence."""
    segmenter = Segmenter()
    assert segmenter.feed("It costs 2.") == []
    assert segmenter.release() == ["It costs"]
    assert segmenter.feed("5 million.") + segmenter.flush() == ["2.5 million."]


def test_token_injection() -> None:
    """token-injection: nothing that looks like a special token is left in a segment."""
    text = "Hello <custom_token_9> <|eot_id|> <|begin_of_text|> world"
    assert segments(text) == ["Hello world"]


# Sentences ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("See www.example.com. It works!", ["See www.example.com.", "It works!"]),
        ("Go to https://a.b/c?d=e. Good.", ["Go to https://a.b/c?d=e.", "Good."]),
        ('He said "Hi there." Then he left.', ['He said "Hi there."', "Then he left."]),
        ("Wait... what? No!", ["Wait... what?", "No!"]),
        ("The U.S. economy grew. Good.", ["The U.S. economy grew.", "Good."]),
        ("One line\n\nAnother line", ["One line", "Another line"]),
        ("Version 2.5 is out. 3 people came.", ["Version 2.5 is out.", "3 people came."]),
        ("Is that 5 < 6 or 6 > 5?", ["Is that 5 6 or 6 5?"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    """Abbreviations, addresses, quotes, ellipses and blank lines are cut as a reader would."""
    assert segments(text) == expected


def test_sentence_released_with_the_next_word() -> None:
    """A sentence comes out as soon as the word after it is complete, not at the next full stop."""
    segmenter = Segmenter()
    assert segmenter.feed("That is right. And") == []
    assert segmenter.feed(" then") == ["That is right."]


def test_flush_mode_waits_for_flush() -> None:
    """In flush mode neither sentences nor stalls cut the text."""
    segmenter = Segmenter("flush")
    assert segmenter.feed("One. Two. Three. ") == []
    assert segmenter.release() == []
    assert segmenter.flush() == ["One. Two. Three."]


def test_clause_mode_starts_early() -> None:
    """In clause mode the first segment may be a clause of four words; later ones are sentences."""
    assert segments(
        "Well, as far as I know, it works. Yes, it really does, always.", mode="clause"
    ) == ["Well, as far as I know,", "it works.", "Yes, it really does, always."]


# Properties ---------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [
        "Hello", "world", "Dr.", "Smith", "3.50", "p.m.", "yes.", "No!", "why?", "ok", "U.S.",
        "<laugh>", "<whisper>", "</b>", '<a b="', 'c="d">', "<?x y='z'?>", "<|eot_id|>", "a<b", ">", "<",
        "https://x.y/z?q=1.", "...", '"Quote."', "(aside)", "e.g.", "friend.How", "Hi.", "well,", "x" * 300,
        "12345678901234567890", "🎉", "\u200b", "é", "ÅÄÖ", "end.\"", "\n", "\n\n", "\t", "—", "1.", "2.5", "I",
    ]
)  # fmt: skip
TEXTS = st.lists(
    st.tuples(WORDS, st.sampled_from([" ", "", "  ", " \n"])), min_size=1, max_size=40
).map(lambda pairs: "".join(word + gap for word, gap in pairs))
MODES: st.SearchStrategy[Mode] = st.sampled_from(("sentence", "clause", "flush"))


@given(text=TEXTS, mode=MODES, data=st.data())
@settings(max_examples=400, deadline=None)
def test_segmentation_does_not_depend_on_chunking(
    text: str, mode: Mode, data: st.DataObject
) -> None:
    """However text is cut into messages, the segments are those of the whole."""
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    edges = [0, *cuts, len(text)]
    chunks = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert segments(*chunks, mode=mode) == segments(text, mode=mode)


@given(text=TEXTS, mode=MODES)
@settings(max_examples=100, deadline=None)
def test_character_by_character_is_the_whole(text: str, mode: Mode) -> None:
    """The finest chunking gives the same segments as one message."""
    assert segments(*text, mode=mode) == segments(text, mode=mode)


@given(text=st.one_of(TEXTS, st.text(max_size=300)), mode=MODES)
@settings(max_examples=300, deadline=None)
def test_segments_are_speakable_bounded_and_safe(text: str, mode: Mode) -> None:
    """Every segment has words, fits the longest generation and holds no bracket but the tags'."""
    for segment in segments(text, mode=mode):
        assert has_words(segment)
        assert segment == " ".join(segment.split())
        assert estimate_seconds(segment) <= MAX_SEGMENT_SECONDS
        assert "<" not in re.sub("|".join(f"<{tag}>" for tag in TAGS), "", segment)
        assert ">" not in re.sub("|".join(f"<{tag}>" for tag in TAGS), "", segment)
        segment.encode()


@given(
    words=st.lists(st.text("abcdefghijk", min_size=1, max_size=9), max_size=120),
    releases=st.sets(st.integers(0, 119)),
)
@settings(max_examples=150, deadline=None)
def test_no_word_is_lost_or_cut_by_stalls(words: list[str], releases: set[int]) -> None:
    """With the timer firing anywhere, all words come out once, in order and whole."""
    segmenter = Segmenter()
    result: list[str] = []
    for index, word in enumerate(words):
        result += segmenter.feed(word[:1])
        if index in releases:
            result += segmenter.release()
        result += segmenter.feed(word[1:] + " ")
    result += segmenter.flush()
    assert " ".join(result).split() == words


@given(text=st.text(max_size=400))
@settings(max_examples=200, deadline=None)
def test_pending_counts_what_is_held(text: str) -> None:
    """`pending` never exceeds what was fed, plus the spaces the joining rule supplies."""
    segmenter = Segmenter()
    segmenter.feed(text)
    assert segmenter.pending <= 2 * len(text)
    segmenter.flush()
    assert segmenter.pending == 0


# Estimates ----------------------------------------------------------------------------------------


def test_word_times_cover_the_segment() -> None:
    """Word times start and end with the segment and follow one another without gaps."""
    times = word_times("A quite remarkable word, really.", 100.0, 2100.0)
    assert [word for word, _, _ in times] == ["A", "quite", "remarkable", "word,", "really."]
    assert times[0][1] == 100.0
    assert times[-1][2] == pytest.approx(2100.0)
    assert all(a[2] == pytest.approx(b[1]) for a, b in itertools.pairwise(times))


def test_split_spoken() -> None:
    """Nothing is heard at the start, everything at the end, whole words between."""
    text = "one two three four"
    assert split_spoken(text, 0.0) == ("", text)
    assert split_spoken(text, 1.0) == (text, "")
    heard, remaining = split_spoken(text, 0.5)
    assert f"{heard} {remaining}" == text
    assert heard


@pytest.mark.parametrize(
    "text",
    ["a\n\n" * 6000, "5. " * 6000, "x.Y" * 6000, "a\n" + " " * 19_000 + "b", "It was so. " * 1800],
    ids=["blank lines", "numbers", "joins", "white space", "prose"],
)
def test_work_is_in_proportion_to_the_text(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long message is not measured again for every segment: one socket cannot stall the others."""
    measured = 0
    original = text_module._milliseconds

    def counting(character: str) -> int:
        nonlocal measured
        measured += 1
        return original(character)

    monkeypatch.setattr(text_module, "_milliseconds", counting)
    assert segments(text)
    assert measured <= 3 * len(text)


def test_white_space_before_text_costs_nothing() -> None:
    """What stands before the first word has no length, so it moves no cut."""
    words = "alpha beta gamma delta epsilon zeta " * 40
    assert segments("One.\n\n \n" + words) == segments("One.\n\n", " \n", words)
    assert segments(" \n\n" + words) == segments(words)


@given(
    first=st.text("a1 %", min_size=1, max_size=12),
    rest=st.text("%1 a", min_size=40, max_size=120),
    mode=st.sampled_from(["sentence", "clause", "flush"]),
)
@settings(deadline=None)
def test_no_segment_is_too_long_whatever_was_cut_before_it(
    first: str, rest: str, mode: Mode
) -> None:
    """A segment is within its limit also if what made it too long was measured with what is gone."""
    for text in ("the 1" + "%" * 60, first + rest):
        for segment in segments(text, mode=mode):
            assert estimate_seconds(segment) <= MAX_SEGMENT_SECONDS
