"""The weights of a checkpoint by their headers: is every tensor there, and as it should be?

Rule: safetensors files begin with a header that says what follows, where; it is compared with the
architecture and with the length of the file. Of what follows, only scales are read, four bytes each.
"""

import fnmatch
import hashlib
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from orpheus_ws.errors import StartupError, unreadable

Shape = tuple[int, ...]

INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_LONGEST_HEADER: Final = 100_000_000
"""Bytes; the format's own limit."""
_BYTES: Final = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}
"""Of an element of the types that a checkpoint may have."""
_FLOATS: Final = ("BF16", "F16", "F32")
_SCALES: Final = ("weight_scale", "input_scale")
_HARMLESS: Final = (".k_scale", ".v_scale", ".rotary_emb.inv_freq")
"""Ends of names that may be there: scales of the KV cache, and what transformers once stored."""
_AGAIN: Final = "download it again, or make it again"


class Tensor(msgspec.Struct, frozen=True):
    """What a header says of one tensor."""

    dtype: str
    shape: tuple[Annotated[int, Meta(ge=0)], ...]
    data_offsets: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]
    """Bytes from the end of the header."""


class Header(NamedTuple):
    """Of one file."""

    tensors: dict[str, Tensor]
    size: int
    """Bytes that it takes itself."""
    sha256: str


class Weights(NamedTuple):
    """What was found. `size` is the bytes of all tensors."""

    size: int
    faults: list[str]


