"""Files that commands write their figures into."""

import os
from pathlib import Path

from orpheus_ws.errors import BenchFailed


def expect_writable(path: Path) -> None:
    """Raise `BenchFailed` if `path` cannot be written: before a long measurement, not after it."""
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BenchFailed(f"cannot write {str(path)!r}: no such folder, or it is not yours")


def write(path: Path, content: bytes) -> None:
    """Write a whole file. Raises `BenchFailed` if that cannot be done."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise BenchFailed(f"cannot write {str(path)!r}: {error.strerror}") from error
