"""The server's codec is batched as it is configured."""

import pytest

from orpheus_ws import messages as m
from orpheus_ws.codec.policy import Dynamic, InFlight
from orpheus_ws.errors import StartupError
from tests.harness import pcm, server
from tests.server_peers import SENTENCE, one


@pytest.mark.parametrize(("batching", "kind"), [("in_flight", InFlight), ("dynamic", Dynamic)])
async def test_either_batching_speaks(batching: str, kind: type) -> None:
    """Both policies can be chosen, and what is heard does not depend on which."""
    async with one(f"codec.batching={batching}", "codec.max_batch=2") as (started, peer):
        assert isinstance(started.codec._policy, kind)
        await peer.send(m.Config(sampling=m.Sampling(seed=1)))
        await peer.say("a", SENTENCE)
        heard = pcm(await peer.utterance("a"))
    async with one() as (_, peer):
        await peer.send(m.Config(sampling=m.Sampling(seed=1)))
        await peer.say("a", SENTENCE)
        assert pcm(await peer.utterance("a")) == heard


@pytest.mark.parametrize(("weights", "warned"), [("pocket", True), ("/nowhere", False)])
async def test_orpheus_with_the_codec_of_the_embedded_voice(
    weights: str, *, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It would speak noise, so the log says which weights are needed before anything is loaded."""
    orpheus = ("engine.name=torch", "codec.name=streaming", f"codec.weights={weights}")
    with pytest.raises(StartupError):
        async with server(*orpheus):
            pass
    assert ("snac_24khz" in caplog.text) is warned
