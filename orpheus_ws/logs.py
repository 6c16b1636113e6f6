"""Structured logs: one JSON object a line on standard error.

Rule: what is logged are names and figures. The text of an exception may hold what a client sent, so
whoever logs one, and however, only its type and place are written. Nobody waits for a line to be written
(`log_lines`): the event loop logs.
"""

import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, Final

import msgspec
from pythonjsonlogger.json import JsonFormatter

from orpheus_ws.log_lines import Lines

_log = logging.getLogger("orpheus_ws")

LAST_LINE_SECONDS: Final = 5.0
"""For what a program that fails says last; a reader that takes none of it is not waited for longer."""

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


class Handler(logging.Handler):
    """Writes lines to standard error as it is now."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = Lines(sys.stderr.fileno())
        self.setFormatter(Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Does not wait. What cannot be made a line of is one that is dropped."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - the library would print it, text and all
            self.lines.dropped += 1
        else:
            self.lines.put(line)


def configure(level: str) -> None:
    """Send all logs of the process, from `level` on, through `Formatter`."""
    _say_uncaught()
    handler = Handler()
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # At its lower levels the library logs whole frames, and refused handshakes as errors.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)


def _say_uncaught() -> None:
    """What Python itself would print of exceptions, their text among it, goes the same way."""

    def uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        _log.critical("uncaught", exc_info=(kind, error, trace))

    def in_program(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        uncaught(kind, error, trace)
        finish(LAST_LINE_SECONDS)  # the process ends with it

    def in_thread(told: threading.ExceptHookArgs) -> None:
        if told.exc_value is not None:
            uncaught(told.exc_type, told.exc_value, told.exc_traceback)

    def unraisable(told: "sys.UnraisableHookArgs") -> None:
        if told.exc_value is not None:
            uncaught(told.exc_type, told.exc_value, told.exc_traceback)

    sys.excepthook, threading.excepthook, sys.unraisablehook = in_program, in_thread, unraisable


def dropped() -> int:
    """Lines that could not be written since logs were configured."""
    return sum(handler.lines.dropped for handler in _handlers())


def finish(seconds: float) -> None:
    """Wait until what was logged is written, `seconds` at most."""
    for handler in _handlers():
        handler.lines.finish(seconds)


def _handlers() -> list[Handler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, Handler)]


def _shown(value: object) -> object:
    return type(value).__name__ if isinstance(value, BaseException) else value


def _serialise(fields: dict[str, Any], **_: object) -> str:
    return msgspec.json.encode(fields, enc_hook=lambda value: type(value).__name__).decode()
