"""The manifest: what a checkpoint is, what made it, within which limits it is served, as whom.

Rule: plain data, read and written here alone. It lies beside the model, as `manifest.json`. An unknown
key is an error, for a manifest that is half understood promises nothing. What was measured counts for
one GPU, one driver and one model: the three together find it.
"""

import contextlib
import datetime
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from orpheus_ws.errors import StartupError, unreadable

NAME: Final = "manifest.json"
FORMAT: Final = 1
"""Another number is another set of keys."""

_REMAKE: Final = "make it again with `python -m engine_build manifest`"

Positive = Annotated[int, Meta(ge=1)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Text = Annotated[str, Meta(pattern=r"\S")]
FileName = Annotated[str, Meta(pattern=r"\A[^/\\\0]+\Z")]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class File(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """One file of the model."""

    size: Annotated[int, Meta(ge=0)]
    """Bytes."""
    sha256: Sha256
    """Of the whole file."""
    header_sha256: Sha256 | None = None
    """Of a safetensors file's header: it can be compared without reading the weights."""


class Model(_Part, frozen=True, kw_only=True):
    """The files that the model is."""

    architecture: Text
    """As transformers calls it: `LlamaForCausalLM`."""
    files: Annotated[dict[FileName, File], Meta(min_length=1)]
    """By their name in the model's directory."""
    sha256: Sha256
    """Of all of them: see `hash_of`."""


class Quantization(_Part, frozen=True, kw_only=True):
    """As `hf_quant_config.json` names it, such as `FP8`; None: not quantised."""

    weights: Text | None = None
    kv_cache: Text | None = None


class Limits(_Part, frozen=True, kw_only=True):
    """What the engine is sized for."""

    max_batch_size: Positive
    """Streams at once at most: `engine.capacity` may be less, and not more."""
    max_num_tokens: Positive
    """Ids in one step of the batch at most, those of new prompts included."""
    max_prompt_tokens: Positive
    """Ids of a segment's prompt at most."""
    max_tokens: Positive
    """Ids of a segment's speech at most."""
    graph_sizes: tuple[Positive, ...] = ()
    """Batch sizes with a CUDA graph. Empty: steps of a third up to the capacity."""


class Capacity(_Part, frozen=True, kw_only=True):
    """What was measured on one machine with one model."""

    gpu: Text
    """Name of the GPU, or of the MIG profile where it is a slice."""
    driver: Text
    """Version of NVIDIA's driver."""
    model: Sha256
    """`Model.sha256` of the model that was measured."""
    streams: Positive
    """How many speak at once in real time."""
    date: datetime.date
    evidence: dict[str, Any] = {}
    """How it was measured, in figures of its own; JSON."""


class Manifest(_Part, frozen=True, kw_only=True):
    """The whole file."""

    format: Literal[1] = FORMAT
    model: Model
    quantization: Quantization = Quantization()
    built_with: dict[Text, Text]
    """Versions by package, of those that made the model and of those that are to serve it."""
    limits: Limits
    voices: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """Names that the model was trained on; the first is the default."""
    capacity: tuple[Capacity, ...] = ()
    """One for each GPU, driver and model; empty until it is measured."""

    def __post_init__(self) -> None:
        """Raise `ValueError` where two entries have one name."""
        keys = [(each.gpu, each.driver, each.model) for each in self.capacity]
        if len(set(self.voices)) != len(self.voices) or len(set(keys)) != len(keys):
            raise ValueError("two entries have one name")


def hash_of(files: Mapping[str, File]) -> str:
    """One SHA-256 for all files: over a line `SHA256  SIZE  NAME` for each, by name."""
    lines = (f"{file.sha256}  {file.size}  {name}\n" for name, file in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def find_capacity(manifest: Manifest, *, gpu: str, driver: str, model: str) -> Capacity | None:
    """What was measured on this GPU with this driver and the model of this hash, if anything."""
    return next(
        (
            each
            for each in manifest.capacity
            if (each.gpu, each.driver, each.model) == (gpu, driver, model)
        ),
        None,
    )


def add_capacity(manifest: Manifest, measured: Capacity) -> Manifest:
    """The manifest with this entry, instead of an older one of the same GPU, driver and model."""
    key = (measured.gpu, measured.driver, measured.model)
    others = [each for each in manifest.capacity if (each.gpu, each.driver, each.model) != key]
    return msgspec.structs.replace(manifest, capacity=(*others, measured))


class _Format(msgspec.Struct):
    format: int


def read(path: Path) -> Manifest:
    """Read the file. Blocking. Raises `StartupError` that says what to do."""
    try:
        content = path.read_bytes()
    except OSError as error:
        why = unreadable(error, "make it with `python -m engine_build manifest`")
        raise StartupError(f"no manifest can be read at {str(path)!r} {why}") from error
    try:
        number = msgspec.json.decode(content, type=_Format).format
        if number != FORMAT:
            raise StartupError(
                f"{str(path)!r} has the format {number}, and this orpheus-ws reads {FORMAT}: "
                f"{_REMAKE}, or use the orpheus-ws that made it"
            )
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.ValidationError as error:
        raise StartupError(
            f"{str(path)!r} is no manifest: {describe_fault(error)}; {_REMAKE}"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StartupError(f"{str(path)!r} is not valid JSON: {_REMAKE}") from error


def write(path: Path, manifest: Manifest) -> None:
    """Put the file in place, whole or not at all; equal manifests give equal bytes. Blocking.

    Raises `StartupError` that says what to do.
    """
    content = msgspec.json.encode(manifest, order="deterministic")
    try:
        # Beside it, so that it can take its name in one step.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.format(content, indent=2) + b"\n")
                file.flush()
                os.fsync(handle)
            # What is made there is for its maker alone.
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise StartupError(
            f"the manifest cannot be written to {str(path)!r} ({error.strerror}): make room "
            "on the disk, or let this user write into the directory"
        ) from error


_UNKNOWN: Final = re.compile(r"unknown field `(\w+)`")
_MISSING: Final = re.compile(r"missing required field `(\w+)`")
_PATH: Final = re.compile(r"`\$\.?([\w.]*)[^`]*`\Z")
"""Where msgspec says that an error was, up to what is inside a list or a table."""


def describe_fault(error: msgspec.ValidationError) -> str:
    """Say which key is wrong, missing or unknown. The error's own text is not passed on: it may hold anything."""
    said = str(error)
    at = _PATH.search(said)
    where = at[1].rstrip(".") if at else ""
    for pattern, fault in ((_UNKNOWN, "is unknown"), (_MISSING, "is missing")):
        if found := pattern.search(said):
            return f"`{where}.{found[1]}` {fault}" if where else f"`{found[1]}` {fault}"
    return f"`{where}` has a wrong value" if where else "its values do not go together"
