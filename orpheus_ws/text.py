"""Streamed text → segments to speak. Pure.

Rule: where text is cut depends on the concatenated text alone, never on how it was cut into
messages; only `release`, which the caller's timer triggers, depends on time. No word is lost,
repeated or cut, and what comes out holds `<` and `>` only around the model's own tags, so text can
never become a control token.

Sentence boundaries are decided by the `sentencex` library, which is not incremental; it is asked
about a candidate as soon as the word after it is complete, with the text up to that word. The answer
then is the same however the text arrives.
"""

import itertools
import re
import unicodedata
from typing import Final, Literal

import sentencex

from orpheus_ws.tokens import TAGS

Mode = Literal["sentence", "clause", "flush"]

MAX_SEGMENT_SECONDS: Final = 25.0
"""Longest segment: 2048 tokens, the default `max_tokens`; Orpheus degrades beyond about 30 s."""

CLAUSE_MIN_WORDS: Final = 4
"""In clause mode the first segment has at least this many words, so that it still sounds spoken."""

_ENDS: Final = ".!?…"
_CLOSERS: Final = "\"'”’)]"
_CANDIDATE: Final = re.compile(rf"[{_ENDS}]+[{re.escape(_CLOSERS)}]*\s+")
_CLAUSE_CANDIDATE: Final = re.compile(
    rf"(?:[{_ENDS}]+[{re.escape(_CLOSERS)}]*|[,;:—][{re.escape(_CLOSERS)}]*)\s+"
)
_TOKEN: Final = re.compile(r"\S+")
_RUN: Final = re.compile(r"[ \n]+|[^ \n]+")
_JOINT: Final = re.compile(rf"[{_ENDS}](?=[^\W\d_])")
_UNUSUAL: Final = re.compile(r"[^ -~\n]")
_BLANK_LINE: Final = "\n\n"
_LOWER: Final = "a-zß-öø-ÿ"
_IS_LOWER: Final = re.compile(f"[{_LOWER}]").match
_IS_LETTER: Final = re.compile(r"[^\W\d_]").match
# Nothing but letters in the last word: no address, no number, no initials.
_ORDINARY_END: Final = re.compile(
    rf"(?:^|\s)[\"“'‘(]*[^\W\d_][^\W\d_'’-]*[{_LOWER}][{_ENDS}]+[{re.escape(_CLOSERS)}]*\Z"
)
# A tag is short, or begins with an attribute as in SSML. That beginning is itself short, so that what
# may become either is held from its first character on.
_SHORT: Final = r"<[/|?!]?\w[^<>\n]{0,62}"
_LONG_HEAD: Final = r"<\??\w[\w:.-]{0,24} {1,4}[\w:.-]{1,24} ?= ?[\"']"
_LONG: Final = rf"{_LONG_HEAD}[^<>]{{0,512}}"
_TAG: Final = re.compile(rf"{_SHORT}>|{_LONG}>")
_TAG_START: Final = re.compile(rf"<[/|?!]?\Z|{_SHORT}\Z|{_LONG}\Z")
_ATTRIBUTES: Final = re.compile(_LONG_HEAD)


