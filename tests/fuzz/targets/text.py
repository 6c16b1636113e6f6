"""The segmenter: where a text is cut into messages makes no difference, and nothing of it is lost.

An input is a text. Its first byte says the mode; `FS` (0x1c) cuts it into messages, and at `GS` (0x1d)
the timer has run out. What comes of the pieces is what comes of the whole, where the timer did not
come between; letters come out once each and in order; `<` and `>` are the model's own tags.
"""

from typing import Final

from orpheus_ws.text import (
    MAX_SEGMENT_SECONDS,
    Mode,
    Segmenter,
    estimate_seconds,
    has_words,
    split_spoken,
)
from orpheus_ws.tokens import TAGS

WORDS = (
    *(f"<{tag}>" for tag in TAGS),
    "<", "</", "<|", ">", '<a b="', "='c'", "\x1c", "\x1d", "Mrs. ", "e.g. ", "U.S. ", "3.14", "…", "—",
    "”", "\n\n", "\u200b", "\U0001f600", "ß", "İ", "ǅ", ". A", "a.B", "!?", "www.a.b ",
)  # fmt: skip
CUT: Final = "\x1c"
STALL: Final = "\x1d"
_SLACK: Final = 0.001
"""Of adding."""
_MODES: Final[tuple[Mode, ...]] = ("sentence", "clause", "flush")


def one(data: bytes) -> None:
    """See `Target`."""
    mode, script = _MODES[data[0] % 3 if data else 0], data[1:].decode(errors="replace")
    text = script.replace(CUT, "").replace(STALL, "")
    whole, tags = _speak([text], mode)
    _check(text, whole)
    cut = _speak(script.replace(STALL, "").split(CUT), mode)
    assert cut == (whole, tags), "where the text was cut makes a difference"
    stalled, _ = _speak(script.replace(STALL, CUT + STALL + CUT).split(CUT), mode)
    _check(text, stalled)


def _speak(messages: list[str], mode: Mode) -> tuple[list[str], int]:
    """Segments and unknown tags of these messages; `STALL` is none, but time that has passed."""
    segmenter = Segmenter(mode)
    segments: list[str] = []
    for message in messages:
        segments += segmenter.release() if message == STALL else segmenter.feed(message)
        assert segmenter.pending == len(segmenter.held)
    segments += segmenter.flush()
    assert segmenter.held == ""
    return segments, segmenter.unknown_tags


def _check(text: str, segments: list[str]) -> None:
    for segment in segments:
        assert has_words(segment)
        assert segment == " ".join(segment.split())
        assert estimate_seconds(segment) <= MAX_SEGMENT_SECONDS + _SLACK
        bare = segment
        for tag in TAGS:
            bare = bare.replace(f"<{tag}>", "")
        assert "<" not in bare, "text may become a control token"
        assert ">" not in bare, "text may become a control token"
        for fraction in (0.0, 0.3, 1.0):
            parts = split_spoken(segment, fraction)
            assert " ".join(filter(None, parts)) == segment
    if "<" not in text:
        assert _letters("".join(segments)) == _letters(text), "letters are lost"


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))
