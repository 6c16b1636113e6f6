"""Files that commands write their figures into."""

from pathlib import Path

from orpheus_ws.errors import BenchFailed


def write(path: Path, content: bytes) -> None:
    """Write a whole file. Raises `BenchFailed` if that cannot be done."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise BenchFailed(f"cannot write {str(path)!r} ({type(error).__name__})") from error
