"""The torch engine behind sockets, with the tiny checkpoint."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from orpheus_ws import messages as m
from orpheus_ws.engine import Prompt
from orpheus_ws.engine.torch_batch import Batch
from orpheus_ws.server import Server
from orpheus_ws.tokens import CODES_PER_FRAME, SAMPLES_PER_FRAME
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


class Asked:
    """What the engine of a server gives from now on, by the seed of whoever asked."""

    def __init__(self, started: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: Counter[int] = Counter()
        self.left_at: dict[int, int] = {}
        """The engine's step when its consumer had left."""
        self.freed_at: list[int] = []
        """Its step whenever its thread made a slot free."""
        self._engine = started.engine
        self._generate = started.engine.generate
        self._leave = Batch.leave
        monkeypatch.setattr(started.engine, "generate", self._counted)
        monkeypatch.setattr(Batch, "leave", lambda *given: self._freed(*given))

    async def _counted(self, prompt: Prompt) -> AsyncGenerator[Sequence[int], None]:
        try:
            async with aclosing(self._generate(prompt)) as groups:
                async for group in groups:
                    self.ids[prompt.seed] += len(group)
                    yield group
        finally:
            self.left_at[prompt.seed] = self._engine.statistics().steps

    def _freed(self, batch: Batch[Any], slot: int) -> None:
        self._leave(batch, slot)
        self.freed_at.append(self._engine.statistics().steps)


async def test_sixteen_sockets_share_the_steps(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 sockets speak at once: each hears what it hears alone, a frame's samples for each seven
    ids, and they share the engine's steps."""

    async def speak(url: str, seed: int) -> bytes:
        async with peer(url) as connected:
            await connected.send(m.Open(context="a", sampling=m.Sampling(seed=seed)))
            await connected.say("a", SENTENCE)
            received = await connected.utterance("a")
            done = received[-1]
            assert isinstance(done, m.Done)
            assert done.reason == "end"
            return pcm(received)

    async with server(*torch_engine(tiny_checkpoint, 16)) as started:
        url = started.address.url
        alone = await speak(url, 0)
        before = started.engine.statistics()
        asked = Asked(started, monkeypatch)
        heard = await asyncio.gather(*(speak(url, seed) for seed in range(16)))
        after = started.engine.statistics()
    assert heard[0] == alone
    assert len(set(heard)) == 16
    for seed, audio in enumerate(heard):
        frames, left = divmod(asked.ids[seed], CODES_PER_FRAME)
        assert left == 1  # end of speech
        assert len(audio) == 2 * frames * SAMPLES_PER_FRAME
    # One after the other they would take a step for each id.
    assert after.steps - before.steps < (after.tokens - before.tokens) / 2


@pytest.mark.parametrize("how", ["cancel", "disconnect"])
async def test_one_of_sixteen_leaves(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its slot is free within two steps of the engine, nothing more is generated for it, and the
    other fifteen go on; when all have gone, so has all work."""
    async with server(*torch_engine(tiny_checkpoint, 16)) as started, AsyncExitStack() as stack:
        engine = started.engine
        asked = Asked(started, monkeypatch)
        peers = [await stack.enter_async_context(peer(started.address.url)) for _ in range(16)]
        for seed, connected in enumerate(peers):
            await connected.send(m.Open(context="a", sampling=m.Sampling(seed=seed)))
            await connected.send(m.Text(context="a", text=f"{SENTENCE[:-1]}, " * 8))
            await connected.send(m.End(context="a"))
        await asyncio.gather(*(connected.wait_for(m.Audio) for connected in peers))
        assert engine.statistics().active == 16
        asked.freed_at.clear()
        if how == "cancel":
            await peers[5].send(m.Cancel(context="a"))
        else:
            peers[5].socket.transport.abort()
        await turns_until(lambda: 5 in asked.left_at)
        assert engine.statistics().active == 15
        # Its thread goes on while the event loop is at something else.
        await turns_until(lambda: bool(asked.freed_at))
        assert asked.freed_at[0] <= asked.left_at[5] + 2
        steps = engine.statistics().steps
        had = Counter(asked.ids)
        await turns_until(lambda: engine.statistics().steps > steps + 2 * CODES_PER_FRAME)
        # What the thread has made the event loop may not have given yet.
        others = set(range(16)) - {5}
        await turns_until(lambda: all(asked.ids[seed] > had[seed] for seed in others))
        assert asked.ids[5] == had[5]
        await stack.aclose()
        await turns_until(lambda: engine.statistics().active == 0)


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
