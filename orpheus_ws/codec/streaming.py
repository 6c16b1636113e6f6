"""SNAC decoding of many streams, equal to decoding each one whole.

Rule: correct first. The decoder looks 4757 samples, 2.32 frames, to either side of a sample, so a
sample is final once that much has arrived after it, and a window that reaches that far to both sides
of the new samples gives them exactly. What the window repeats is decoded again; streams whose
windows are equally long share a batch. Noise is off: SNAC draws it afresh at every call, which would
make the output depend on the chunking.
"""

import json
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import snac
import torch
from safetensors.torch import load as load_safetensors
from snac.layers import NoiseBlock
from torch import nn
from torch.nn.utils import parametrize

from orpheus_ws.codec import Decoder, Work
from orpheus_ws.config import CodecConfig, read_options
from orpheus_ws.errors import StartupError
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import CODEBOOK_SIZE, LEVEL_SLOTS, SAMPLE_RATE, SAMPLES_PER_FRAME, Frame

RADIUS: Final = 4757
"""Samples on either side that a sample depends on, from the strides and kernels of SNAC's 24 kHz
decoder: 1536 + 256 + 2496 + 32 + 312 + 4 + 78 + 1 + 39 + 3, layer by layer."""

_EMPTY: Final[Samples] = np.zeros(0, np.float32)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where SNAC runs."""

    device: str = "cpu"
    """What torch calls the device: `cpu`, `cuda`, `cuda:1`."""
    threads: Annotated[int, msgspec.Meta(ge=1)] = 1
    """CPU threads that a step may use."""


def open_decoder(config: CodecConfig) -> Decoder:
    """Load the weights. Raises `StartupError`."""
    options = read_options(config.options, Options, "codec.options")
    torch.set_num_threads(options.threads)
    model = load_model(config.weights)
    try:
        model = model.to(options.device)
    except Exception as error:
        raise StartupError(
            f"the codec cannot use the device {options.device!r} ({type(error).__name__}): set "
            "codec.options.device to one that torch sees, such as 'cpu' or 'cuda'"
        ) from error
    return WindowDecoder(model, slots=config.slots or 8)


def load_model(weights: str) -> nn.Module:
    """A SNAC model for 24 kHz and three levels, ready to decode: noise off, weight norm folded.

    `weights` is `pocket`, the embedded development voice, or a directory with `config.json` and
    `model.safetensors` or `pytorch_model.bin`. Raises `StartupError`.
    """
    root: Traversable = (
        files("orpheus_ws") / "data" / "pocket" if weights == "pocket" else Path(weights)
    )
    try:
        config = json.loads((root / "config.json").read_text(encoding="utf-8"))
        model: nn.Module = snac.SNAC(**config)
        missing, unexpected = model.load_state_dict(_state(root), strict=False)
        shape = (config["sampling_rate"], config["vq_strides"], config["codebook_size"])
    except Exception as error:
        # What a broken file raises depends on where it is broken.
        raise StartupError(
            f"cannot load the codec from {weights!r} ({type(error).__name__}): give 'pocket' or a "
            "directory with SNAC's config.json and model.safetensors or pytorch_model.bin"
        ) from error
    if unexpected or any(not name.startswith("encoder.") for name in missing):
        raise StartupError(f"the checkpoint in {weights!r} does not fit its config.json")
    if shape != (SAMPLE_RATE, [4, 2, 1], CODEBOOK_SIZE):
        raise StartupError(f"the codec in {weights!r} is not SNAC's 24 kHz model with three levels")
    return prepare(model)


def prepare(model: nn.Module) -> nn.Module:
    """Drop the encoder and the noise, fold weight norm, freeze. Changes `model` and returns it."""
    model.encoder = nn.Identity()
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NoiseBlock):
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


def decode_whole(model: nn.Module, frames: Sequence[Frame]) -> Samples:
    """Decode a whole utterance at once: N frames → N × 2048 samples. The reference for streams."""
    samples: Samples = _decode(model, [frames])[0]
    return samples


def _decode(model: nn.Module, windows: Sequence[Sequence[Frame]]) -> Samples:
    """Decode windows of equal length: (B, T) frames → (B, T × 2048) samples."""
    device = next(model.parameters()).device
    codes = torch.tensor(np.asarray(windows, np.int64), device=device)
    levels = [codes[:, :, slots].flatten(1) for slots in map(list, LEVEL_SLOTS)]
    with torch.inference_mode():
        audio = model.decode(levels)  # type: ignore[operator]  # snac has no types
    samples: Samples = audio[:, 0].float().cpu().numpy()
    return samples


class _Slot:
    """A stream: the frames that still matter and how many samples have left."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.first = 0  # index in the stream of frames[0]
        self.emitted = 0


class WindowDecoder:
    """`Decoder` over a prepared SNAC model."""

    lookahead_frames = -(-RADIUS // SAMPLES_PER_FRAME)

    def __init__(self, model: nn.Module, slots: int) -> None:
        self._model = model
        self._slots = [_Slot() for _ in range(slots)]

    @property
    def slots(self) -> int:
        """See `Decoder`."""
        return len(self._slots)

    def reset(self, slot: int) -> None:
        """See `Decoder`."""
        self._slots[slot] = _Slot()

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """See `Decoder`."""
        results = [_EMPTY] * len(batch)
        finals = [self._accept(work) for work in batch]

        def length(index: int) -> int:
            return len(self._slots[batch[index].slot].frames)

        ready = [i for i, work in enumerate(batch) if finals[i] > self._slots[work.slot].emitted]
        for _, group in groupby(sorted(ready, key=length), key=length):
            members = list(group)
            windows = [self._slots[batch[index].slot].frames for index in members]
            for index, audio in zip(members, _decode(self._model, windows), strict=True):
                results[index] = self._emit(self._slots[batch[index].slot], audio, finals[index])
        return results

    def _accept(self, work: Work) -> int:
        """Add the frames; return how many samples of the stream are final now."""
        slot = self._slots[work.slot]
        slot.frames.extend(work.frames)
        arrived = (slot.first + len(slot.frames)) * SAMPLES_PER_FRAME
        return arrived if work.last else max(0, arrived - RADIUS)

    @staticmethod
    def _emit(slot: _Slot, audio: Samples, final: int) -> Samples:
        start = slot.first * SAMPLES_PER_FRAME
        samples = audio[slot.emitted - start : final - start].copy()
        slot.emitted = final
        needed = max(0, (final - RADIUS) // SAMPLES_PER_FRAME)
        del slot.frames[: needed - slot.first]
        slot.first = needed
        return samples
