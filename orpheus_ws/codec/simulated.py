"""A decoder that needs no model: every frame is a short tone that tells which frame it was.

Rule: it obeys the contract exactly and costs next to nothing, so that everything around the codec
can be tested and measured without torch. It is a test signal, not speech. A frame of zeros is
silence; any other is a sine of whole periods, so frames join without a step.
"""

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from orpheus_ws.codec import Decoder, Work
from orpheus_ws.config import CodecConfig
from orpheus_ws.pcm import Samples
from orpheus_ws.settings import read_options
from orpheus_ws.tokens import SAMPLES_PER_FRAME, Frame

LOWEST_PERIODS: Final = 16
TONES: Final = 128


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step takes, asleep: `step_seconds + stream_seconds * streams`."""

    step_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """What every step takes."""
    stream_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """What every stream adds to a step."""


def open_decoder(config: CodecConfig) -> Decoder:
    """Cannot fail but for wrong options (`StartupError`)."""
    options = read_options(config.options, Options, "codec.options")
    return ToneDecoder(slots=config.slots or 64, options=options)


def periods(frame: Frame) -> int:
    """How many periods of the tone stand for `frame`: 0 for silence, else 16…143."""
    return 0 if not any(frame) else LOWEST_PERIODS + (sum(frame) + frame[0]) % TONES


@lru_cache(maxsize=TONES + 1)
def tone(count: int) -> Samples:
    """One frame of a sine of `count` periods."""
    phase = np.arange(SAMPLES_PER_FRAME) * (2 * np.pi * count / SAMPLES_PER_FRAME)
    samples: Samples = (0.3 * np.sin(phase)).astype(np.float32)
    samples.flags.writeable = False
    return samples


class ToneDecoder:
    """`Decoder` of tones; it looks nowhere ahead."""

    max_frames = 64

    def __init__(self, slots: int, options: Options) -> None:
        self.slots = slots
        self._options = options

    def first_frames(self, *, early: bool) -> int:
        """See `Decoder`: every frame can be heard at once."""
        return 1

    def reset(self, slot: int, *, seed: int, early: bool) -> None:
        """See `Decoder`: a tone depends on its frame alone, so there is nothing to forget."""

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """See `Decoder`."""
        cost = self._options.step_seconds + self._options.stream_seconds * len(batch)
        if cost > 0:
            time.sleep(cost)  # stands for a device at work: the thread waits, the GIL is free
        return [
            np.concatenate([tone(periods(frame)) for frame in work.frames])
            if work.frames
            else np.zeros(0, np.float32)
            for work in batch
        ]
