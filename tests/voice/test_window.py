"""The exact window, the baseline: streams equal to the whole, N frames for N × 2048 samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.codec.window import RADIUS, WindowDecoder, decode_whole
from orpheus_ws.tokens import SAMPLES_PER_FRAME
from tests.voice.codec_models import (
    PLANS,
    Plan,
    assert_is,
    assert_same,
    play,
    play_one,
    pocket_model,
    random_frames,
    small_model,
)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_head_and_tail(count: int) -> None:
    """head-and-tail: N frames of the embedded voice in pieces are its whole decode."""
    frames = random_frames(count, seed=count)
    streamed = play_one(WindowDecoder(pocket_model(), slots=1), frames, [1, 3, 5])
    assert len(streamed) == count * SAMPLES_PER_FRAME
    assert_same(streamed, decode_whole(pocket_model(), frames))


@given(plans=st.lists(PLANS, min_size=1, max_size=6), slots=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_any_streams_together(plans: list[Plan], slots: int) -> None:
    """Streams that join, leave and reuse slots at any time each equal their own whole decode."""
    model = small_model()
    for plan, samples in zip(plans, play(WindowDecoder(model, slots), plans), strict=True):
        assert_is(plan, samples, model)


def test_radius() -> None:
    """Changing one frame changes nothing further away than the radius, and something within it."""
    frames = random_frames(12)
    changed = [*frames[:6], (7, 7, 7, 7, 7, 7, 7), *frames[7:]]
    decoded = [decode_whole(pocket_model(), each) for each in (frames, changed)]
    differs = np.flatnonzero(np.abs(decoded[0] - decoded[1]) > 0)
    first, last = 6 * SAMPLES_PER_FRAME, 7 * SAMPLES_PER_FRAME - 1
    assert first - RADIUS <= differs[0] < first
    assert last < differs[-1] <= last + RADIUS
