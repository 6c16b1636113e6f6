"""What segmenting costs: in proportion to the text, whatever it is. The event loop does it."""

import math
import time
from typing import get_args

import pytest

from orpheus_ws.text import Mode, Segmenter

FEW, MANY = 4000, 16_000
"""Characters; a message may have 20 000."""
NOTHING = 0.02
"""Seconds of CPU time that are no trouble, and that a look at the clock may be wrong by."""

MOST_LOOKS = 10
"""At the clock. What costs sixteen times as much does so at every one."""

HOSTILE = {
    "sentences joined without a space": "ab.B",
    "a word without an end": "a",
    "capitals without an end": "A",
    "end marks": "Ab.!?…",
    "short words": "a ",
    "short sentences": "No. ",
    "abbreviations": "e.g. ",
    "titles": "Mr. A. ",
    "numbers": "1. ",
    "clauses": "a, b; c: d — ",
    "quotes": "\" .' ” ",
    "brackets that open": "<",
    "brackets that open words": "<a ",
    "tags": "<laugh>",
    "tags of others": "<b>x</b>",
    "attributes": "<a b='",
    "blank lines": "a\n\n",
    "what has no sound": "\u200b🎉",
    "combining marks": "e\u0301",
}


def cost(text: str, size: int, mode: Mode) -> float:
    """Seconds of CPU time for a message and what is left of it."""
    segmenter = Segmenter(mode)
    begun = time.thread_time()
    for start in range(0, len(text), size):
        segmenter.feed(text[start : start + size])
    segmenter.release()
    segmenter.flush()
    return time.thread_time() - begun


@pytest.mark.parametrize("pattern", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("size", [MANY, 100])
def test_a_longer_text_costs_no_more_a_character(pattern: str, mode: Mode, size: int) -> None:
    """Four times the text takes about four times as long, not sixteen, in one message or in many.

    Both are measured in turn, as often as a machine that is slower at times asks for: the least of each counts.
    """
    few = many = math.inf
    for _ in range(MOST_LOOKS):
        few, many = (
            min(least, cost(pattern * (count // len(pattern)), size, mode))
            for least, count in ((few, FEW), (many, MANY))
        )
        if many < 8 * few + NOTHING:
            return
    pytest.fail(f"{MANY} characters take {many:.3f} s, and {FEW} take {few:.3f} s")
