"""What is said: turns of a conversation, from a file, taken at random with a seed.

Rule: what a plan with a seed says is the same in every run.
"""

import random
import tomllib
from functools import lru_cache
from importlib import resources
from typing import Final, NamedTuple

from orpheus_ws.text import Segmenter

SIZES: Final = ("short", "medium", "long")
CHARS_PER_SECOND: Final = 15.0
"""About how fast English is spoken."""

TURNS: Final[dict[str, list[str]]] = tomllib.loads(
    resources.files("orpheus_ws").joinpath("data/turns.toml").read_text(encoding="utf-8")
)
"""The corpus by size."""


class Script(NamedTuple):
    """A turn, as pieces that are sent one after the other."""

    size: str
    pieces: tuple[str, ...]
    completing: int
    """Which piece completes the first segment, counted from 0."""
    chars: int
    """Of all of it, the spaces between sentences included."""

    @property
    def seconds(self) -> float:
        """About how long it takes to say."""
        return self.chars / CHARS_PER_SECOND


def script(size: str, text: str, *, words: bool) -> Script:
    """A text to be sent in words or whole.

    The segmenter is the server's, so it is known when the server may begin: no timer of its own
    releases text from a model that writes more than three words a second.
    """
    pieces = tuple(f"{word} " for word in text.split()) if words else (text,)
    segmenter = Segmenter()
    completing: int | None = None
    spoken: list[str] = []
    for number, piece in enumerate(pieces):
        segments = segmenter.feed(piece)
        spoken += segments
        if segments and completing is None:
            completing = number
    spoken += segmenter.flush()
    last = len(pieces) - 1
    return Script(size, pieces, last if completing is None else completing, len(" ".join(spoken)))


@lru_cache(maxsize=2)
def scripts(*, words: bool) -> dict[str, tuple[Script, ...]]:
    """The whole corpus by size. It takes a moment, once, so ask before time counts."""
    return {
        size: tuple(script(size, text, words=words) for text in texts)
        for size, texts in TURNS.items()
    }


def choose(chance: random.Random, sizes: tuple[float, float, float], *, words: bool) -> Script:
    """The next turn of somebody."""
    (size,) = chance.choices(SIZES, sizes)
    return chance.choice(scripts(words=words)[size])
