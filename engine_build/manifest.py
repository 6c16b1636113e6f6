"""Writes a model's manifest from what lies in its directory and what is installed.

Rule: nothing is measured here. What was measured stays while it is of the same model, and goes with a
message when the model has changed.
"""

import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from orpheus_ws import manifest as manifests
from orpheus_ws.engine.checkpoint import Checkpoint, examine, read_object
from orpheus_ws.engine.checkpoint_files import Told, hash_files, nobody
from orpheus_ws.errors import StartupError
from orpheus_ws.manifest import Limits, Manifest, Model, hash_of

ARCHITECTURE: Final = "LlamaForCausalLM"
_SERVING: Final = ("orpheus-ws", "tensorrt_llm", "tokenizers", "torch")
"""Packages whose versions here are those that are to serve the model."""


class Made(NamedTuple):
    """A manifest, and lines that say what became of the one before."""

    manifest: Manifest
    notes: list[str]


def make(
    folder: Path,
    limits: Limits,
    voices: tuple[str, ...],
    versions: Mapping[str, str],
    told: Told = nobody,
) -> Made:
    """The manifest of the model in `folder`, all of which is read. Blocking; `told` is told of it.

    `versions` go before what is installed. Raises `StartupError`, also if the model is not whole: see
    `python -m engine_build verify`.
    """
    checkpoint = _examine(folder)
    old, notes = _read_old(folder)
    _check_limits(limits, checkpoint)
    files = hash_files(folder, told)
    model = Model(architecture=ARCHITECTURE, files=files, sha256=hash_of(files))
    measured = old.capacity if old else ()
    kept = tuple(each for each in measured if each.model == model.sha256)
    notes += [
        f"dropped: {each.streams} streams measured on {each.gpu}, {each.date}: the model has changed "
        "since; measure again"
        for each in measured
        if each not in kept
    ]
    made = Manifest(
        model=model,
        quantization=checkpoint.quantization,
        built_with={**dict(_versions(folder, checkpoint)), **versions},
        limits=limits,
        voices=voices,
        capacity=kept,
    )
    if old and kept and (old.limits, old.built_with) != (made.limits, made.built_with):
        notes.append(
            "limits or versions have changed since the capacity was measured: measure again"
        )
    if old and old.voices != voices:
        notes.append(f"changed: the voices were {', '.join(old.voices)}")
    return Made(made, notes)


def _read_old(folder: Path) -> tuple[Manifest | None, list[str]]:
    path = folder / manifests.NAME
    if not path.exists():
        return None, []
    try:
        return manifests.read(path), []
    except StartupError:
        return None, ["dropped: what was measured, if anything: the old manifest cannot be read"]


def _examine(folder: Path) -> Checkpoint:
    """The checkpoint, whatever its old manifest says."""
    checkpoint, faults = examine(folder, compared="nothing")
    if checkpoint is None:
        more = f" ({len(faults)} faults: see `python -m engine_build verify`)"
        raise StartupError(faults[0] + (more if len(faults) > 1 else ""))
    return checkpoint


def _check_limits(limits: Limits, checkpoint: Checkpoint) -> None:
    step = limits.max_batch_size + limits.max_prompt_tokens
    if limits.max_num_tokens < step:
        raise StartupError(
            f"a step of {limits.max_batch_size} streams and one prompt has {step} ids: raise "
            "--max-num-tokens to at least that, or lower --max-batch-size"
        )
    longest, limit = (
        limits.max_prompt_tokens + limits.max_tokens,
        checkpoint.config.max_position_embeddings,
    )
    if longest > limit:
        raise StartupError(
            f"the model reads {limit} ids, and prompt and speech are to have {longest}: lower "
            "--max-tokens or --max-prompt-tokens"
        )


def _versions(folder: Path, checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Versions of what wrote the model, as far as it says, and of what is installed to serve it."""
    if checkpoint.config.transformers_version:
        yield "transformers", checkpoint.config.transformers_version
    if checkpoint.quantization.weights:
        producer = read_object(folder, "hf_quant_config.json").get("producer")
        if isinstance(producer, dict) and producer.get("version"):
            yield f"{producer.get('name')}", f"{producer['version']}"
    for package in _SERVING:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
