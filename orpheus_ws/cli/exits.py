"""Exit codes of every command. They are documented in `docs/operations.md`.

Rule: a code says what a supervisor needs to know to go on. They stay below 64, clear of the ranges
of `sysexits.h` and of what shells use for signals, so that 143 means that SIGTERM killed the process
before it could take it.
"""

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    """What was asked for was done; `serve` had drained."""
    FAILED = 1
    """It did not work, or could not start; one line on standard error says why. `doctor` found a
    problem, `load` a bound that was broken, `calibrate` no number that it could confirm."""
    USAGE = 2
    """The command line was wrong (click's own code)."""
    DIED = 3
    """`serve`: engine or codec died; start a new process."""
    CUT_OFF = 4
    """`serve`: the drain's time was over and open contexts were cut off."""
    STOPPED = 5
    """`serve`: a second signal ended the drain."""
    INTERRUPTED = 6
    """`calibrate`: a signal ended it, and nothing was written to a manifest."""
