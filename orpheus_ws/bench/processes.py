"""Processes of a benchmark: started fresh, spoken to over a pipe, measured by the operating system.

Rule: a child is a function of this package with a pipe to its parent. It ends when its parent does.
"""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import psutil

from orpheus_ws.errors import BenchFailed

START_SECONDS = 60.0
"""A child that says nothing for so long beyond what was asked of it will not say anything."""


class Child:
    """A running process and the pipe to it."""

    def __init__(self, process: multiprocessing.process.BaseProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe
        assert process.pid is not None
        self._statistics = psutil.Process(process.pid)

    def tell(self, message: object) -> None:
        """Send it something."""
        self._pipe.send(message)

    def hear(self, seconds: float = 0.0) -> Any:
        """Wait for the next thing it says, `seconds` longer than a start may take.

        Raises `BenchFailed` when it has ended or says nothing.
        """
        try:
            if self._pipe.poll(START_SECONDS + seconds):
                return self._pipe.recv()
        except EOFError:
            pass
        raise BenchFailed(f"the process {self._process.name!r} failed; its error is above")

    def cpu_seconds(self) -> float:
        """CPU time it has used, in user and kernel mode."""
        times = self._statistics.cpu_times()
        return times.user + times.system

    def resident_bytes(self) -> int:
        """Memory it holds."""
        return int(self._statistics.memory_info().rss)


@contextlib.contextmanager
def child(name: str, target: Callable[..., None], *arguments: object) -> Iterator[Child]:
    """Run `target(*arguments, pipe)` in a fresh process; it is killed when the block is left."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), name=name, daemon=True)
    process.start()
    theirs.close()
    try:
        yield Child(process, ours)
    finally:
        process.kill()
        process.join()
        ours.close()
