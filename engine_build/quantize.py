"""An FP8 checkpoint of a BF16 one: weights, inputs of the linear layers, and the KV cache by cast.

Rule: nvidia-modelopt calibrates and exports, and its result is believed only as far as it was checked.
Output head and embedding stay as they are. A directory appears under its name when it is whole, or not
at all.
"""

import contextlib
import copy
import importlib
import io
import logging
import secrets
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import click
import torch
import transformers
from safetensors import SafetensorError
from transformers import LlamaConfig, LlamaForCausalLM

from engine_build import calibration
from engine_build.calibration import Calibration
from orpheus_ws.engine.checkpoint import Checkpoint, examine, open_checkpoint, read_object
from orpheus_ws.engine.torch_device import check_device
from orpheus_ws.engine.torch_model import load_model
from orpheus_ws.errors import StartupError
from orpheus_ws.manifest import Quantization

KvFormat = Literal["fp8", "bf16"]

MODELOPT: Final = "0.47"
"""The version that this was run with."""

_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def write(
    model: Path,
    out: Path,
    *,
    sequences: Path | None = None,
    prompts: Path = calibration.PROMPTS,
    kv: KvFormat = "fp8",
    device: str = "cpu",
) -> Calibration:
    """Quantise the checkpoint in `model` into `out`, which must be empty or not be there.

    Calibrated on `sequences`, a file of JSON Lines, or on what the model says to `prompts`. Returns
    what it was calibrated on. Raises `StartupError`; what takes no time is checked first. When it is
    interrupted, and when it raises, nothing is left behind. Blocking, for minutes.
    """
    checkpoint = _open(model)
    check_device(device, "--device")
    texts = calibration.read_prompts(prompts) if sequences is None else []
    with _appearing(out) as unfinished:
        tools = _Modelopt()
        if sequences is None:
            made = calibration.speak(checkpoint, texts, device=device)
        else:
            made = calibration.read(sequences, checkpoint.encode)
        _quantize(tools, model, unfinished, made, kv, device)
        for name in _TOKENIZER_FILES:
            if (model / name).exists():
                shutil.copyfile(model / name, unfinished / name)
        _check_written(unfinished, checkpoint, kv)
    return made


class _Modelopt:
    """The parts of nvidia-modelopt that are used; importing them takes seconds.

    Raises `StartupError` if they are not there.
    """

    def __init__(self) -> None:
        try:
            with _quiet():
                quantization = importlib.import_module("modelopt.torch.quantization")
                presets = importlib.import_module("modelopt.recipe.presets")
                export = importlib.import_module("modelopt.torch.export")
                self._linear: dict[str, Any] = quantization.FP8_DEFAULT_CFG
                self._cache: list[Any] = presets.KV_QUANT_CFG_CHOICES["fp8_cast"]["quant_cfg"]
                self.quantize: Callable[..., Any] = quantization.quantize
                self.export: Callable[..., Any] = export.export_hf_checkpoint
        except (ImportError, AttributeError, KeyError) as error:
            raise StartupError(
                f"`quantize` needs nvidia-modelopt {MODELOPT}: pip install 'orpheus-ws[quantize]', in "
                "an environment of its own"
            ) from error

    def recipe(self, kv: KvFormat) -> dict[str, Any]:
        """What is quantised and how. It leaves out the output head itself."""
        recipe = copy.deepcopy(self._linear)
        if kv == "fp8":
            # By cast: with the scale 1, which is what TensorRT-LLM reads them with.
            recipe["quant_cfg"] += copy.deepcopy(self._cache)
        return recipe