def read_header(path: Path) -> Header:
    """Read the header of a safetensors file. Blocking.

    Raises `StartupError` if it is none, or does not account for every byte of the file.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else _LONGEST_HEADER
            content = file.read(min(length, _LONGEST_HEADER))
        size = path.stat().st_size
        described = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        described.pop("__metadata__", None)
        tensors = {name: msgspec.json.decode(raw, type=Tensor) for name, raw in described.items()}
    except OSError as error:
        raise StartupError(f"{str(path)!r} cannot be read {unreadable(error, _AGAIN)}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StartupError(f"{str(path)!r} is no safetensors file: {_AGAIN}") from error
    whole = 8 + length + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if size != whole:
        raise StartupError(
            f"{str(path)!r} has {size} bytes and should have {whole}, so it was cut short or "
            f"overwritten: {_AGAIN}"
        )
    return Header(tensors, 8 + length, hashlib.sha256(start + content).hexdigest())


def examine_weights(
    folder: Path, expected: Mapping[str, Shape], excluded: Sequence[str] | None
) -> Weights:
    """Compare the weights in `folder` with what is expected, by name. Blocking.

    `excluded` are patterns of modules that are not in FP8 while the others are; None: none is.
    """
    headers, faults = _read_all(folder)
    tensors: dict[str, Tensor] = {}
    for header in headers.values():
        tensors |= header.tensors
    if not headers or faults:
        # What is missing is missing for a reason that was said.
        return Weights(0, faults)
    wanted = {name: _wanted(name, shape, excluded) for name, shape in expected.items()}
    faults += _compare(folder, tensors, wanted)
    for name, header in headers.items():
        faults += _scale_faults(folder / name, header)
    first_bytes = (each.data_offsets for each in tensors.values())
    return Weights(sum(end - start for start, end in first_bytes), faults)


def _read_all(folder: Path) -> tuple[dict[str, Header], list[str]]:
    """The headers by file name, and what is wrong with the files."""
    # A directory that may not be listed is an empty one here.
    there = {path.name for path in folder.glob("*.safetensors")}
    faults: list[str] = []
    placed: dict[str, str] = {}
    if (folder / INDEX).exists():
        try:
            placed = read_index(folder)
        except StartupError as error:
            return {}, [str(error)]
        there_should_be = set(placed.values())
    else:
        there_should_be = {_SINGLE}
    if missing := sorted(there_should_be - there):
        faults.append(
            f"no {missing[0]} in {str(folder)!r}, of {len(missing)} weight files that are missing: "
            "copy the whole checkpoint"
        )
    if others := sorted(there - there_should_be):
        faults.append(
            f"{others[0]} in {str(folder)!r} is no part of the model, and may be loaded in its "
            f"place: remove it, or give the {INDEX} that names it"
        )
    headers: dict[str, Header] = {}
    for name in sorted(there & there_should_be):
        try:
            headers[name] = read_header(folder / name)
        except StartupError as error:
            faults.append(str(error))
    if not faults and placed:
        faults += _index_faults(folder, placed, headers)
    return headers, faults


class _Index(msgspec.Struct):
    weight_map: dict[str, Annotated[str, Meta(pattern=r"\A[^/\\\0]+\Z")]]


def read_index(folder: Path) -> dict[str, str]:
    """The file that each tensor is in, by the index. Blocking. Raises `StartupError`."""
    try:
        return msgspec.json.decode((folder / INDEX).read_bytes(), type=_Index).weight_map
    except OSError as error:
        why = unreadable(error, _AGAIN)
        raise StartupError(f"{str(folder / INDEX)!r} cannot be read {why}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StartupError(f"{str(folder / INDEX)!r} is no index: {_AGAIN}") from error


def _index_faults(
    folder: Path, placed: Mapping[str, str], headers: Mapping[str, Header]
) -> Iterator[str]:
    """A tensor that is in two files is in the wrong place in one of them."""
    found = {(name, file) for file, header in headers.items() for name in header.tensors}
    if wrong := sorted(found ^ set(placed.items())):
        name, file = wrong[0]
        yield (
            f"{INDEX} in {str(folder)!r} and the weights differ in {len(wrong)} places, such as "
            f"{name!r} in {file}: {_AGAIN}"
        )


class _Wanted(NamedTuple):
    shape: Shape
    dtypes: tuple[str, ...]
    scaled: bool
    """Whether two scales go with it."""


def _wanted(name: str, shape: Shape, excluded: Sequence[str] | None) -> _Wanted:
    module, _, kind = name.rpartition(".")
    linear = kind == "weight" and module.endswith(("_proj", "lm_head"))
    if not linear or excluded is None:
        return _Wanted(shape, _FLOATS, scaled=False)
    if any(fnmatch.fnmatchcase(module, pattern) for pattern in excluded):
        return _Wanted(shape, _FLOATS, scaled=False)
    return _Wanted(shape, ("F8_E4M3",), scaled=True)


def _compare(
    folder: Path, tensors: Mapping[str, Tensor], wanted: Mapping[str, _Wanted]
) -> Iterator[str]:
    """One fault for each kind of difference, with the first tensor that has it."""
    wanted = {**wanted, **_scales(wanted)}
    shared = [name for name in wanted if name in tensors]
    known = {*wanted, "lm_head.weight"}
    kinds = {
        "missing": [name for name in wanted if name not in tensors],
        "unknown to this architecture": [
            name for name in tensors if name not in known and not name.endswith(_HARMLESS)
        ],
        "of another shape than config.json says": [
            name for name in shared if tensors[name].shape != wanted[name].shape
        ],
        "of another type than the quantisation says": [
            name for name in shared if tensors[name].dtype not in wanted[name].dtypes
        ],
        "of a length that is not their shape's": [
            name for name in shared if not _is_as_long_as_it_says(tensors[name])
        ],
    }
    for kind, names in kinds.items():
        if names:
            yield (
                f"{len(names)} tensors in {str(folder)!r} are {kind}, such as {names[0]!r}: the "
                f"weights do not fit its config.json; download the checkpoint again, or make it again"
            )


def _scales(wanted: Mapping[str, _Wanted]) -> dict[str, _Wanted]:
    scale = _Wanted((), ("F32",), scaled=False)
    modules = [name.rpartition(".")[0] for name, each in wanted.items() if each.scaled]
    return {f"{module}.{name}": scale for module in modules for name in _SCALES}


def _is_as_long_as_it_says(tensor: Tensor) -> bool:
    start, end = tensor.data_offsets
    element = _BYTES.get(tensor.dtype)
    return element is None or end - start == math.prod(tensor.shape) * element


def _scale_faults(path: Path, header: Header) -> Iterator[str]:
    """A scale that is no number makes every output none; a scale of nothing, nothing of it."""
    wrong = []
    with path.open("rb") as file:
        for name, tensor in header.tensors.items():
            if name.endswith(_SCALES) and tensor.dtype == "F32" and tensor.shape == ():
                file.seek(header.size + tensor.data_offsets[0])
                (scale,) = struct.unpack("<f", file.read(4))
                if not (math.isfinite(scale) and scale > 0):
                    wrong.append(name)
    if wrong:
        yield (
            f"{len(wrong)} scales in {str(path)!r} are not numbers above 0, such as {wrong[0]!r}: "
            "quantise the model again, with other prompts to calibrate on"
        )
