"""A speech recogniser, to check that speech is speech.

Rule: words are counted as right when they are in the longest matching blocks of what was said and
what was heard, as for the figures in the README beside the embedded voice's weights.

The recogniser cuts sound into frames of 10 ms from its first sample on and adapts to the silence
before speech. With the same sound a few samples later it gets up to 3 % of the words otherwise, and
without silence it does worse. So sound is played to it in a quiet room, and a figure is the mean
over `ALIGNMENTS`.
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


ALIGNMENTS = (0, 60, 120, 180)
"""Samples by which sound is delayed: quarters of the recogniser's 10 ms."""

_ROOM = np.rint(np.random.default_rng(0).normal(0, 33, 7200 + max(ALIGNMENTS))).astype(np.int16)
"""300 ms of noise at −60 dB."""


class Recogniser:
    """English, 24 kHz 16-bit in, words out."""

    def __init__(self) -> None:
        self._decoder = pocketsphinx.Decoder(samprate=16_000, loglevel="FATAL")

    def words(self, samples: NDArray[np.int16], *, delay: int = 0) -> list[str]:
        """What is heard in 24 kHz samples, played after 300 ms and `delay` samples of silence."""
        heard = np.concatenate((_ROOM[: 7200 + delay], samples, _ROOM[:7200]))
        resampled = resample_poly(heard.astype(np.float64), 2, 3)
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
