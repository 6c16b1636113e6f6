"""Exit codes of every command. They are documented in `docs/operations.md`.

Rule: a code says what a supervisor needs to know to go on. They stay below 64, clear of the ranges
of `sysexits.h` and of what shells use for signals, so that 143 means that SIGTERM killed the process
before it could take it.
"""

import logging
import os
import sys
from enum import IntEnum
from typing import NoReturn

import click

from orpheus_ws.errors import OrpheusError


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


def report(error: OrpheusError) -> Exit:
    """Say in one line on standard error what went wrong."""
    click.echo(f"orpheus-ws: {error}", err=True)
    return Exit.FAILED


def leave(code: Exit) -> NoReturn:
    """End this process at once, when all of ours is closed.

    Exit handlers are not run: those of a library that computes in other processes, such as
    TensorRT-LLM, may wait for ever for one that has died.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
