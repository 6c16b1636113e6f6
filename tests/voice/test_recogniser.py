"""The embedded voice over a real socket is understood, and noise is not."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from orpheus_ws import messages as m
from orpheus_ws.tokens import SAMPLES_PER_FRAME
from tests.harness import pcm, peer, server
from tests.voice.recogniser import ALIGNMENTS, SENTENCES, Recogniser, matched, words_of

OFFLINE = 0.943
"""What the codec reaches without a server, by the README beside its weights."""

Spoken = dict[str, NDArray[np.int16]]


async def speak_all() -> Spoken:
    """Every sentence, spoken by the default server over one socket."""
    spoken: Spoken = {}
    settings = ("engine.name=pocket", "codec.name=streaming")
    async with server(*settings) as started, peer(started.address.url) as connected:
        for number, sentence in enumerate(SENTENCES):
            await connected.send(m.Open(context=f"s{number}", sampling=m.Sampling(seed=0)))
            await connected.say(f"s{number}", sentence)
            received = await connected.utterance(f"s{number}")
            assert isinstance(received[-1], m.Done)
            spoken[sentence] = np.frombuffer(pcm(received), "<i2")
    return spoken


def share(spoken: Spoken, alignments: Sequence[int]) -> float:
    """Share of all words that the recogniser gets right, on average."""
    right = total = 0
    for delay in alignments:
        recogniser = Recogniser()
        for sentence, samples in spoken.items():
            said = words_of(sentence)
            right += matched(said, recogniser.words(samples, delay=delay))
            total += len(said)
    return right / total


def shuffled(samples: NDArray[np.int16]) -> NDArray[np.int16]:
    """The same sound with its frames in another order: the control."""
    count = len(samples) // SAMPLES_PER_FRAME
    frames = list(samples[: count * SAMPLES_PER_FRAME].reshape(count, -1))
    random.Random(0).shuffle(frames)
    return np.concatenate(frames)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_speech_is_understood() -> None:
    """Within 3 points of the words that the codec brings across offline; shuffled, under 20 %."""
    spoken = await speak_all()
    understood = share(spoken, ALIGNMENTS)
    noise = {sentence: shuffled(samples) for sentence, samples in spoken.items()}
    control = share(noise, ALIGNMENTS[:1])
    assert understood >= OFFLINE - 0.03, f"{understood:.1%}"
    assert control < 0.20, f"{control:.1%}"
