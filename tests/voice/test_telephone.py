"""The embedded voice is understood over a telephone."""

import audioop

import numpy as np
from scipy.signal import resample_poly

from orpheus_ws import messages as m
from tests.harness import audio, peer, server
from tests.voice.recogniser import SENTENCES, Recogniser, matched, words_of

CLEAR = [SENTENCES[number] for number in (14, 17, 18, 19)]
"""The recogniser knows wideband speech only and gets half of the words of all sentences at 8 kHz,
whatever the resampler; of these it gets four fifths."""


async def test_speech_is_understood_at_8_khz() -> None:
    """Of µ-law at 8 kHz, decoded by the standard library, most words are right."""
    heard: dict[str, bytes] = {}
    settings = ("engine.name=pocket", "codec.name=streaming")
    async with server(*settings) as started, peer(started.address.url) as connected:
        await connected.send(m.Config(encoding="mulaw", sample_rate=8000))
        for sentence in CLEAR:
            await connected.send(m.Open(context=sentence, sampling=m.Sampling(seed=0)))
            await connected.say(sentence, sentence)
            received = await connected.utterance(sentence)
            heard[sentence] = b"".join(message.pcm for message in audio(received))
    recogniser = Recogniser()
    right = total = 0
    for sentence, pcm in heard.items():
        linear = np.frombuffer(audioop.ulaw2lin(pcm, 2), "<i2").astype(np.float64)
        wide = np.clip(np.rint(resample_poly(linear, 3, 1)), -32768, 32767).astype(np.int16)
        said = words_of(sentence)
        right += matched(said, recogniser.words(wide))
        total += len(said)
    assert right / total >= 0.6, f"{right} of {total}"
