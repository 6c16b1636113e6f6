"""How close the early beginning of a stream is to the exact one.

Rule: streams are made to begin at every frame of an utterance, also where it is far louder than an
utterance is when it begins; what nobody hears is left out. `python -m tests.voice.early_quality`
measures the embedded voice and prints a table.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

import numpy as np
from torch import nn

from orpheus_ws.audio import AUDIBLE
from orpheus_ws.codec.early import FADE, early_samples
from orpheus_ws.codec.network import DELAY
from orpheus_ws.codec.window import decode_whole
from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Prompt
from orpheus_ws.engine.pocket import open_engine
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import SAMPLES_PER_FRAME, Frame, FrameAssembler
from tests.voice.codec_models import golden_frames, play_one, pocket_model, streaming
from tests.voice.recogniser import SENTENCES


class Quality(NamedTuple):
    """Of all audible beginnings, after so many frames."""

    frames: int
    beginnings: int
    median: float
    """Signal-to-error ratio in dB of what is given early, against the exact samples."""
    low: float
    """The 10th percentile of that."""
    step: float
    """Largest step from one sample to the next at the join, of full scale."""
    own: float
    """Largest step that the exact samples have there."""
    excess: float
    """Largest step there of the difference between the two."""


def early_quality(model: nn.Module, utterances: Sequence[Sequence[Frame]], frames: int) -> Quality:
    """Begin a stream at every frame of each utterance, early after `frames` of them."""
    decoder = streaming(model, early_frames=frames)
    given = early_samples(frames)
    enough = -(-(given + FADE + DELAY) // SAMPLES_PER_FRAME) + 1
    ratios, steps = [], []
    for utterance in utterances:
        for first in range(len(utterance) - enough):
            said = utterance[first : first + enough]
            exact = decode_whole(model, said)
            if np.abs(exact[:given]).max() < AUDIBLE:
                continue
            early = play_one(decoder, said, [frames, 1], early=True)
            error = early - exact
            ratios.append(10 * np.log10(energy(exact[:given]) / energy(error[:given])))
            join = slice(given - 1, given + FADE + 1)
            steps.append([np.abs(np.diff(each[join])).max() for each in (early, exact, error)])
    step, own, excess = np.max(steps, axis=0)
    median, low = np.percentile(ratios, [50, 10])
    return Quality(
        frames, len(ratios), *(round(float(x), 4) for x in (median, low, step, own, excess))
    )


def energy(samples: Samples) -> float:
    """Of some samples; never 0."""
    return float(np.square(samples, dtype=np.float64).sum()) + 1e-20


async def spoken(sentences: Sequence[str]) -> list[list[Frame]]:
    """What the pocket engine says of each sentence."""
    engine = await open_engine(EngineConfig())
    utterances = []
    for text in sentences:
        assembler, said = FrameAssembler(), []
        request = Prompt(text=text, voice=engine.voices[0], seed=1, max_tokens=2048)
        async with aclosing(engine.generate(request)) as groups:
            async for ids in groups:
                said += assembler.push(ids)
        utterances.append(said)
    await engine.close()
    return utterances


def main() -> None:
    """Print the table."""
    utterances = [golden_frames(), *asyncio.run(spoken(SENTENCES[:6]))]
    print(f"{len(utterances)} utterances, {sum(map(len, utterances))} frames")  # noqa: T201
    for frames in (1, 2, 3):
        print(early_quality(pocket_model(), utterances, frames))  # noqa: T201


if __name__ == "__main__":
    main()
