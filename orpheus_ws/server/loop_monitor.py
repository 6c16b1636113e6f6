"""Whether the event loop turns, and how much it has to do.

Rule: a timer that is due ten times a second; by how much it comes late is how late everything else
comes. The metrics are served on a thread of their own, so they also show a loop that stands still now.
What the whole process can do for it is here, too: not to search for garbage while it speaks.
"""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Final

from orpheus_ws.metrics import Metrics
from orpheus_ws.trace import clock

INTERVAL_SECONDS: Final = 0.1
"""A frame is 85 ms: what stops the loop for less than this is hardly heard. It costs 10 turns a second."""

OBJECTS_BETWEEN_COLLECTIONS: Final = 10_000
"""Containers that may come to be before the youngest are searched for cycles. One step of an engine makes
as many as Python's own 700, nearly all are gone when it is over, and so each step would have a search that
finds nothing. To search so many takes well below a millisecond."""


def spare_collections() -> None:
    """Have the collector search less: not what exists by now, and new things seldom. For the process."""
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


class LoopMonitor:
    """The timer. Made and stopped on the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._loop = asyncio.get_running_loop()
        self._metrics = metrics
        self._due = clock() + INTERVAL_SECONDS
        self._timer = self._loop.call_later(INTERVAL_SECONDS, self._tick)
        metrics.watch_loop(lambda: self.late, lambda: len(asyncio.all_tasks(self._loop)))

    @property
    def late(self) -> float:
        """Seconds for which the event loop has not turned though it should. On any thread."""
        return max(0.0, clock() - self._due)

    def stop(self) -> None:
        """Measure no more. Idempotent."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._metrics.loop_late.observe(self.late)
        self._due = clock() + INTERVAL_SECONDS
        self._timer = self._loop.call_later(INTERVAL_SECONDS, self._tick)


@contextlib.asynccontextmanager
async def monitoring(metrics: Metrics) -> AsyncIterator[LoopMonitor]:
    """Have it measured until the block is left."""
    monitor = LoopMonitor(metrics)
    try:
        yield monitor
    finally:
        monitor.stop()
