"""The simulated engine, which goes wrong in every way that takes the text along, as a text asks for.

It is opened by name, as anybody's engine is: `engine.name=tests.telling_engine`. A library of somebody
else's may put what it was given into an exception, raise it where nobody catches it, or take the whole
process down.
"""

import asyncio
import logging
import os
import threading
from typing import Final, NoReturn

from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Engine, Prompt, simulated
from orpheus_ws.settings import read_options

WAYS: Final = ("raise", "group", "task", "callback", "thread", "finaliser", "log")
"""Words of a text; the engine goes on after the last five."""


class Unruly:
    """Raises when it is collected."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __del__(self) -> None:
        raise ValueError(self.text)


class TellingEngine(simulated.SimulatedEngine):
    """See above."""

    def _join(self, prompt: Prompt) -> simulated._Request:
        words = prompt.text.lower().rstrip(".").split()
        if "abort" in words:
            os.abort()
        if "die" in words:
            self._stop("it was told to die")
        if "group" in words:
            raise ExceptionGroup(prompt.text, [KeyError(prompt.text)])
        for way in words:
            if way in WAYS:
                _tell(way, prompt.text)
        return super()._join(prompt)


def _tell(way: str, text: str) -> None:
    loop = asyncio.get_running_loop()
    match way:
        case "raise":
            _fail(text)
        case "task":
            loop.create_task(_fail_later(text), name="told")  # noqa: RUF006 - nobody waits for it
        case "callback":
            loop.call_soon(_fail, text)
        case "thread":
            threading.Thread(target=_fail, args=(text,)).start()
        case "finaliser":
            Unruly(text)
        case _:
            try:
                _fail(text)
            except ValueError as error:
                log = logging.getLogger("somebody.elses")
                log.exception("it went wrong")
                log.debug("it went wrong: %s", error, stack_info=True)


def _fail(text: str) -> NoReturn:
    raise ValueError(text) from KeyError(text)


async def _fail_later(text: str) -> None:
    _fail(text)


async def open_engine(config: EngineConfig) -> Engine:
    """See `orpheus_ws.engine`."""
    options = read_options(config.options, simulated.Options, "engine.options")
    return TellingEngine(config.capacity or 8, options)
