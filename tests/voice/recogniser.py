"""A speech recogniser, to check that speech is speech.

Rule: words are counted as right when they are in the longest matching blocks of what was said and
what was heard; the figures of the embedded voice's README were made the same way.
"""

import difflib
import re
from pathlib import Path

import numpy as np
import pocketsphinx
from numpy.typing import NDArray
from scipy.signal import resample_poly

SENTENCES = tuple(
    (Path(__file__).parents[1] / "data" / "pocket" / "sentences.txt")
    .read_text(encoding="utf-8")
    .strip()
    .splitlines()
)


class Recogniser:
    """English, 24 kHz 16-bit in, words out."""

    def __init__(self) -> None:
        self._decoder = pocketsphinx.Decoder(samprate=16_000, loglevel="FATAL")

    def words(self, samples: NDArray[np.int16]) -> list[str]:
        """What is heard in 24 kHz samples."""
        resampled = resample_poly(samples.astype(np.float64), 2, 3)
        self._decoder.start_utt()
        self._decoder.process_raw(
            np.clip(resampled, -32768, 32767).astype("<i2").tobytes(), full_utt=True
        )
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return [] if hypothesis is None else words_of(hypothesis.hypstr)


def words_of(text: str) -> list[str]:
    """The words of a text as the recogniser spells them."""
    return re.findall(r"[a-z']+", text.lower())


def matched(said: list[str], heard: list[str]) -> int:
    """How many of the words said were heard, in order."""
    matcher = difflib.SequenceMatcher(a=said, b=heard, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks())
