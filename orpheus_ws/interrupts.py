"""Ctrl-C while a program is still being imported.

Rule: it is one line from the first moment on. The commands need a part of a second to be imported, and
libraries in C abort when they are interrupted meanwhile. So this imports as little as it can.
"""

import os
import signal
from collections.abc import Callable
from typing import Final

INTERRUPTED: Final[int] = 6
"""The exit code; see `cli.exits.Exit`."""


def start(program: str, load: Callable[[], Callable[[], None]]) -> None:
    """Run what `load` imports and returns. Ctrl-C before that is one line that begins with `program`."""

    def leave(_number: int, _frame: object) -> None:
        os.write(2, f"{program}: interrupted\n".encode())
        os._exit(INTERRUPTED)

    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, leave)
    run = load()
    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
