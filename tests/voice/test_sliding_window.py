"""The baseline of `bench codec` decodes as published servers do, no better and no worse."""

import numpy as np
import pytest

from orpheus_ws.bench.sliding_window import SlidingWindowDecoder
from orpheus_ws.codec import Work
from orpheus_ws.codec.window import decode_whole
from orpheus_ws.tokens import SAMPLES_PER_FRAME
from tests.voice.codec_models import TOLERANCE, pocket_model, random_frames


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 12])
def test_what_is_heard(count: int) -> None:
    """Of every four frames in a row the second is kept: never the first frame nor the last two."""
    frames = random_frames(count, seed=count)
    decoder = SlidingWindowDecoder(pocket_model(), slots=1)
    decoder.reset(0, seed=0, early=False)
    heard = [decoder.step([Work(0, [frame], last=False)])[0] for frame in frames]
    heard += decoder.step([Work(0, [], last=True)])
    windows = [frames[begin : begin + 4] for begin in range(count - 3)]
    expected = [
        decode_whole(pocket_model(), window)[SAMPLES_PER_FRAME : 2 * SAMPLES_PER_FRAME]
        for window in windows
    ]
    assert sum(map(len, heard)) == max(0, count - 3) * SAMPLES_PER_FRAME
    for mine, other in zip([piece for piece in heard if len(piece)], expected, strict=True):
        np.testing.assert_allclose(mine, other, atol=TOLERANCE)


def test_streams_share_batches() -> None:
    """Streams of one step, however many frames each has, are each decoded as if alone."""
    streams = [random_frames(count, seed=count) for count in (3, 9, 6)]
    decoder = SlidingWindowDecoder(pocket_model(), slots=3)
    together = decoder.step([Work(slot, frames, last=True) for slot, frames in enumerate(streams)])
    alone = SlidingWindowDecoder(pocket_model(), slots=1)
    for frames, heard in zip(streams, together, strict=True):
        alone.reset(0, seed=0, early=False)
        expected = [alone.step([Work(0, [frame], last=False)])[0] for frame in frames]
        np.testing.assert_allclose(heard, np.concatenate(expected), atol=TOLERANCE)


def test_it_is_not_exact() -> None:
    """One frame of context where 2.32 are needed is heard: the baseline is not what we promise."""
    frames = random_frames(8)
    decoder = SlidingWindowDecoder(pocket_model(), slots=1)
    (heard,) = decoder.step([Work(0, frames, last=True)])
    whole = decode_whole(pocket_model(), frames)[SAMPLES_PER_FRAME : 6 * SAMPLES_PER_FRAME]
    assert len(heard) == len(whole)
    later = slice(SAMPLES_PER_FRAME, None)  # the first window begins where the stream does
    assert np.abs(heard[later] - whole[later]).max() > 10 * TOLERANCE
