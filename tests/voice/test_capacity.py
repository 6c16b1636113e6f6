"""A full server with the embedded voice: nobody hears anybody else."""

import asyncio

import numpy as np
import pytest
from numpy.typing import NDArray

from orpheus_ws import messages as m
from tests.harness import pcm, peer, server
from tests.voice.recogniser import SENTENCES

pytestmark = [pytest.mark.slow, pytest.mark.alone]


async def test_streams_together_are_streams_alone() -> None:
    """Eight sockets at once each hear, within one step of 16 bits, what they would hear alone."""
    async with server("engine.name=pocket", "codec.name=streaming") as started:

        async def speak(number: int) -> NDArray[np.int32]:
            async with peer(started.address.url) as connected:
                await connected.send(m.Open(context="a", sampling=m.Sampling(seed=number)))
                await connected.say("a", " ".join(SENTENCES[2 * number : 2 * number + 2]))
                received = await connected.utterance("a")
                assert isinstance(received[-1], m.Done)
                return np.frombuffer(pcm(received), "<i2").astype(np.int32)

        together = await asyncio.gather(*(speak(number) for number in range(8)))
        for number, samples in enumerate(together):
            alone = await speak(number)
            assert len(samples) == len(alone)
            assert np.abs(samples - alone).max() <= 1
        assert started.engine.statistics().active == 0
        assert started.codec.statistics().streams == 0
