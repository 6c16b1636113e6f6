"""When a decoder is given up: a step that does not end, or steps that all fail.

Rule: a thread inside a driver cannot be interrupted, and a device that has failed once for good fails every
time; either way nothing is decoded any more, and only a new process helps. What a busy machine or one bad
segment does must not look like it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

LOOK_SECONDS: Final = 1.0
MOST_LOOKS: Final = 30
"""A step that was under way at so many looks in a row does not end: as long as an engine may say nothing.
A step takes milliseconds. Looks are counted rather than time, so that a process that was stopped, decoder
and all, has not hung."""
MOST_FAILURES: Final = 8
"""Steps in a row that may fail. A segment that no decoder can take fails alone; those of others succeed."""


class StepWatch:
    """Looks at the step under way. `since` is a number of its own for each step, None between two."""

    def __init__(self, since: Callable[[], float | None], hangs: Callable[[], None]) -> None:
        self._since = since
        self._hangs = hangs
        self._seen: float | None = None
        self._looks = 0
        self._timer = self._again()

    def stop(self) -> None:
        """Look no more. Idempotent."""
        self._timer.cancel()

    def _again(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        since = self._since()
        self._looks = self._looks + 1 if since is not None and since == self._seen else 0
        self._seen = since
        if self._looks >= MOST_LOOKS:
            self._hangs()
        else:
            self._timer = self._again()
