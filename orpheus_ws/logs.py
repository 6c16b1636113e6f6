"""Structured logs: one JSON object a line on standard error.

Rule: what is logged are names and figures. The text of an exception may hold what a client sent, so
only its type and place are written, whoever logs it.
"""

import logging
import sys
import traceback
from types import TracebackType

from pythonjsonlogger.json import JsonFormatter

from orpheus_ws.errors import StartupError

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class Formatter(JsonFormatter):
    """JSON without the text of exceptions."""

    def __init__(self) -> None:
        super().__init__(
            "%(levelname)s %(name)s %(message)s",
            rename_fields={"levelname": "level", "name": "logger", "message": "event"},
            timestamp="time",
        )

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802 - the library's name
        """Type and innermost place of an exception."""
        kind, _, trace = ei
        frames = traceback.extract_tb(trace)
        place = f" at {frames[-1].name}:{frames[-1].lineno}" if frames else ""
        return f"{kind.__name__ if kind else 'None'}{place}"


def configure(level: str) -> None:
    """Send all logs of the process through `Formatter`. Raises `StartupError` for a wrong level."""
    if level.upper() not in logging.getLevelNamesMapping():
        raise StartupError(f"log.level {level!r} is not known; use debug, info, warning or error")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # At its lower levels the library logs whole frames, and refused handshakes as errors.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
