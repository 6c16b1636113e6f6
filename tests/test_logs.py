"""Logs: one JSON object a line, names and figures, never the text of an exception."""

import asyncio
import io
import json
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.logs import Formatter, configure

SECRET = "the words of a user"

log = logging.getLogger("orpheus_ws.test")


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """What `configure` changes is put back."""
    loggers = [logging.getLogger(name) for name in (None, "websockets")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    yield
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


def refuse(constant: str) -> Any:
    """NaN and Infinity are not JSON."""
    raise AssertionError(f"{constant} is not JSON")


def written(
    write: Callable[[logging.Logger], object], name: str = "orpheus_ws.test"
) -> dict[str, Any]:
    """The one object on the one line that a logger writes through our formatter."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter())
    logger = logging.getLogger(name)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        write(logger)
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
    line, end, rest = stream.getvalue().partition("\n")
    assert (end, rest) == ("\n", "")
    content = json.loads(line, parse_constant=refuse)
    assert isinstance(content, dict)
    return content


def failing() -> None:
    """Raise an exception that holds what a user said, as library errors do."""
    raise ValueError(SECRET)


def within_failure(write: Callable[[Exception], object]) -> None:
    """Call `write` while such an exception is being handled."""
    try:
        failing()
    except ValueError as error:
        write(error)


# Lines --------------------------------------------------------------------------------------------


def test_one_object_a_line() -> None:
    """An entry has its level, logger, event and time, and what was given besides."""
    content = written(lambda logger: logger.warning("it %s", "happened", extra={"sockets": 5}))
    assert content.pop("time").endswith("Z")
    assert content == {
        "level": "WARNING",
        "logger": "orpheus_ws.test",
        "event": "it happened",
        "sockets": 5,
    }


@given(text=st.text(), value=st.one_of(st.text(), st.integers(), st.none(), st.binary()))
@settings(deadline=None)
def test_any_text_stays_on_its_line(text: str, value: object) -> None:
    """Line ends, quotes and control characters are escaped, whatever is logged."""
    content = written(lambda logger: logger.warning("%s", text, extra={"value": value}))
    assert content["event"] == text
    assert "value" in content


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf])
def test_every_figure_is_json(figure: float) -> None:
    """A figure that JSON cannot express does not make the line unreadable."""
    assert written(lambda logger: logger.warning("odd", extra={"figure": figure}))["event"] == "odd"


# Exceptions ---------------------------------------------------------------------------------------


def test_an_exception_is_its_type_and_place() -> None:
    """Of a logged exception its type and innermost place are written, and not its text."""
    content = written(lambda _: within_failure(lambda error: log.error("bad", exc_info=error)))
    assert SECRET not in json.dumps(content)
    assert content["event"] == "bad"
    assert content["exc_info"].startswith("ValueError at failing:")


def test_causes_are_not_written_either() -> None:
    """Neither a chained exception nor the members of a group bring their text."""

    def log_chain(_: Exception) -> None:
        try:
            try:
                failing()
            except ValueError as error:
                raise ExceptionGroup(SECRET, [KeyError(SECRET)]) from error
        except ExceptionGroup:
            log.exception("bad")

    content = written(lambda _: within_failure(log_chain))
    assert SECRET not in json.dumps(content)
    assert content["exc_info"].startswith("ExceptionGroup at ")


def test_an_exception_that_was_never_raised() -> None:
    """An exception without a traceback is its type alone."""
    content = written(lambda logger: logger.error("bad", exc_info=ValueError(SECRET)))
    assert content["exc_info"] == "ValueError"


def test_another_formatter_before_ours() -> None:
    """A handler that formatted the same record with its text does not make us repeat it."""

    def write(logger: logging.Logger) -> None:
        record = logger.makeRecord(
            logger.name, logging.ERROR, "", 0, "bad", (), (ValueError, ValueError(SECRET), None)
        )
        assert SECRET in logging.Formatter().format(record)
        logger.handle(record)

    assert SECRET not in json.dumps(written(write))


@pytest.mark.parametrize(
    "write",
    [
        lambda error: log.error("bad %s", error),
        lambda error: log.error(error),
        lambda error: log.error("bad", extra={"error": error}),
        lambda error: log.error("bad %r", error),
    ],
    ids=["argument", "message", "extra", "repr"],
)
def test_exceptions_as_values(write: Callable[[Exception], object]) -> None:
    """An exception given as a message, an argument or a field is its type there too."""
    content = written(lambda _: within_failure(write))
    assert SECRET not in json.dumps(content)
    assert "ValueError" in json.dumps(content)


def test_the_event_loop_logs_no_text_either() -> None:
    """An exception that nobody retrieved, which asyncio logs by itself, stays without its text."""

    def write(_: logging.Logger) -> None:
        loop = asyncio.new_event_loop()
        try:
            future: asyncio.Future[None] = loop.create_future()
            future.set_exception(ValueError(SECRET))
            exception = future.exception()
            message = "Future exception was never retrieved"
            context = {"message": message, "exception": exception, "future": future}
            loop.default_exception_handler(context)
        finally:
            loop.close()

    content = written(write, name="asyncio")
    assert SECRET not in json.dumps(content)
    assert "ValueError" in json.dumps(content)


# Configuring --------------------------------------------------------------------------------------


def test_configure_writes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """All loggers of the process write JSON lines to standard error, from the level on."""
    configure("info")
    logging.getLogger("any.library").debug("below")
    logging.getLogger("any.library").info("above", extra={"figure": 1})
    within_failure(lambda error: logging.getLogger("any.library").error("bad", exc_info=error))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [json.loads(line) for line in captured.err.splitlines()]
    assert [line["event"] for line in lines] == ["above", "bad"]
    assert lines[0]["figure"] == 1
    assert SECRET not in captured.err


@pytest.mark.parametrize("level", ["debug", "INFO", "Warning", "error"])
def test_levels_in_any_case(level: str) -> None:
    """A level is known in capitals and without."""
    configure(level)
    assert logging.getLogger().level == logging.getLevelNamesMapping()[level.upper()]


def test_frames_are_never_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """Even at debug level the WebSocket library, which would log what clients send, says nothing."""
    configure("debug")
    for name in ("websockets", "websockets.server", "websockets.protocol"):
        logging.getLogger(name).debug("< TEXT '%s'", SECRET)
        logging.getLogger(name).error("connection handler failed")
    assert capsys.readouterr().err == ""


class Unruly:
    """Raises when it is collected."""

    def __del__(self) -> None:
        failing()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("where", ["thread", "finaliser", "program"])
def test_what_nobody_catches(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Python would print it whole; it is one line, with its type and its place."""
    configure("error")
    if where == "thread":
        thread = threading.Thread(target=failing)
        thread.start()
        thread.join()
    elif where == "finaliser":
        Unruly()
    else:
        within_failure(lambda error: sys.excepthook(type(error), error, error.__traceback__))
    (line,) = capsys.readouterr().err.splitlines()
    content = json.loads(line)
    assert SECRET not in line
    assert (content["level"], content["event"]) == ("CRITICAL", "uncaught")
    assert content["exc_info"].startswith("ValueError at failing:")


def test_whose_process_it_is() -> None:
    """Only a program that configures its logs gets this: importing changes nothing of another's."""
    before = sys.excepthook, threading.excepthook, sys.unraisablehook
    configure("error")
    assert (sys.excepthook, threading.excepthook, sys.unraisablehook) != before
