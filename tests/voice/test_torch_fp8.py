"""FP8 checkpoints on the reference engine: what is rounded, and by how much."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Prompt
from orpheus_ws.engine.torch import open_engine
from orpheus_ws.engine.torch_fp8 import read, rounded
from orpheus_ws.errors import StartupError
from tests.voice.torch_checkpoints import SENTENCE, batch_of, fp8, run, slot_model, with_weights

PROMPT = (128_259, 128_000, 70, 71, 72, 73, 128_009, 128_260, 128_261, 128_257)
SCALES = st.floats(2**-20, 2**10, width=32)


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint in FP8, its cache too."""
    return fp8(tiny_checkpoint, tmp_path_factory.mktemp("fp8"))


def logits(folder: Path) -> torch.Tensor:
    """Of what follows a prompt."""
    model = slot_model(folder, 1)
    model.prefill(0, PROMPT[:-1])
    return model.step(PROMPT[-1:], [len(PROMPT) - 1])


@given(st.floats(-448, 448, width=32), SCALES)
def test_rounding_is_as_fine_as_e4m3(number: float, scale: float) -> None:
    """Three bits of mantissa: the error is a sixteenth of the number at most, or half the least step."""
    value = torch.tensor(number) * scale
    error = (rounded(value, scale) - value).abs().item()
    assert error <= max(abs(value.item()) * 2**-4, scale * 2**-10) * (1 + 1e-5)


@given(st.floats(448, 2**60, width=32), SCALES)
def test_what_is_too_large_becomes_the_largest(number: float, scale: float) -> None:
    """It neither overflows nor changes its sign."""
    assert rounded(torch.tensor([number, -number]) * scale, scale).tolist() == pytest.approx(
        [448 * scale, -448 * scale]
    )


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_what_is_rounded_stays(number: float) -> None:
    """Rounding again changes nothing."""
    once = rounded(torch.tensor(number))
    assert torch.equal(rounded(once), once)


def test_weights_are_times_their_scale(tiny_checkpoint: Path, checkpoint: Path) -> None:
    """What is read are the original's weights within FP8's error, and all of them."""
    original = load_file(tiny_checkpoint / "model.safetensors")
    found, inputs = read(str(checkpoint), torch.float32)
    assert found.keys() == original.keys()
    assert len(inputs) == 14
    assert list(inputs.values()) == pytest.approx([0.02] * 14)
    for name, weight in original.items():
        bound = weight.float().abs() / 16 + weight.abs().max().float() / 448 / 1024
        assert ((found[name].float() - weight.float()).abs() <= bound).all(), name


def test_it_says_nearly_what_the_original_says(tiny_checkpoint: Path, checkpoint: Path) -> None:
    """The logits are those of the original but for a little; unscaled weights would not be near."""
    original, found = logits(tiny_checkpoint), logits(checkpoint)
    assert 0.001 < (found - original).std() / original.std() < 0.2


def test_inputs_are_rounded(checkpoint: Path, tmp_path: Path) -> None:
    """A checkpoint whose input scales are far too small says something else: inputs are cut off."""
    state = load_file(checkpoint / "model.safetensors")
    small = {n: t / 1000 if n.endswith("input_scale") else t for n, t in state.items()}
    with_weights(checkpoint, tmp_path, small)
    near = logits(checkpoint)
    assert (logits(tmp_path) - near).std() / near.std() > 0.5


def test_the_cache_is_rounded_where_it_is_declared(
    tiny_checkpoint: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """Keys and values are numbers that FP8 has, and only if the checkpoint says so."""
    for folder, expected in (
        (checkpoint, True),
        (fp8(tiny_checkpoint, tmp_path, cache=False), False),
    ):
        model = slot_model(folder, 1)
        model.prefill(0, PROMPT)
        for kept in (model._cache.keys, model._cache.values):
            assert kept.any()
            assert torch.equal(rounded(kept), kept) is expected


def test_who_shares_the_batch_changes_nothing(checkpoint: Path) -> None:
    """The reference engine's promise holds in FP8: equal ids alone and in a batch of four."""

    def spoken(seeds: list[int]) -> dict[int, list[int]]:
        batch = batch_of(checkpoint, 4)
        for slot, seed in enumerate(seeds):
            batch.join(slot, seed, Prompt(text=SENTENCE, voice="tara", seed=seed))
        return run(batch)

    together = spoken([1, 2, 3, 4])
    assert spoken([3]) == {3: together[3]}


async def test_a_scale_is_missing(checkpoint: Path, tmp_path: Path) -> None:
    """Weights without their scale are refused in one line."""
    state = load_file(checkpoint / "model.safetensors")
    del state["model.layers.0.mlp.up_proj.weight_scale"]
    with_weights(checkpoint, tmp_path, state)
    with pytest.raises(StartupError, match=r"weight_scale.*download the checkpoint again"):
        await open_engine(EngineConfig(name="torch", options={"model": str(tmp_path)}))
