"""Passes in buckets: whatever they are padded with, a stream gets what it gets without them."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orpheus_ws.codec.graphs import LARGEST, GraphPasses
from orpheus_ws.codec.network import ENDLESS, Rows, StreamingNetwork
from orpheus_ws.codec.passes import Batch, EagerPasses, Passes
from orpheus_ws.codec.streaming import FRAME_SIZES
from tests.voice.codec_models import TOLERANCE, small_model

SLOTS = 6


class Piece(NamedTuple):
    """What a pass does for one slot."""

    begins: bool
    """With it a new stream begins, else the slot's stream goes on."""
    ends_after: int | None
    """Frames of this pass after which the stream ends; None: it does not."""
    keeps: bool
    """The new state is kept; a stream that begins early throws it away."""
    seed: int


pieces = st.builds(
    Piece, st.booleans(), st.none() | st.integers(0, 4), st.booleans(), st.integers(0, 2**18 - 1)
)
passes_to_make = st.lists(
    st.tuples(
        st.sampled_from(FRAME_SIZES),
        st.dictionaries(st.integers(0, SLOTS - 1), pieces, min_size=1, max_size=SLOTS),
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def network() -> StreamingNetwork:
    """A small model with every layer of the released one, noise included."""
    return StreamingNetwork(small_model(noisy=True))


def batches(plan: Sequence[tuple[int, dict[int, Piece]]], slots: int) -> list[Batch]:
    """The plan as batches, each with codes of its own."""
    had = [0] * slots
    made = []
    for number, (frames, work) in enumerate(plan):
        before = [0 if piece.begins else had[slot] for slot, piece in work.items()]
        ends = [piece.ends_after for piece in work.values()]
        chance = np.random.default_rng(number)
        made.append(
            Batch(
                codes=chance.integers(4096, size=(len(work), frames, 7)),
                frames=np.array(before, np.int64),
                lengths=np.array(
                    [
                        ENDLESS if end is None else begin + end
                        for begin, end in zip(before, ends, strict=True)
                    ]
                ),
                offsets=np.array([piece.seed for piece in work.values()], np.int64),
                sources=np.array(
                    [slot if begin else slots for slot, begin in zip(work, before, strict=True)]
                ),
                targets=np.array(
                    [slot if piece.keeps else slots + 1 for slot, piece in work.items()]
                ),
                edges=True,
            )
        )
        for (slot, piece), begin in zip(work.items(), before, strict=True):
            had[slot] = begin + frames if piece.keeps else had[slot]
    return made


def run(passes: Passes, made: Sequence[Batch]) -> list[np.ndarray[Any, Any]]:
    """What each batch gives, one after the other."""
    return [passes.run(batch).copy() for batch in made]


@given(plan=passes_to_make)
@settings(max_examples=40, deadline=None)
def test_padding_changes_nothing(
    network: StreamingNetwork, plan: list[tuple[int, dict[int, Piece]]]
) -> None:
    """Any passes over any streams give the same samples in buckets as without, and so does what
    the streams have kept from pass to pass."""
    made = batches(plan, SLOTS)
    bucketed = run(GraphPasses(network, SLOTS, FRAME_SIZES), made)
    plain = run(EagerPasses(network, SLOTS), made)
    for mine, other in zip(bucketed, plain, strict=True):
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, atol=TOLERANCE)


def test_batches_larger_than_every_bucket(network: StreamingNetwork) -> None:
    """A batch that no bucket holds is run in parts, none of which another overwrites."""
    frames, slots = max(FRAME_SIZES), LARGEST // max(FRAME_SIZES) * 2 + 1
    piece = Piece(begins=False, ends_after=None, keeps=True, seed=7)
    made = batches([(frames, dict.fromkeys(range(slots), piece))] * 2, slots)
    passes = GraphPasses(network, slots, FRAME_SIZES)
    assert max(streams for streams, size in passes.buckets if size == frames) < slots / 2
    for mine, other in zip(run(passes, made), run(EagerPasses(network, slots), made), strict=True):
        np.testing.assert_allclose(mine, other, atol=TOLERANCE)


@pytest.mark.parametrize("slots", [1, 2, 3, 8, 100, 300])
def test_buckets(network: StreamingNetwork, slots: int) -> None:
    """Every number of streams has a bucket less than twice as large, unless it is run in parts."""
    buckets = GraphPasses(network, slots, FRAME_SIZES).buckets
    assert len(set(buckets)) == len(buckets)
    for frames in FRAME_SIZES:
        sizes = sorted(streams for streams, size in buckets if size == frames)
        assert sizes[0] == 1
        assert sizes[-1] == min(slots, LARGEST // frames)
        assert all(b <= 2 * a for a, b in itertools.pairwise(sizes))


class NothingFromTheHost(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Refuses tensors that are neither given nor computed from what is: they came from the host."""

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {id(tensor): tensor for tensor in given}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for value in tree_leaves((args, kwargs)):
            assert not isinstance(value, torch.Tensor) or id(value) in self._known, func.name()
        result = func(*args, **(kwargs or {}))
        leaves = tree_leaves(result)
        assert all(isinstance(leaf, torch.Tensor) for leaf in leaves), f"{func.name()} is asked for"
        self._known |= {id(leaf): leaf for leaf in leaves}
        return result


def test_a_pass_can_be_captured() -> None:
    """A pass takes nothing from the host and asks it for nothing, which a CUDA graph could not
    repeat. Tried on a device without memory."""
    network = StreamingNetwork(copy.deepcopy(small_model(noisy=True))).to("meta")

    def numbers(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.int64, device="meta")

    state = torch.zeros(2, network.width, device="meta")
    rows = Rows(numbers(2, 4, 7), numbers(2), numbers(2), numbers(2), state)
    with (
        torch.inference_mode(),
        NothingFromTheHost([*rows, *network.parameters(), *network.buffers()]),
    ):
        audio, _ = network(rows, edges=True)
    assert audio.shape == (2, 4 * 2048)
