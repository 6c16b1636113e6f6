"""The early beginning: it depends on codes, seed and `early_frames`, never on timing."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.codec import Work
from orpheus_ws.codec.early import FADE, early_samples
from orpheus_ws.codec.streaming import StreamingDecoder
from orpheus_ws.codec.window import decode_whole
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import SAMPLES_PER_FRAME
from tests.voice.codec_models import (
    PLANS,
    Plan,
    assert_same,
    golden_frames,
    play,
    play_one,
    pocket_model,
    random_frames,
    small_model,
    streaming,
    with_noise_of,
)
from tests.voice.early_quality import early_quality

EARLY = pytest.mark.parametrize("early_frames", [1, 2, 3])


def expected(plan: Plan, early_frames: int) -> Samples:
    """What a noisy stream gives: snac's decode of its first frames alone, faded into that of all."""
    if not plan.length:
        return np.zeros(0, np.float32)
    model = with_noise_of(small_model(noisy=True), plan.seed)
    exact = decode_whole(model, plan.frames)
    if plan.length < early_frames:
        return exact
    first = decode_whole(model, plan.frames[:early_frames])
    begin = early_samples(early_frames)
    exact_share = np.zeros(len(first), np.float32)
    exact_share[begin:] = 1.0
    exact_share[begin : begin + FADE] = np.sin((np.arange(FADE) + 0.5) * np.pi / 2 / FADE) ** 2
    mixed = exact_share * exact[: len(first)] + (1 - exact_share) * first
    return np.concatenate((mixed, exact[len(first) :]))


# What is given --------------------------------------------------------------------------------------


@EARLY
@given(plans=st.lists(PLANS, min_size=1, max_size=6), slots=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_it_is_a_function_of_the_codes(early_frames: int, plans: list[Plan], slots: int) -> None:
    """However it is cut, whoever shares its steps, and wherever it ends, an early stream is the
    decode of its first frames, faded into that of all of them."""
    decoder = streaming(small_model(noisy=True), slots, early_frames=early_frames)
    for plan, samples in zip(plans, play(decoder, plans, early=True), strict=True):
        whole = expected(plan, early_frames)
        assert_same(samples, whole if plan.leaves is None else whole[: len(samples)])


@EARLY
@pytest.mark.parametrize("length", range(8))
@pytest.mark.parametrize("ends_late", [True, False])
def test_when_the_end_is_known_cannot_be_heard(
    early_frames: int, length: int, ends_late: bool
) -> None:
    """A stream all of which is there at once sounds like one that comes frame by frame."""
    decoder = streaming(small_model(), early_frames=early_frames)
    at_once, slowly = (
        play_one(decoder, random_frames(length), sizes, ends_late=ends_late, early=True)
        for sizes in ([8], [1])
    )
    assert len(at_once) == length * SAMPLES_PER_FRAME
    assert_same(at_once, slowly)


@pytest.mark.parametrize(("early_frames", "count"), [(1, 1024), (2, 2048), (3, 4096)])
def test_it_comes_with_its_last_frame(early_frames: int, count: int) -> None:
    """As soon as its frames are there, what is early is given, and the rest when it is final."""
    decoder, frames = streaming(small_model(), early_frames=early_frames), random_frames(9)
    assert decoder.first_frames(early=True) == early_frames
    decoder.reset(0, seed=0, early=True)
    lengths = [len(decoder.step([Work(0, [frame], last=False)])[0]) for frame in frames]
    assert lengths[:early_frames] == [0] * (early_frames - 1) + [count]
    arrived = np.arange(early_frames, len(frames) + 1) * SAMPLES_PER_FRAME
    total = np.maximum(count, arrived - 4757)
    assert lengths[early_frames:] == [int(b - a) for a, b in pairwise(total)]


@given(plans=st.lists(PLANS, min_size=1, max_size=6), early_frames=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_only_who_asks_begins_early(plans: list[Plan], early_frames: int) -> None:
    """A stream that does not ask, or a decoder that was told never to, gives exact samples only,
    beside streams that begin early."""
    model = small_model()
    decoder = streaming(model, 2, early_frames=early_frames)
    assert decoder.first_frames(early=False) == 3
    both = Both(decoder, early=early_frames > 0)
    for plan, samples in zip(plans, play(both, plans), strict=True):
        whole = decode_whole(model, plan.frames) if plan.length else np.zeros(0, np.float32)
        assert_same(samples, whole if plan.leaves is None else whole[: len(samples)])


class Both:
    """One slot of a decoder, while the other has streams of its own."""

    max_frames = 8

    def __init__(self, decoder: StreamingDecoder, *, early: bool) -> None:
        self.slots = 1
        self._decoder = decoder
        self._early = early

    def first_frames(self, *, early: bool) -> int:
        """As the decoder says."""
        return self._decoder.first_frames(early=early)

    def reset(self, slot: int, *, seed: int, early: bool) -> None:
        """Begin, and begin another one early."""
        self._decoder.reset(slot, seed=seed, early=not self._early)
        self._decoder.reset(1, seed=seed + 1, early=True)

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """The other one brings three frames to every step."""
        return self._decoder.step([Work(1, random_frames(3), last=False), *batch])[1:]


# How it sounds --------------------------------------------------------------------------------------


@EARLY
@pytest.mark.parametrize("first", [0, 2, 5, 7])
def test_the_join_does_not_click(early_frames: int, first: int) -> None:
    """At the join no step is larger than the larger of the two signals' own, by more than their
    difference times the steepest step of the fade; before and after it, each is itself."""
    said = golden_frames()[first : first + 10]
    exact = decode_whole(pocket_model(), said)
    alone = decode_whole(pocket_model(), said[:early_frames])
    decoder = streaming(pocket_model(), early_frames=early_frames)
    samples = play_one(decoder, said, [1], early=True)
    begin = early_samples(early_frames)
    assert_same(samples[:begin], alone[:begin])
    assert_same(samples[begin + FADE :], exact[begin + FADE :])
    join = slice(begin - 1, begin + FADE + 1)
    steps = [np.abs(np.diff(each[join])) for each in (samples, exact, alone)]
    difference = np.abs(alone[join] - exact[join]).max()
    steepest = np.pi / 2 / FADE
    assert (steps[0] <= np.maximum(*steps[1:]) + steepest * difference + 1e-5).all()


@pytest.mark.parametrize(
    ("early_frames", "median", "low", "excess"),
    [(1, 24, 18, 0.05), (2, 50, 44, 0.005), (3, 50, 44, 0.005)],
)
def test_it_is_close(early_frames: int, median: float, low: float, excess: float) -> None:
    """With the embedded voice the error is that many dB below the sound, and below that in nine
    beginnings of ten; at the join it adds at most so much to a step."""
    quality = early_quality(pocket_model(), [golden_frames()], early_frames)
    assert quality.beginnings > 8
    assert quality.median >= median
    assert quality.low >= low
    assert quality.excess <= excess
