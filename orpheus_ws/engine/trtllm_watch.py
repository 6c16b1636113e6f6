"""A thread that sees TensorRT-LLM die, whatever the event loop is doing.

Rule: it looks, tells the event loop, and ends this process when nobody there can be told. TensorRT-LLM
1.2 may block the event loop for ever once its worker has died: a call of it then shuts it down and
waits for threads that wait for the worker, or waits for somebody to take what it sends. No code on
the event loop could see that, and no client could be told. Time is counted in own looks: after this
process was stopped for a while, the clock alone would say that all else hangs.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

LOOK_SECONDS: Final = 0.2
SILENCE_SECONDS: Final = 10.0
"""An engine that is asked and gives no id for so long is dead, though its processes are there."""
STUCK_SECONDS: Final = 10.0
"""An event loop that does nothing for so long never will: nobody who listens has audio left."""
DIED: Final = 3
"""Exit code of `orpheus-ws serve` whose engine died."""

_log = logging.getLogger(__name__)


class Watched(NamedTuple):
    """What is looked at, and what is done. All but `died` is called on the thread."""

    is_dead: Callable[[], bool]
    """Whether the engine or its processes say so."""
    progress: Callable[[], int | None]
    """A number that is another after any id; None while nobody waits for one."""
    died: Callable[[], None]
    """Called once, on the event loop."""
    end_workers: Callable[[], None]
    """Called before this process ends."""


def watch(watched: Watched, loop: asyncio.AbstractEventLoop, over: threading.Event) -> None:
    """Look until `over` is set. Blocking.

    When the event loop runs and does not answer for `STUCK_SECONDS` this process ends with `DIED`,
    without its exit handlers, which are the library's.
    """
    answered = threading.Event()
    answered.set()
    told = False
    last: int | None = None
    silent = stuck = 0
    try:
        while not over.wait(LOOK_SECONDS):
            progress = watched.progress()
            silent = silent + 1 if progress is not None and progress == last else 0
            last = progress
            if not told and (silent * LOOK_SECONDS >= SILENCE_SECONDS or watched.is_dead()):
                told = True
                loop.call_soon_threadsafe(watched.died)
            if answered.is_set() or not loop.is_running():
                stuck = 0
                answered.clear()
                loop.call_soon_threadsafe(answered.set)
            else:
                stuck += 1
            if stuck * LOOK_SECONDS >= STUCK_SECONDS:
                _log.critical(
                    "TensorRT-LLM blocks the event loop", extra={"seconds": STUCK_SECONDS}
                )
                watched.end_workers()
                os._exit(DIED)
    except RuntimeError:
        return  # the event loop has gone without closing the engine; nobody is left to tell
