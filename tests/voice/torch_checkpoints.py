"""Tiny checkpoints for the tests of the torch engine: whole ones, spoilt ones, and their parts."""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from orpheus_ws.engine.checkpoint import Encoder, load_encoder
from orpheus_ws.engine.torch_batch import Batch
from orpheus_ws.engine.torch_model import ATTENTION, SlotModel, load_model
from orpheus_ws.engine.torch_sampling import LEGAL_COLUMNS, Sampler

# As the engine itself does when it is opened; more threads only wait for each other.
torch.set_num_threads(1)

SENTENCE = "The weather is lovely today, and I would like a cup of coffee."


def slot_model(
    checkpoint: Path, slots: int, *, context: int = 1024, columns: range = LEGAL_COLUMNS
) -> SlotModel:
    """The model over some slots."""
    return SlotModel(_model(checkpoint), slots, context, columns)


def batch_of(checkpoint: Path, slots: int, *, legal_only: bool = True) -> Batch[int]:
    """A batch of some slots, whose owners are numbers."""
    columns = LEGAL_COLUMNS if legal_only else range(156_940)
    model = slot_model(checkpoint, slots, columns=columns)
    sampler = Sampler(slots, columns, legal_only=legal_only, device="cpu")
    return Batch(model, sampler, encoder(checkpoint), slots, 1024)


@functools.cache
def _model(checkpoint: Path) -> LlamaForCausalLM:
    return load_model(str(checkpoint), device="cpu", dtype="float32", attention=ATTENTION)


@functools.cache
def encoder(checkpoint: Path) -> Encoder:
    """The engine's tokenizer."""
    return load_encoder(checkpoint)


def run(batch: Batch[int]) -> dict[int, list[int]]:
    """Step until nobody is left; the ids of each owner."""
    found: dict[int, list[int]] = {}
    while batch.busy:
        for group in batch.step():
            found.setdefault(group.owner, []).extend(group.ids)
    return found


def spoilt(checkpoint: Path, folder: Path, name: str, **changes: Any) -> Path:
    """A copy whose JSON file `name` has these keys changed, or left out where they are None."""
    cut_short(checkpoint, folder, name, None)
    source = checkpoint / name
    content = json.loads(source.read_text(encoding="utf-8")) if source.exists() else {}
    merged = {key: value for key, value in (content | changes).items() if value is not None}
    (folder / name).write_text(json.dumps(merged), encoding="utf-8")
    return folder


def fp8(checkpoint: Path, folder: Path, *, cache: bool = True) -> Path:
    """The checkpoint in FP8, in the form that `engine_build quantize` writes; all input scales 0.02."""
    state = load_file(checkpoint / "model.safetensors")
    for name in [name for name in state if name.endswith("_proj.weight")]:
        weight = state[name].float()
        scale = weight.abs().max() / 448
        state[name] = (weight / scale).to(torch.float8_e4m3fn)
        state[f"{name}_scale"] = scale
        state[name.removesuffix("weight") + "input_scale"] = torch.tensor(0.02)
    config: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "FP8"}
    if cache:
        config["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    spoilt(checkpoint, folder, "config.json", quantization_config=config)
    described = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8" if cache else None}
    stated = {"quantization": described | {"exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(stated), encoding="utf-8")
    (folder / "model.safetensors").unlink()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def with_weights(checkpoint: Path, folder: Path, state: dict[str, torch.Tensor]) -> Path:
    """A copy that has these weights."""
    cut_short(checkpoint, folder, "model.safetensors", None)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def cut_short(checkpoint: Path, folder: Path, name: str, left: float | None) -> None:
    """A copy whose file `name` has only this part of its bytes left; without it where that is None."""
    for file in checkpoint.iterdir():
        if file.name != name:
            (folder / file.name).symlink_to(file)
    if left is not None:
        content = (checkpoint / name).read_bytes()
        (folder / name).write_bytes(content[: int(left * len(content))])
