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


class Script(NamedTuple):
    """A turn, as pieces that are sent one after the other."""

    size: str
    pieces: tuple[str, ...]
    completing: int
    """Which piece completes the first segment, counted from 0."""
    chars: int
    """Of all segments, as the server counts them."""

    @property
    def seconds(self) -> float:
        """About how long it takes to say."""
        return self.chars / CHARS_PER_SECOND


@lru_cache(maxsize=1)
def turns() -> dict[str, tuple[str, ...]]:
    """The corpus by size."""
    text = resources.files("orpheus_ws").joinpath("data/turns.toml").read_text(encoding="utf-8")
    return {size: tuple(texts) for size, texts in tomllib.loads(text).items()}


@lru_cache(maxsize=1024)
def script(size: str, text: str, *, words: bool) -> Script:
    """A text to be sent in words or whole.

    The segmenter is the server's, so it is known when the server may begin: no timer of its own
    releases text from a model that writes more than three words a second.
    """
    pieces = tuple(f"{word} " for word in text.split()) if words else (text,)
    segmenter = Segmenter()
    completing: int | None = None
    chars = 0
    for number, piece in enumerate(pieces):
        segments = segmenter.feed(piece)
        chars += sum(map(len, segments))
        if segments and completing is None:
            completing = number
    chars += sum(map(len, segmenter.flush()))
    return Script(size, pieces, len(pieces) - 1 if completing is None else completing, chars)


def choose(chance: random.Random, sizes: tuple[float, float, float], *, words: bool) -> Script:
    """The next turn of somebody."""
    (size,) = chance.choices(SIZES, sizes)
    return script(size, chance.choice(turns()[size]), words=words)