def _quantize(
    tools: _Modelopt, source: Path, out: Path, made: Calibration, kv: KvFormat, device: str
) -> None:
    model = load_model(str(source), device=device, dtype="bfloat16", attention="sdpa")
    # The export names the architecture from here, and fails without.
    model.config.architectures = [LlamaForCausalLM.__name__]

    def calibrate(calibrated: LlamaForCausalLM) -> None:
        sequences, label = made.sequences, "Calibrating"
        with click.progressbar(sequences, label=label, file=sys.stderr) as progress:
            for ids in progress:
                calibrated.model(input_ids=torch.tensor([ids], device=device), use_cache=False)

    try:
        with _quiet(), torch.inference_mode():
            tools.quantize(model, tools.recipe(kv), calibrate)
            tools.export(model, export_dir=out)
    except (OSError, SafetensorError):
        # The latter comes of writing alone; what is read was read before.
        raise
    except Exception as error:
        # What else comes out of it depends on its version and on the device.
        raise StartupError(
            f"nvidia-modelopt could not quantise the model ({type(error).__name__}): is there memory "
            f"for it on {device!r}, and is its version {MODELOPT}?"
        ) from error
    for file in out.iterdir():
        # The weights would be readable by their owner alone.
        file.chmod(out.stat().st_mode & 0o666)


def _open(model: Path) -> Checkpoint:
    """Find everything that can be wrong with a checkpoint before it is loaded."""
    checkpoint = open_checkpoint(str(model), "torch")
    if checkpoint.quantization != Quantization():
        raise StartupError(
            f"the checkpoint in {str(model)!r} is quantised already: give the one it was made of"
        )
    longest = checkpoint.config.max_position_embeddings
    if longest < calibration.CONTEXT:
        raise StartupError(
            f"the model reads {longest} ids, and a prompt and its speech have up to "
            f"{calibration.CONTEXT}: give a model with a longer context"
        )
    try:
        understood = LlamaConfig.from_pretrained(model, local_files_only=True).to_dict()
    except Exception as error:
        # What transformers raises for a wrong value depends on its version.
        raise StartupError(
            f"config.json in {str(model)!r} has values that transformers does not take "
            f"({type(error).__name__}): download it again"
        ) from error
    _check_rope(checkpoint, understood)
    return checkpoint


def _check_rope(checkpoint: Checkpoint, written: dict[str, Any]) -> None:
    """TensorRT-LLM 1.2 reads both keys, and without a word takes other values if they are not there."""
    expected, scaling = checkpoint.config, written.get("rope_scaling") or {}
    if written.get("rope_theta") != expected.rope_theta or not (
        (expected.rope_scaling or {}).items() <= scaling.items()
    ):
        raise StartupError(
            f"transformers {transformers.__version__} writes a config.json without the model's "
            "rope_theta and rope_scaling, and the engine would speak badly: pip install "
            "'transformers>=4.57,<5', in an environment of its own"
        )


def _check_written(out: Path, checkpoint: Checkpoint, kv: KvFormat) -> None:
    """Raise `StartupError` unless what was written is what was asked for."""
    _check_rope(checkpoint, read_object(out, "config.json"))
    expected = Quantization(weights="FP8", kv_cache="FP8" if kv == "fp8" else None)
    written, faults = examine(out, compared="nothing")
    if written is None or written.quantization != expected:
        found = faults[0] if faults else "it has another quantisation"
        raise StartupError(
            f"nvidia-modelopt did not write what was asked for; is its version {MODELOPT}? ({found})"
        )


@contextlib.contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A new directory beside `out`, which gets its name at the end, or is removed."""
    try:
        if out.exists() and any(out.iterdir()):
            raise StartupError(f"{out} is not empty: name a new directory")
        whole = out.absolute()
        unfinished = whole.with_name(f".{whole.name}.{secrets.token_hex(4)}")
        unfinished.mkdir()
        try:
            yield unfinished
            unfinished.replace(whole)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise StartupError(f"cannot write {out}: {error.strerror}") from error
    except SafetensorError as error:
        raise StartupError(
            f"cannot write the weights of {out}: is there room for them on the disk?"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep to ourselves what the library prints, logs and warns of."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
