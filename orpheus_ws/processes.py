"""Processes that measure or are measured: started fresh, spoken to over a pipe.

Rule: a child is a function of this package with a pipe to its parent. It ends when its parent does, and
a Ctrl-C at the terminal is the parent's alone to answer.
"""

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from orpheus_ws.errors import BenchFailed

START_SECONDS = 60.0
"""A child that says nothing for so long beyond what was asked of it will not say anything."""


class Child:
    """A running process and the pipe to it."""

    def __init__(self, process: multiprocessing.process.BaseProcess, pipe: Connection) -> None:
        self.pipe = pipe
        """For `multiprocessing.connection.wait`; readable, too, once the process has ended."""
        self._process = process

    def tell(self, message: object) -> None:
        """Send it something; nothing if it has ended."""
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send(message)

    def hear(self, seconds: float = 0.0) -> Any:
        """Wait for the next thing it says, `seconds` longer than a start may take.

        Raises `BenchFailed` when it has ended or says nothing.
        """
        try:
            if self.pipe.poll(START_SECONDS + seconds):
                return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            pass
        raise BenchFailed(f"the process {self._process.name!r} failed; its error is above")

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid


@contextlib.contextmanager
def child(name: str, target: Callable[..., None], *arguments: object) -> Iterator[Child]:
    """Run `target(*arguments, pipe)` in a fresh process; it is killed when the block is left."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), name=name, daemon=True)
    try:
        with _interrupts_held():
            process.start()
            theirs.close()
        yield Child(process, ours)
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
        ours.close()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """What is started meanwhile never sees SIGINT. A signal that comes meanwhile is heeded afterwards,
    or a child would be left with half of what it is to be told.
    """
    # It is started with the first process, and starting it lets SIGINT through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _termination_deferred():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _termination_deferred() -> Iterator[None]:
    """Not blocked: a child would inherit that, and could not be told to end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are answered in the main thread, and interrupt no other
        return
    came: list[int] = []
    answer = signal.signal(signal.SIGTERM, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, answer)
        if came:
            signal.raise_signal(signal.SIGTERM)
