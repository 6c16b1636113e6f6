"""An FP8 checkpoint of ModelOpt on the reference engine: to hear what FP8 loses, on any device.

Rule: numbers are rounded where an FP8 engine rounds them, and computed with as without. Weights become
what they are times their scale; what enters a quantised layer is rounded with the layer's static scale;
keys and values are rounded with the scale 1 if the checkpoint has an FP8 cache. How a kernel accumulates
and how it fuses layers is not imitated.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file

_LARGEST: Final = torch.finfo(torch.float8_e4m3fn).max
_SCALES: Final = ("weight_scale", "input_scale", "k_scale", "v_scale")


def has_fp8_cache(config: Any) -> bool:
    """Whether a model's configuration declares that its keys and values are FP8."""
    return bool((getattr(config, "quantization_config", None) or {}).get("kv_cache_scheme"))


def read(folder: str, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The weights as numbers of `dtype`, and by layer the scale of what enters it.

    What safetensors raises for a broken file comes out, and `KeyError` for a scale that is missing.
    """
    stored: dict[str, torch.Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        stored |= load_file(file)
    scales = {name: stored.pop(name) for name in list(stored) if name.endswith(_SCALES)}
    for name, weight in stored.items():
        if weight.dtype == torch.float8_e4m3fn:
            stored[name] = (weight.float() * scales[f"{name}_scale"]).to(dtype)
    inputs = {
        name.removesuffix(".input_scale"): scale.item()
        for name, scale in scales.items()
        if name.endswith(".input_scale")
    }
    return stored, inputs


def round_inputs(model: torch.nn.Module, scales: dict[str, float]) -> None:
    """Let each of these layers round what enters it, from now on."""
    for name, scale in scales.items():
        model.get_submodule(name).register_forward_pre_hook(_rounding(scale))


def rounded(values: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """What is left of the values in FP8 with this scale; what is too large becomes the largest."""
    scaled = (values.float() / scale).clamp(-_LARGEST, _LARGEST)
    return (scaled.to(torch.float8_e4m3fn).float() * scale).to(values.dtype)


def _rounding(scale: float) -> Callable[[torch.nn.Module, tuple[torch.Tensor]], torch.Tensor]:
    return lambda _, inputs: rounded(inputs[0], scale)