class Segmenter:
    """Cuts one context's text into segments.

    `unknown_tags` counts tags that were removed. A segment is text with single spaces that has at
    least one word or tag; punctuation alone gives none.
    """

    def __init__(self, mode: Mode = "sentence") -> None:
        self.unknown_tags = 0
        self._mode = mode
        self._raw = ""  # the start of what may become a tag
        self._buffer = ""
        self._scanned = 0  # candidates before this index were decided against
        self._cost = 0  # estimated milliseconds of _buffer[:_costed]
        self._costed = 0
        self._overflow: int | None = None
        self._first = True

    @property
    def held(self) -> str:
        """Text taken and not yet part of a segment."""
        return self._buffer + self._raw

    @property
    def pending(self) -> int:
        """Length of `held`."""
        return len(self._buffer) + len(self._raw)

    def feed(self, text: str) -> list[str]:
        """Append text; return the segments that are now certainly complete."""
        self._append(self._clean(text, final=False))
        segments: list[str] = []
        if self._mode != "flush":
            # A blank line always ends a sentence.
            while (blank := self._buffer.find(_BLANK_LINE)) >= 0:
                self._cut_closed(blank + len(_BLANK_LINE), segments)
            self._cut(len(self._buffer), closed=False, segments=segments)
        return segments

    def flush(self) -> list[str]:
        """Return everything that is left, as segments."""
        self._append(self._clean("", final=True))
        segments: list[str] = []
        self._cut_closed(len(self._buffer), segments)
        return segments

    def release(self) -> list[str]:
        """The text has stalled: return what can be spoken without cutting a word.

        That is everything up to the last white space, and to the end if it certainly ends a
        sentence: models that stop to think after one send the next space with the next word. In
        flush mode it is nothing.
        """
        if self._mode == "flush":
            return []
        if (" " in self._raw or "\n" in self._raw) and not _ATTRIBUTES.match(self._raw):
            # Words after a `<` without its `>`: no tag of any model looks like this.
            self._append(self._clean("", final=True))
        end = len(self._buffer)
        if self._raw or not _ends_sentence(self._buffer):
            end = max(self._buffer.rfind(" "), self._buffer.rfind("\n")) + 1
        segments: list[str] = []
        self._cut_closed(end, segments)
        return segments

    def _clean(self, text: str, *, final: bool) -> str:
        """Drop what cannot be spoken and tags that the model does not know."""
        raw = self._raw + _UNUSUAL.sub(_speakable, text)
        self._raw = ""
        if "<" not in raw and ">" not in raw:
            return raw
        if not final and (start := _TAG_START.search(raw)):
            self._raw, raw = raw[start.start() :], raw[: start.start()]
        pieces: list[str] = []
        position = 0
        for tag in _TAG.finditer(raw):
            pieces.append(_without_brackets(raw[position : tag.start()]))
            pieces.append(self._known(tag.group()))
            position = tag.end()
        pieces.append(_without_brackets(raw[position:]))
        return "".join(pieces)

    def _known(self, tag: str) -> str:
        name = tag[1:-1].strip().lower()
        if name in TAGS:
            return f"<{name}>"
        self.unknown_tags += 1
        return ""

    def _append(self, text: str) -> None:
        """Append, with white space collapsed and sentences joined, as if character by character.

        White space becomes one space, one line end, or two for a blank line. The joining rule turns
        `friend.How` into `friend. How`.
        """
        start = max(self._buffer.rfind(" "), self._buffer.rfind("\n")) + 1
        before, word = self._buffer[:start], self._buffer[start:]
        ended = before.rstrip(" \n")
        pieces, space = [ended], before[len(ended) :]
        joints = _JOINT.search(word[-1:] + text) is not None
        for run in _RUN.findall(text):
            if run[0] in " \n":
                if word:
                    pieces += (space, word)
                    space = word = ""
                if space or pieces[-1]:  # nothing is put before the first word
                    space = _collapsed(space + run)
                continue
            known, word = len(word), word + run
            if joints:
                begin = 0
                for joint in _JOINT.finditer(word, max(0, known - 1)):
                    end = joint.end()
                    if word[end].isupper() and _ends_word(word, begin, end):
                        pieces += (space, word[begin:end])
                        space, begin = " ", end
                word = word[begin:]
        self._buffer = "".join((*pieces, space, word))
        self._measure()

    def _measure(self) -> None:
        """Carry the estimate on through the buffer; note where the text gets too long."""
        if self._overflow is not None:
            return
        most, cost, costed = MAX_SEGMENT_SECONDS * 1000, self._cost, self._costed
        for character in itertools.islice(self._buffer, costed, None):
            cost += _MILLISECONDS[character]
            costed += 1
            if cost > most:
                self._overflow = costed - 1
                break
        self._cost, self._costed = cost, costed

    def _cut_closed(self, end: int, segments: list[str]) -> None:
        """Cut everything before `end`, after which the text is known to pause."""
        remaining = len(self._buffer) - end
        self._cut(end, closed=True, segments=segments)
        rest = len(self._buffer) - remaining
        self._emit(rest, segments)

    def _cut(self, end: int, *, closed: bool, segments: list[str]) -> None:
        """Cut all complete sentences of `_buffer[:end]`; `closed` when its last word is complete."""
        while True:
            boundary = None if self._mode == "flush" else self._boundary(end, closed=closed)
            if boundary is None and self._overflow is not None and self._overflow < end:
                boundary = self._overflow_cut()
            if boundary is None:
                return
            end -= boundary
            self._emit(boundary, segments)

    def _boundary(self, end: int, *, closed: bool) -> int | None:
        """Index after the first sentence, if it is decided; remembers what was decided against."""
        buffer = self._buffer
        pattern = _CLAUSE_CANDIDATE if self._mode == "clause" and self._first else _CANDIDATE
        limit = end if self._overflow is None else min(end, self._overflow)
        while candidate := pattern.search(buffer, self._scanned, limit):
            word = _TOKEN.match(buffer, candidate.end(), end)
            if word is None or (word.end() >= limit and not (closed and limit == end)):
                return None
            if self._is_boundary(candidate, buffer[: word.end()]):
                return candidate.end()
            self._scanned = candidate.end()
        return None

    def _is_boundary(self, candidate: re.Match[str], window: str) -> bool:
        if candidate.group()[0] in ",;:—":
            return len(window[: candidate.start()].split()) >= CLAUSE_MIN_WORDS
        position = 0
        for sentence in sentencex.segment("en", window):
            position += len(sentence)
            if position >= candidate.end():
                break
        return position == candidate.end()

    def _overflow_cut(self) -> int:
        """Index to cut a sentence at that is too long to speak in one go."""
        assert self._overflow is not None
        text = self._buffer[: self._overflow]
        clause = max(text.rfind(mark) for mark in (", ", "; ", ": ", "— "))
        if clause > len(text) // 2:
            return clause + 2
        space = max(text.rfind(" "), text.rfind("\n"))
        if space > 0:
            return space + 1
        # A single word longer than a segment has no good place; anywhere outside a tag will do.
        tag = text.rfind("<")
        return tag if tag > 0 else len(text)

    def _emit(self, end: int, segments: list[str]) -> None:
        segment = " ".join(self._buffer[:end].split())
        self._drop(end)
        if has_words(segment):
            segments.append(segment)
            self._first = False

    def _drop(self, end: int) -> None:
        """Take `_buffer[:end]` away. Every character is measured once, however text is cut."""
        if end >= self._costed:
            self._cost, self._costed = 0, 0
        else:
            self._cost -= _duration(self._buffer[:end])
            self._costed -= end
        # What was measured last may be too long by itself, now that less stands before it.
        over = self._cost > MAX_SEGMENT_SECONDS * 1000
        self._overflow = self._costed - 1 if over else None
        self._buffer = self._buffer[end:]
        self._scanned = 0
        self._measure()


