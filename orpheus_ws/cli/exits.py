"""Exit codes of every command. They are documented in `docs/operations.md`."""

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    """What was asked for was done; `serve` had drained."""
    FAILED = 1
    """It did not work; one line on standard error says why. `doctor` found a problem."""
    USAGE = 2
    """The command line was wrong (click's own code)."""
