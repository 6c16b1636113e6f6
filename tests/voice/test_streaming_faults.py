"""When a step fails, and when a slot is used again: nobody else hears of it."""

import asyncio
import contextlib
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.audio import MOST_FRAMES, Portion
from orpheus_ws.codec import CodecStream, Work
from orpheus_ws.codec.loop import CodecLoop
from orpheus_ws.codec.network import StreamingNetwork
from orpheus_ws.codec.passes import Batch, EagerPasses
from orpheus_ws.codec.streaming import StreamingDecoder
from orpheus_ws.codec.window import decode_whole
from orpheus_ws.errors import Internal
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import Frame
from tests.voice.codec_models import (
    PLANS,
    Plan,
    assert_is,
    assert_same,
    play,
    play_one,
    random_frames,
    small_model,
)

ALL = Portion(1, MOST_FRAMES)


class BrokenPasses(EagerPasses):
    """Fails when it is told to: before it has run, or after it has changed the states."""

    def __init__(self, network: StreamingNetwork, slots: int) -> None:
        super().__init__(network, slots)
        self.fails_in: int | None = None
        """How many passes from now; None: never."""
        self.late = False

    def run(self, batch: Batch) -> Samples:
        """Run, or fail."""
        failing = self.fails_in == 0
        if self.fails_in is not None:
            self.fails_in -= 1
        if failing and not self.late:
            raise RuntimeError("the device fell off the bus")
        samples = super().run(batch)
        if failing:
            raise RuntimeError("the device fell off the bus on the way back")
        return samples

    def poison(self) -> None:
        """Leave the worst that streams can leave behind in every row but the blank one."""
        self._states[: self.blank] = torch.nan
        self._states[self.waste] = torch.nan


def broken(slots: int, early_frames: int = 0) -> tuple[StreamingDecoder, BrokenPasses]:
    """A decoder that can be broken."""
    passes = BrokenPasses(StreamingNetwork(small_model()), slots)
    return StreamingDecoder(passes, slots, early_frames=early_frames), passes


# Slots ----------------------------------------------------------------------------------------------


@given(plans=st.lists(PLANS, min_size=1, max_size=6), slots=st.integers(1, 3), early=st.booleans())
@settings(max_examples=15, deadline=None)
def test_a_slot_leaves_nothing(plans: list[Plan], slots: int, early: bool) -> None:
    """In slots whose state is poisoned streams sound, to the bit, as in new ones."""
    clean, _ = broken(slots, early_frames=2)
    decoder, passes = broken(slots, early_frames=2)
    passes.poison()
    sounds = [play(each, plans, early=early) for each in (clean, decoder)]
    for fresh, used in zip(*sounds, strict=True):
        np.testing.assert_array_equal(fresh, used)


def test_a_slot_is_fresh_after_anything() -> None:
    """A slot used by a stream that was cancelled, ended, began early or failed is as good as new."""
    decoder, passes = broken(1, early_frames=2)
    said = random_frames(9, seed=9)
    whole = decode_whole(small_model(), said)
    for before in (0, 1, 2, 5):
        for ended in (True, False):
            decoder.reset(0, seed=0, early=True)
            decoder.step([Work(0, random_frames(before), last=ended)])
            assert_same(play_one(decoder, said, [2]), whole)
    for late in (True, False):
        decoder.reset(0, seed=0, early=False)
        passes.fails_in, passes.late = 1, late
        with pytest.raises(RuntimeError):
            decoder.step([Work(0, random_frames(13), last=True)])
        assert_same(play_one(decoder, said, [2]), whole)


# Steps that fail ------------------------------------------------------------------------------------


@given(
    lost=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    before=st.lists(st.integers(0, 6), min_size=2, max_size=2),
    fails_in=st.integers(0, 3),
    late=st.booleans(),
    last=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_others_are_exact_after_a_failed_step(
    lost: list[int], before: list[int], fails_in: int, late: bool, last: bool
) -> None:
    """Wherever in a step it fails, streams that were not in it, and streams that take the slots of
    those that were, are exact."""
    decoder, passes = broken(5, early_frames=2)
    pieces: dict[int, list[Samples]] = {3: [], 4: []}
    for slot, count in zip(pieces, before, strict=True):
        decoder.reset(slot, seed=0, early=False)
        pieces[slot] += decoder.step([Work(slot, random_frames(count, slot), last=False)])
    for slot in range(len(lost)):
        decoder.reset(slot, seed=0, early=slot == 0)
    passes.fails_in, passes.late = fails_in, late
    with contextlib.suppress(RuntimeError):  # the step may be over before the pass that fails
        decoder.step([Work(slot, random_frames(n, slot), last) for slot, n in enumerate(lost)])
    passes.fails_in = None
    for slot, count in zip(pieces, before, strict=True):
        rest = random_frames(12, slot)[count:]
        pieces[slot] += decoder.step([Work(slot, rest, last=True)])
        assert_same(
            np.concatenate(pieces[slot]), decode_whole(small_model(), random_frames(12, slot))
        )
    plans = [Plan(7, [2, 1], seed=seed) for seed in range(6)]
    for plan, samples in zip(plans, play(decoder, plans), strict=True):
        assert_is(plan, samples, small_model())


async def taken(stream: CodecStream) -> Samples:
    """All that is left of a stream."""
    pieces = [np.zeros(0, np.float32)]
    while len(samples := await stream.take(ALL)):
        pieces.append(samples)
    return np.concatenate(pieces)


def opened(loop: CodecLoop, frames: Sequence[Frame]) -> CodecStream:
    """A stream that has all its frames but has not ended."""
    stream = loop.open(seed=0, early=False)
    stream.push(frames)
    return stream


@pytest.mark.parametrize("late", [True, False])
async def test_a_failed_pass_fails_its_streams_only(late: bool) -> None:
    """In the loop, a pass that fails is `Internal` for the streams of its step; one that was open
    goes on exactly, and the slots of the others can be used again."""
    decoder, passes = broken(3)
    loop = await CodecLoop.start(lambda: decoder)
    said = [random_frames(12, seed) for seed in range(3)]
    bystander = opened(loop, said[0])
    first = await bystander.take(Portion(4, 4))
    unlucky = [opened(loop, frames) for frames in said[1:]]
    passes.fails_in, passes.late = 0, late
    outcomes = await asyncio.gather(*map(taken, unlucky), return_exceptions=True)
    passes.fails_in = None
    assert [type(outcome) for outcome in outcomes] == [Internal, Internal]
    for stream in unlucky:
        with pytest.raises(Internal):
            await stream.take(ALL)
        stream.close()
    bystander.finish()
    whole = [decode_whole(small_model(), frames) for frames in said]
    assert_same(np.concatenate((first, await taken(bystander))), whole[0])
    again = [opened(loop, frames) for frames in said[1:]]
    for stream, expected in zip(again, whole[1:], strict=True):
        stream.finish()
        assert_same(await taken(stream), expected)
    await loop.close()
