"""Structured logs: one JSON object a line on standard error.

Rule: what is logged are names and figures. The text of an exception may hold what a client sent, so
whoever logs one, and however, only its type and place are written.
"""

import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

import msgspec
from pythonjsonlogger.json import JsonFormatter

_log = logging.getLogger("orpheus_ws")

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class Formatter(JsonFormatter):
    """JSON without the text of exceptions."""

    def __init__(self) -> None:
        super().__init__(
            "%(levelname)s %(name)s %(message)s",
            rename_fields={"levelname": "level", "name": "logger", "message": "event"},
            timestamp="time",
            json_serializer=_serialise,
        )

    def format(self, record: logging.LogRecord) -> str:
        """One line; exceptions in the message, its arguments and its fields become their types."""
        safe = logging.makeLogRecord({key: _shown(value) for key, value in vars(record).items()})
        if isinstance(record.args, tuple):
            safe.args = tuple(_shown(argument) for argument in record.args)
        safe.exc_info, safe.exc_text = record.exc_info, None
        if record.name == "asyncio":
            # The lines after the first show futures, and with them the text of their exceptions.
            safe.msg, safe.args = record.getMessage().partition("\n")[0], ()
        return super().format(safe)

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 - the library's name
        """Type and innermost place of an exception."""
        kind, _, trace = ei
        frames = traceback.extract_tb(trace)
        place = f" at {frames[-1].name}:{frames[-1].lineno}" if frames else ""
        return f"{kind.__name__ if kind else 'None'}{place}"


def configure(level: str) -> None:
    """Send all logs of the process, from `level` on, through `Formatter`."""
    _say_uncaught()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # At its lower levels the library logs whole frames, and refused handshakes as errors.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)


def _say_uncaught() -> None:
    """What Python itself would print of exceptions, their text among it, goes the same way."""

    def uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        _log.critical("uncaught", exc_info=(kind, error, trace))

    def in_thread(told: threading.ExceptHookArgs) -> None:
        if told.exc_value is not None:
            uncaught(told.exc_type, told.exc_value, told.exc_traceback)

    def unraisable(told: "sys.UnraisableHookArgs") -> None:
        if told.exc_value is not None:
            uncaught(told.exc_type, told.exc_value, told.exc_traceback)

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, in_thread, unraisable


def _shown(value: object) -> object:
    return type(value).__name__ if isinstance(value, BaseException) else value


def _serialise(fields: dict[str, Any], **_: object) -> str:
    return msgspec.json.encode(fields, enc_hook=lambda value: type(value).__name__).decode()
