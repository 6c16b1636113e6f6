"""Lines on their way to a file descriptor that may take them slowly, or not at all.

Rule: whoever logs never waits and never fails. A thread writes; when a reader has stopped reading or a disk is
full, lines are dropped and counted. Python's own streams have locks that a write without an end would hold,
so the descriptor is written to directly.
"""

import os
import queue
import threading
from typing import Final

MOST_LINES: Final = 4096
"""That wait: about a megabyte, and some seconds of a busy server's."""


class Lines:
    """The thread and what waits for it."""

    def __init__(self, descriptor: int, most: int = MOST_LINES) -> None:
        self.dropped = 0
        """Lines that nobody will see."""
        self._descriptor = descriptor
        self._waiting: queue.Queue[str] = queue.Queue(most)
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def put(self, line: str) -> None:
        """Have a line written, without waiting. On any thread."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def finish(self, seconds: float) -> None:
        """Wait until everything is written, but not for longer than this."""
        waiting = self._waiting
        # Not for ever: a signal's handler may be here in the middle of a `put` of its own thread.
        if not waiting.mutex.acquire(timeout=seconds):
            return
        try:
            waiting.all_tasks_done.wait_for(lambda: not waiting.unfinished_tasks, seconds)
        finally:
            waiting.mutex.release()

    def _write(self) -> None:
        while True:
            data = (self._waiting.get() + "\n").encode(errors="backslashreplace")
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:  # no space, or nobody there to read
                self.dropped += 1
            self._waiting.task_done()
