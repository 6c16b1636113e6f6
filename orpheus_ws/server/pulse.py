"""Whether the event loop turns, and how much it has to do.

Rule: a timer that is due ten times a second; by how much it comes late is how late everything else
comes. The metrics are served on a thread of their own, so they also show a loop that stands still now.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from orpheus_ws.metrics import Metrics
from orpheus_ws.trace import clock

BEAT_SECONDS: Final = 0.1
"""A frame is 85 ms: what stops the loop for less than this is hardly heard. It costs 10 turns a second."""


class Pulse:
    """The timer. Made and stopped on the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._loop = asyncio.get_running_loop()
        self._metrics = metrics
        self._due = clock() + BEAT_SECONDS
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        metrics.watch_loop(lambda: self.late, lambda: len(asyncio.all_tasks(self._loop)))

    @property
    def late(self) -> float:
        """Seconds for which the event loop has not turned though it should. On any thread."""
        return max(0.0, clock() - self._due)

    def stop(self) -> None:
        """Measure no more. Idempotent."""
        self._timer.cancel()

    def _beat(self) -> None:
        self._metrics.loop_late.observe(self.late)
        self._due = clock() + BEAT_SECONDS
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)


@contextlib.asynccontextmanager
async def beating(metrics: Metrics) -> AsyncIterator[Pulse]:
    """Have it measured until the block is left."""
    pulse = Pulse(metrics)
    try:
        yield pulse
    finally:
        pulse.stop()
