"""Pocket encoder: what the definition's own implementation computed, whole or in blocks."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from orpheus_ws.engine.pocket_encoder import LEVELS, PocketEncoder, frame_count
from orpheus_ws.tokens import CODEBOOK_SIZE, CODES_PER_FRAME, SAMPLES_PER_FRAME

GOLDEN = load_file(Path(__file__).parents[1] / "data" / "pocket" / "golden.safetensors")
AUDIO = GOLDEN["audio"][0]
FRAMES = len(AUDIO) // SAMPLES_PER_FRAME

ENCODER = PocketEncoder()
WHOLE = ENCODER.encode(AUDIO)


def test_log_mel_is_as_defined() -> None:
    """The logarithmic mel spectrum of the golden utterance is right to 1e-4."""
    np.testing.assert_allclose(ENCODER.log_mel(AUDIO).T, GOLDEN["mel"][0], rtol=0, atol=1e-4)


def test_latents_are_as_defined() -> None:
    """What the network makes of the golden utterance is right to 1e-4."""
    np.testing.assert_allclose(ENCODER.latents(AUDIO).T, GOLDEN["latents"][0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("level", "slots"), [(0, [0]), (1, [1, 4]), (2, [2, 3, 5, 6])])
def test_codes_are_as_defined(level: int, slots: list[int]) -> None:
    """At least 99 % of each level's codes of the golden utterance are right, in their slots."""
    expected = GOLDEN[f"codes_{level}"][0]
    actual = WHOLE[:, slots].ravel()
    assert actual.shape == expected.shape
    assert np.mean(actual == expected) >= 0.99


def test_levels_fill_a_frame() -> None:
    """Every slot of a frame belongs to one level, and a level has as many as it has codes."""
    assert sorted(slot for _, slots in LEVELS for slot in slots) == list(range(CODES_PER_FRAME))
    assert [stride * len(slots) for stride, slots in LEVELS] == [4, 4, 4]


@settings(deadline=None, max_examples=40)
@given(first=st.integers(0, FRAMES - 1), count=st.integers(1, FRAMES))
def test_a_block_is_a_part_of_the_whole(first: int, count: int) -> None:
    """Any block has exactly the codes that the whole has there, and ends where the audio ends."""
    block = ENCODER.encode_block(AUDIO, first, count)
    assert np.array_equal(block, WHOLE[first : first + count])


@settings(deadline=None, max_examples=25)
@given(
    samples=st.integers(1, len(AUDIO)),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_blocks_in_a_row_are_the_whole(samples: int, sizes: list[int]) -> None:
    """Audio of any length, cut into blocks of whatever sizes, gives the codes of the whole."""
    audio = AUDIO[:samples]
    blocks: list[NDArray[np.intp]] = []
    first = 0
    while first < frame_count(samples):
        size = sizes[len(blocks) % len(sizes)]
        blocks.append(ENCODER.encode_block(audio, first, size))
        first += size
    assert np.array_equal(np.concatenate(blocks), ENCODER.encode(audio))


def test_a_block_of_noise_is_a_part_of_the_whole() -> None:
    """Blocks equal the whole for loud noise too, where every column differs from its neighbours."""
    noise = np.random.default_rng(5).uniform(-1, 1, 30 * SAMPLES_PER_FRAME).astype(np.float32)
    whole = ENCODER.encode(noise)
    blocks = [ENCODER.encode_block(noise, first, 4) for first in range(0, 30, 4)]
    assert np.array_equal(np.concatenate(blocks), whole)


def test_only_nearby_samples_count() -> None:
    """A frame is settled by the 3328 samples on either side of it: others may be anything."""
    first, last = 8, 11
    near = slice(first * SAMPLES_PER_FRAME - 3328, (last + 1) * SAMPLES_PER_FRAME + 3328)
    other = np.ones_like(AUDIO)
    other[near] = AUDIO[near]
    codes = ENCODER.encode(other)
    assert np.array_equal(codes[first : last + 1], WHOLE[first : last + 1])
    assert not np.array_equal(codes, WHOLE)


@pytest.mark.parametrize(
    ("samples", "frames"),
    [(0, 0), (1, 1), (SAMPLES_PER_FRAME, 1), (SAMPLES_PER_FRAME + 1, 2)],
)
def test_a_frame_is_begun_and_completed(samples: int, frames: int) -> None:
    """Samples that do not fill a frame get one nevertheless; no samples get none."""
    codes = ENCODER.encode(AUDIO[:samples])
    assert codes.shape == (frames, CODES_PER_FRAME)
    assert frame_count(samples) == frames


def test_the_last_frame_is_completed_with_silence() -> None:
    """A part of a frame is encoded as if zeros followed."""
    samples = 3 * SAMPLES_PER_FRAME + 700
    padded = np.pad(AUDIO[:samples], (0, SAMPLES_PER_FRAME - 700))
    assert np.array_equal(ENCODER.encode(AUDIO[:samples]), ENCODER.encode(padded))


def test_a_block_beyond_the_end_is_empty() -> None:
    """Asking for frames that the audio does not have gives none."""
    assert ENCODER.encode_block(AUDIO, FRAMES, 4).shape == (0, CODES_PER_FRAME)


def test_codes_are_within_the_codebook() -> None:
    """Every code names an entry, even for audio far louder than speech, and for silence."""
    for audio in (AUDIO * 100, np.zeros_like(AUDIO)):
        codes = ENCODER.encode(audio)
        assert codes.min() >= 0
        assert codes.max() < CODEBOOK_SIZE
