"""SNAC's weights and where they run.

Rule: whoever decodes gets a model that is ready: only quantizer and decoder, weight norm folded,
frozen, on its device. What is wrong with a file or a device is a `StartupError` that says so.
"""

import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import snac
import torch
from safetensors.torch import load as load_safetensors
from snac.layers import NoiseBlock
from torch import nn
from torch.nn.utils import parametrize

from orpheus_ws.errors import StartupError
from orpheus_ws.tokens import CODEBOOK_SIZE, SAMPLE_RATE

_SHAPE: Final = {
    "sampling_rate": SAMPLE_RATE,
    "codebook_size": CODEBOOK_SIZE,
    "vq_strides": [4, 2, 1],
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None,
}
"""What makes a frame of seven codes 2048 samples that depend on nothing far away."""


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where SNAC runs."""

    device: str = "cpu"
    """What torch calls the device: `cpu`, `cuda`, `cuda:1`."""
    threads: Annotated[int, msgspec.Meta(ge=1)] = 1
    """CPU threads that a step may use."""


_M = TypeVar("_M", bound=nn.Module)


def place(module: _M, options: Device) -> _M:
    """Move `module` to its device. Raises `StartupError`."""
    torch.set_num_threads(options.threads)
    try:
        return module.to(options.device)
    except Exception as error:
        seen = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        raise StartupError(
            f"the codec cannot use the device {options.device!r} ({type(error).__name__}): torch "
            f"sees {', '.join(seen)} here; set codec.options.device"
        ) from error


def load_model(weights: str, *, noise: bool) -> nn.Module:
    """A SNAC model for 24 kHz and three levels, prepared.

    `weights` is `pocket`, the embedded development voice, or a directory with `config.json` and
    `model.safetensors` or `pytorch_model.bin`. Raises `StartupError`."""
    root: Traversable = (
        files("orpheus_ws") / "data" / "pocket" if weights == "pocket" else Path(weights)
    )
    try:
        config = json.loads((root / "config.json").read_text(encoding="utf-8"))
        model: nn.Module = snac.SNAC(**config)
        missing, unexpected = model.load_state_dict(_state(root), strict=False)
        shape = {key: config[key] for key in _SHAPE}
    except Exception as error:
        # What a broken file raises depends on where it is broken.
        raise StartupError(
            f"cannot load the codec from {weights!r} ({type(error).__name__}): give 'pocket' or a "
            "directory with SNAC's config.json and model.safetensors or pytorch_model.bin"
        ) from error
    if unexpected or any(not name.startswith("encoder.") for name in missing):
        raise StartupError(f"the checkpoint in {weights!r} does not fit its config.json")
    if shape != _SHAPE:
        raise StartupError(
            f"the codec in {weights!r} is not SNAC's 24 kHz model with three levels: give the one "
            "that Orpheus was trained with, snac_24khz"
        )
    return prepare(model, noise=noise)


def prepare(model: nn.Module, *, noise: bool) -> nn.Module:
    """Drop the encoder, fold weight norm, freeze; without `noise` drop the noise, too.

    Changes `model` and returns it.
    """
    model.encoder = nn.Identity()
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NoiseBlock) and not noise:
                setattr(module, name, nn.Identity())
            elif parametrize.is_parametrized(child, "weight"):
                parametrize.remove_parametrizations(child, "weight")
    return model.eval().requires_grad_(requires_grad=False)


def _state(root: Traversable) -> dict[str, Any]:
    for name in ("decoder.safetensors", "model.safetensors"):
        if (root / name).is_file():
            return load_safetensors((root / name).read_bytes())
    with (root / "pytorch_model.bin").open("rb") as file:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state
