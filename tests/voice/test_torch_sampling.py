"""The torch engine's choice of an id, held to transformers' processors."""

import itertools
import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from orpheus_ws import tokens
from orpheus_ws.engine.torch_sampling import LEGAL_COLUMNS, Sampler, Sampling

WORDS = range(50)
"""A small vocabulary."""

samplings = st.builds(
    Sampling,
    temperature=st.floats(0.05, 2),
    top_p=st.floats(0.05, 1),
    repetition_penalty=st.floats(1, 2),
)


def free(slots: int, columns: range = WORDS) -> Sampler:
    """A sampler that may choose any id."""
    return Sampler(slots, columns, legal_only=False, device="cpu")


def legal(slots: int) -> Sampler:
    """A sampler that keeps to legal ids."""
    return Sampler(slots, LEGAL_COLUMNS, legal_only=True, device="cpu")


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Random logits."""
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(samplings, st.integers(0, 2**31 - 1), st.lists(st.sampled_from(WORDS), max_size=20))
@settings(max_examples=60, deadline=None)
def test_the_choice_is_that_of_transformers_processors(
    sampling: Sampling, seed: int, prompt: list[int]
) -> None:
    """Penalty over prompt and speech, then temperature, then top-p, then the seed's number."""
    sampler = free(1)
    sampler.reset(0, sampling, seed, prompt)
    chance, seen = random.Random(seed), list(prompt)
    for step in range(5):
        logits = normal(seed + step, 1, len(WORDS))
        (chosen,) = sampler.choose(logits, [0])
        assert chosen is not None
        scores = logits.clone()
        if seen:
            penalise = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
            scores = penalise(torch.tensor([seen]), scores)
        scores = TemperatureLogitsWarper(sampling.temperature)(None, scores)
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
        ordered = scores[0].double().softmax(0).sort(descending=True)
        below = ordered.values.cumsum(0) - chance.random()
        place = ordered.indices.tolist().index(chosen)
        # The number falls into the id's part, but for rounding.
        assert below[place] > -1e-5
        assert place == 0 or below[place - 1] < 1e-5
        seen.append(chosen)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(top_p=0.0)])
def test_greedy(sampling: Sampling) -> None:
    """At temperature 0, and at top-p 0, it is the likeliest id, whatever the seed."""
    sampler = free(20)
    for slot in range(20):
        sampler.reset(slot, sampling, slot, ())
    logits = normal(1, 20, len(WORDS))
    assert sampler.choose(logits, [0] * 20) == logits.argmax(1).tolist()


def test_frequencies() -> None:
    """Over many seeds ids come as often as they are likely."""
    slots, columns = 20_000, range(6)
    sampler = free(slots, columns)
    for slot in range(slots):
        sampler.reset(slot, Sampling(1.0, 1.0, 1.0), slot, ())
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -2.0])
    counts = Counter(sampler.choose(logits.expand(slots, -1), [0] * slots))
    for token, likely in enumerate(logits.softmax(0).tolist()):
        # Five standard deviations; the seeds are fixed, so it holds always or never.
        assert abs(counts[token] / slots - likely) < 5 * math.sqrt(likely / slots)


def test_the_seed_decides() -> None:
    """Equal seeds draw equal ids, other seeds others."""
    sampler = free(3, range(5000))
    for slot, seed in enumerate((1, 1, 2)):
        sampler.reset(slot, Sampling(2.0, 1.0, 1.0), seed, ())
    drawn = [sampler.choose(normal(step, 1, 5000).expand(3, -1), [0] * 3) for step in range(5)]
    first, second, other = zip(*drawn, strict=True)
    assert first == second != other


def test_only_legal_ids() -> None:
    """However likely others are, an id is of the slot whose turn it is, or end of speech at turn 0."""
    sampler = legal(7)
    for slot in range(7):
        sampler.reset(slot, Sampling(temperature=2.0, top_p=1.0), slot, ())
    for step, shift in itertools.product(range(20), (0, 3)):
        turns = [(slot + shift) % 7 for slot in range(7)]
        for turn, token in zip(turns, sampler.choose(normal(step, 7, 28_680), turns), strict=True):
            assert token is not None
            first = tokens.audio_id(turn, 0)
            is_code = first <= token < first + tokens.CODEBOOK_SIZE
            assert is_code or (turn == 0 and token == tokens.END_OF_SPEECH)


def test_end_of_speech_waits_for_the_frame() -> None:
    """When it is by far the likeliest id, it is chosen between two frames and nowhere else."""
    sampler = legal(7)
    logits = normal(0, 7, 28_680)
    logits[:, LEGAL_COLUMNS.index(tokens.END_OF_SPEECH)] = 1000.0
    chosen = sampler.choose(logits, list(range(7)))
    assert [token == tokens.END_OF_SPEECH for token in chosen] == [True] + [False] * 6


def test_both_ends_of_the_codes() -> None:
    """Code 0 and code 4095 of every slot can be chosen."""
    for turn, code in itertools.product(range(7), (0, 4095)):
        logits = torch.zeros(1, 28_680)
        logits[0, LEGAL_COLUMNS.index(tokens.audio_id(turn, code))] = 100.0
        assert legal(1).choose(logits, [turn]) == [tokens.audio_id(turn, code)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_no_choice(value: float) -> None:
    """A slot whose logits are not numbers gets None, and its neighbour an id."""
    logits = normal(0, 2, 28_680)
    logits[0, 10:5000] = value
    broken, whole = legal(2).choose(logits, [0, 0])
    assert broken is None
    assert whole is not None
