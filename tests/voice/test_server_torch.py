"""The torch engine behind sockets, with the tiny checkpoint."""

import asyncio
from pathlib import Path

from orpheus_ws import messages as m
from tests.harness import pcm, peer, server, turns_until

SENTENCE = "The quick brown fox jumps over the lazy dog."


def torch_engine(checkpoint: Path, capacity: int) -> tuple[str, ...]:
    """Settings of a server that speaks with the checkpoint."""
    return (
        "engine.name=torch",
        f"engine.options.model={checkpoint}",
        "engine.options.context=1024",
        f"engine.capacity={capacity}",
    )


async def test_sixteen_sockets_share_the_steps(tiny_checkpoint: Path) -> None:
    """16 sockets speak at once: each hears what it hears alone, and they share the engine's steps."""

    async def speak(url: str, seed: int) -> bytes:
        async with peer(url) as connected:
            sampling = m.Sampling(seed=seed)
            await connected.send(m.Open(context="a", sampling=sampling))
            await connected.say("a", SENTENCE)
            received = await connected.utterance("a")
            done = received[-1]
            assert isinstance(done, m.Done)
            assert done.reason == "end"
            assert len(pcm(received)) == round(done.audio_ms * 48)
            return pcm(received)

    async with server(*torch_engine(tiny_checkpoint, 16)) as started:
        url = started.address.url
        alone = await speak(url, 0)
        before = started.engine.statistics()
        heard = await asyncio.gather(*(speak(url, seed) for seed in range(16)))
        after = started.engine.statistics()
    assert heard[0] == alone
    assert len(set(heard)) == 16
    # One after the other they would take a step for each id.
    assert after.steps - before.steps < (after.tokens - before.tokens) / 2


async def test_cancelling_frees_the_slot(tiny_checkpoint: Path) -> None:
    """A cancel in mid-speech frees the engine's slot, and the socket speaks again."""
    async with (
        server(*torch_engine(tiny_checkpoint, 1)) as started,
        peer(started.address.url) as connected,
    ):
        await connected.send(m.Text(context="a", text=f"{SENTENCE[:-1]}, " * 8), m.End(context="a"))
        await connected.wait_for(m.Audio)
        await connected.send(m.Cancel(context="a"))
        assert isinstance((await connected.utterance("a"))[-1], m.Cancelled)
        await turns_until(lambda: started.engine.statistics().active == 0)
        await connected.say("b", "Hi.")
        received = await connected.utterance("b")
        assert isinstance(received[-1], m.Done)
        assert pcm(received)