def has_words(text: str) -> bool:
    """Whether there is anything to say: a letter, a digit or a tag."""
    return any(character.isalnum() for character in text)


def estimate_seconds(text: str) -> float:
    """Upper estimate of how long `text` takes to say, in seconds."""
    return _duration(text) / 1000


def word_times(text: str, start_ms: float, end_ms: float) -> list[tuple[str, float, float]]:
    """Spread the words of a segment over its time by their estimated length."""
    words = text.split()
    costs = [estimate_seconds(word + " ") for word in words]
    total = sum(costs)
    times: list[tuple[str, float, float]] = []
    spent = 0.0
    for word, cost in zip(words, costs, strict=True):
        begin = start_ms + (end_ms - start_ms) * spent / total
        spent += cost
        times.append((word, begin, start_ms + (end_ms - start_ms) * spent / total))
    return times


def split_spoken(text: str, fraction: float) -> tuple[str, str]:
    """Split a segment into the words heard and not heard after `fraction` (0…1) of its time."""
    heard = [word for word, _, end in word_times(text, 0.0, 1.0) if end <= fraction + 1e-9]
    return " ".join(heard), " ".join(text.split()[len(heard) :])


def _milliseconds(character: str) -> int:
    """What one character adds to the length of speech, estimated from above.

    Fitted to the embedded voice: 16 characters a second in ordinary text, single letters about
    0.2 s each, digits up to 0.6 s each when they are read as one long number.
    """
    if character.islower():
        return 45
    if character.isspace():
        return 130
    if character.isdigit():
        return 600
    if character.isalpha():
        return 200
    return 150 if character in ".,;:!?'\"-()…" else 500


class _Milliseconds(dict[str, int]):
    """`_milliseconds` of each character: kept for ASCII, found out anew for the million others."""

    def __missing__(self, character: str) -> int:
        return _milliseconds(character)


_MILLISECONDS: Final = _Milliseconds((chr(i), _milliseconds(chr(i))) for i in range(128))


def _duration(text: str) -> int:
    """Milliseconds that the characters of a text come to."""
    return sum(map(_MILLISECONDS.__getitem__, text))


def _ends_word(text: str, begin: int, end: int) -> bool:
    """Whether `text[begin:end]`, without its last character, ends in a word wholly lowercase, of two letters or more.

    Looked for from the end: the text may have no white space for thousands of characters.
    """
    start = end = end - 1
    while start > begin and _IS_LOWER(text, start - 1):
        start -= 1
    return end - start >= 2 and not (start > begin and _IS_LETTER(text, start - 1))


def _ends_sentence(text: str) -> bool:
    """Whether a sentence certainly ends here: an ordinary word, end punctuation, no abbreviation."""
    if not _ORDINARY_END.search(text):
        return False
    # A name may follow an abbreviation as well as a sentence, so the library must be sure.
    *_, last = sentencex.segment("en", f"{text} Smith")
    return bool(last == "Smith")


def _collapsed(space: str) -> str:
    """One line end, two for a blank line, or else one space."""
    return "\n" * min(2, space.count("\n")) or " "


def _speakable(unusual: re.Match[str]) -> str:
    """The character, a space for other white space, or nothing for what has no sound."""
    character = unusual.group()
    if character.isascii():  # and not printable
        return " " if character.isspace() else ""
    category = unicodedata.category(character)
    if category[0] == "Z":
        return " "
    if category[0] == "C" or "\ufe00" <= character <= "\ufe0f":
        return ""
    # Arrows, dingbats and emoji; the symbols before them (© ° ™) have names people say.
    if category in ("So", "Sk") and character >= "\u2190":
        return ""
    return character


def _without_brackets(text: str) -> str:
    """`<` and `>` that are not a tag: they must not meet again as one once a tag between is gone."""
    return text.replace("<", " ").replace(">", " ")
