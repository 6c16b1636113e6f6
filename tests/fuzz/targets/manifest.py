"""The file beside a model: it is a manifest that stays the same when it is written, or an error of one line."""

import tempfile
from pathlib import Path
from typing import Final, get_type_hints

from orpheus_ws import manifest
from orpheus_ws.errors import StartupError

WORDS = tuple(
    name
    for kind in (
        manifest.Manifest, manifest.Model, manifest.File, manifest.Limits, manifest.Capacity,
        manifest.Quantization,
    )
    for name in get_type_hints(kind)
)  # fmt: skip

_FOLDER: Final = tempfile.TemporaryDirectory(prefix="manifest-")
_FILE: Final = Path(_FOLDER.name) / manifest.NAME
_AGAIN: Final = Path(_FOLDER.name) / "again.json"


def one(data: bytes) -> None:
    """See `Target`."""
    _FILE.write_bytes(data)
    try:
        found = manifest.read(_FILE)
    except StartupError as error:
        assert str(error).isprintable(), "an error of several lines"
        return
    manifest.write(_AGAIN, found)
    assert manifest.read(_AGAIN) == found
    for entry in found.capacity:
        assert entry.streams > 0
        same = manifest.find_capacity(found, gpu=entry.gpu, driver=entry.driver, model=entry.model)
        assert same == entry
        assert manifest.add_capacity(found, entry).capacity[-1] == entry
    assert len(manifest.hash_of(found.model.files)) == 64
