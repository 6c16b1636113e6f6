"""The files that a model is, and whether they are those of its manifest.

Rule: a model is what its engines read: weights, configuration and tokenizer, directly in its directory.
Other files there may come and go.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from orpheus_ws.engine.checkpoint_weights import INDEX, read_header
from orpheus_ws.errors import StartupError, unreadable
from orpheus_ws.manifest import File, Manifest, hash_of

NAMES: Final = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    INDEX,
)
_WEIGHTS: Final = ".safetensors"
_PIECE: Final = 1 << 20
"""Bytes that are read at once."""

Told = Callable[[int], object]
"""Is told of bytes that were read, since reading all takes minutes from a slow disk."""


def nobody(_read: int) -> None:
    """For those who do not wait for it."""


def list_files(folder: Path) -> dict[str, Path]:
    """The files that the model is, by name. Blocking."""
    shards = [path.name for path in folder.glob(f"*{_WEIGHTS}")]
    return {name: folder / name for name in sorted((*NAMES, *shards)) if (folder / name).is_file()}


def count_bytes(folder: Path) -> int:
    """How much there is to read, as far as it is known before. Blocking."""
    with contextlib.suppress(OSError):
        return sum(path.stat().st_size for path in list_files(folder).values())
    return 0


def hash_files(folder: Path, told: Told = nobody) -> dict[str, File]:
    """Every file of the model with its hashes, all of it read. Blocking. Raises `StartupError`."""
    return {name: _hash_file(path, told) for name, path in list_files(folder).items()}


def _hash_file(path: Path, told: Told) -> File:
    header = read_header(path).sha256 if path.suffix == _WEIGHTS else None
    return File(size=path.stat().st_size, sha256=_hash(path, told), header_sha256=header)


def _hash(path: Path, told: Told) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                told(len(piece))
        return digest.hexdigest()
    except OSError as error:
        why = unreadable(error, "copy the model again")
        raise StartupError(f"{str(path)!r} cannot be read {why}") from error


def compare(folder: Path, manifest: Manifest, *, whole: bool, told: Told = nobody) -> Iterator[str]:
    """What differs between the files in `folder` and the manifest, a line each. Blocking.

    `whole`: everything is read. Otherwise, of the weights, only sizes and headers are compared (4 GB
    that an engine is about to read need not be read twice): weights of the same names, types and shapes
    with other numbers in them are not noticed then.
    """
    again = f"in {str(folder)!r}: copy the model again, or make the manifest again"
    files, there = manifest.model.files, list_files(folder)
    if hash_of(files) != manifest.model.sha256:
        yield f"the manifest's hash of the whole model is not that of its files {again}"
    for name in sorted(files.keys() - there.keys()):
        yield f"{name} is in the manifest and not {again}"
    for name in sorted(there.keys() - files.keys()):
        yield f"{name} is not in the manifest, but {again}"
    for name in sorted(files.keys() & there.keys()):
        try:
            if not _is_same(there[name], files[name], told, whole=whole):
                yield f"{name} is not the file of the manifest {again}"
        except StartupError as error:
            yield str(error)


def _is_same(path: Path, stated: File, told: Told, *, whole: bool) -> bool:
    if path.stat().st_size != stated.size:
        return False
    if not whole and path.suffix == _WEIGHTS:
        return stated.header_sha256 in (None, read_header(path).sha256)
    return _hash(path, told) == stated.sha256
