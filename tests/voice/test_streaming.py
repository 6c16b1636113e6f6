"""The streaming decoder: every stream is its own whole decode, however it is cut and shared."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.codec import Work
from orpheus_ws.codec.network import DELAY, StreamingNetwork
from orpheus_ws.codec.passes import Batch, EagerPasses
from orpheus_ws.codec.streaming import FRAME_SIZES, StreamingDecoder
from orpheus_ws.codec.weights import prepare
from orpheus_ws.codec.window import WindowDecoder, decode_whole
from orpheus_ws.pcm import Output, Samples
from orpheus_ws.tokens import SAMPLE_RATE, SAMPLES_PER_FRAME
from tests.voice.codec_models import (
    CUTS,
    PLANS,
    RELEASED,
    Plan,
    assert_is,
    assert_same,
    golden_frames,
    play,
    play_one,
    pocket_model,
    random_frames,
    random_model,
    small_model,
    streaming,
)

DEPTHWISE = pytest.mark.parametrize("depthwise", [True, False])


# Exactness ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, 41))
def test_head_and_tail(count: int) -> None:
    """head-and-tail: N frames of the embedded voice in pieces are its whole decode."""
    frames = random_frames(count, seed=count)
    sizes = [1 + count % 7, 1, 1 + count % 11]
    streamed = play_one(streaming(pocket_model()), frames, sizes, ends_late=count % 2 == 0)
    assert len(streamed) == count * SAMPLES_PER_FRAME
    assert_same(streamed, decode_whole(pocket_model(), frames))


@DEPTHWISE
def test_any_length_of_any_model(depthwise: bool) -> None:
    """N frames are N × 2048 samples and the whole decode, for either kind of convolution."""
    model = small_model(depthwise=depthwise)
    plans = [Plan(n, [1 + n % 5, 1 + n % 9], n % 2 == 0, seed=n) for n in range(61)]
    for plan, samples in zip(plans, play(streaming(model, 16), plans), strict=True):
        assert_is(plan, samples, model)


@DEPTHWISE
@given(plans=st.lists(PLANS, min_size=1, max_size=8), slots=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_any_streams_together(depthwise: bool, plans: list[Plan], slots: int) -> None:
    """Streams that join, leave, are cancelled and reuse slots at any time each equal their own
    whole decode, whatever the others bring to the same steps."""
    model = small_model(depthwise=depthwise)
    for plan, samples in zip(plans, play(streaming(model, slots), plans), strict=True):
        assert_is(plan, samples, model)


def test_streams_of_the_embedded_voice_together() -> None:
    """The embedded voice, too, says what it says alone: 12 streams in 5 slots, two cancelled."""
    plans = [
        Plan(3 * n, [1 + n % 4, n % 3], n % 2 == 0, 2 if n in (4, 9) else None, n % 3, seed=n)
        for n in range(1, 13)
    ]
    for plan, samples in zip(plans, play(streaming(pocket_model(), 5), plans), strict=True):
        assert_is(plan, samples, pocket_model())


def test_the_released_size() -> None:
    """At the size of the released model, too, streams together equal their whole decodes."""
    model = prepare(random_model(RELEASED), noise=False)
    plans = [Plan(7, [2, 1], seed=1), Plan(5, [4], seed=2, pause=1)]
    for plan, samples in zip(plans, play(streaming(model, 2), plans), strict=True):
        assert_is(plan, samples, model)


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8), windowed=st.booleans())
@settings(max_examples=20, deadline=None)
def test_nothing_is_kept_back(sizes: list[int], windowed: bool) -> None:
    """After every step all samples have left that are final, by either way of decoding."""
    model = small_model()
    decoder = WindowDecoder(model, slots=1) if windowed else streaming(model)
    assert decoder.first_frames(early=False) == 3
    frames = random_frames(sum(sizes))
    decoder.reset(0, seed=0, early=False)
    arrived, pieces = 0, []
    for size in sizes:
        pieces += decoder.step([Work(0, frames[arrived : arrived + size], last=False)])
        arrived += size
        assert sum(map(len, pieces)) == max(0, arrived * SAMPLES_PER_FRAME - DELAY)
    samples = np.concatenate(pieces)
    assert_same(samples, decode_whole(model, frames)[: len(samples)])


def pcm(pieces: Sequence[Samples]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """What a listener gets of pieces of sound, as numbers of 16 bits."""
    output = Output("pcm_s16le", SAMPLE_RATE)
    encoded = b"".join(output.feed(piece).pcm for piece in pieces)
    return np.frombuffer(encoded, "<i2").astype(np.int32)


@given(sizes=CUTS, others=CUTS)
@settings(max_examples=15, deadline=None)
def test_pcm_does_not_depend_on_the_cuts(sizes: list[int], others: list[int]) -> None:
    """As 16 bits on the wire, one sound cut in two ways differs by one step at most."""
    frames = golden_frames()[:20]
    decoder = streaming(pocket_model())
    cut, otherwise = (pcm([play_one(decoder, frames, each)]) for each in (sizes, others))
    assert np.abs(cut).max() > 3000
    assert np.abs(cut - otherwise).max() <= 1


# Work -----------------------------------------------------------------------------------------------


class CountingPasses(EagerPasses):
    """Remembers the shape of every pass: streams and frames."""

    def __init__(self, network: StreamingNetwork, slots: int) -> None:
        super().__init__(network, slots)
        self.shapes: list[tuple[int, int]] = []

    def run(self, batch: Batch) -> Samples:
        """Note the shape, and run."""
        self.shapes.append(batch.codes.shape[:2])
        return super().run(batch)


@pytest.mark.parametrize(("length", "ends_late"), [(24, True), (25, False)])
def test_nothing_is_computed_twice(length: int, ends_late: bool) -> None:
    """All streams of a step share a pass, every frame is fed once, and a flush takes 3 frames."""
    passes = CountingPasses(StreamingNetwork(small_model()), 4)
    decoder = StreamingDecoder(passes, 4, early_frames=0)
    play(decoder, [Plan(length, [8], ends_late, seed=seed) for seed in range(4)])
    assert passes.shapes == [(4, 8)] * 3 + [(4, 4)]


@given(plans=st.lists(PLANS, min_size=1, max_size=6), slots=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_shapes_are_few(plans: list[Plan], slots: int) -> None:
    """Whatever comes, passes have one of four numbers of frames, and feed no stream more than its
    frames and what a flush takes."""
    passes = CountingPasses(StreamingNetwork(small_model()), slots)
    play(StreamingDecoder(passes, slots, early_frames=0), plans)
    assert {frames for _, frames in passes.shapes} <= set(FRAME_SIZES)
    rows = sum(streams * frames for streams, frames in passes.shapes)
    # To the end a stream is fed what is left of it and three frames more, rounded up to a size.
    assert rows <= sum(plan.length + 3 + max(FRAME_SIZES) for plan in plans)


class EdgedPasses(EagerPasses):
    """Holds every pass without edges to the same pass with them."""

    def __init__(self, network: StreamingNetwork, slots: int) -> None:
        super().__init__(network, slots)
        self._edged = EagerPasses(network, slots)
        self.inner = 0

    def run(self, batch: Batch) -> Samples:
        """Run twice, and compare samples and states."""
        samples = super().run(batch)
        edged = self._edged.run(batch._replace(edges=True))
        if not batch.edges:
            self.inner += 1
            np.testing.assert_array_equal(samples, edged)
            targets = torch.from_numpy(batch.targets)
            assert torch.equal(self._states[targets], self._edged._states[targets])
        return samples


@given(plans=st.lists(PLANS, max_size=5), slots=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_edges_are_looked_at_where_they_are(plans: list[Plan], slots: int) -> None:
    """A pass that is told of no edge gives, to the bit, what it gives with all positions checked."""
    passes = EdgedPasses(StreamingNetwork(small_model(noisy=True)), slots)
    play(StreamingDecoder(passes, slots, early_frames=2), [Plan(20, [1, 2, 3]), *plans], early=True)
    assert passes.inner > 0
