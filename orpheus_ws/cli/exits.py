"""How every command ends: in a line that says what to do, and a code. `docs/operations.md` has them.

Rule: a code says what a supervisor needs to know to go on. They stay below 64, clear of the ranges
of `sysexits.h` and of what shells use for signals, so that 143 means that SIGTERM killed the process
before it could take it.
"""

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Final, NoReturn, TextIO

import click

from orpheus_ws import interrupts, logs
from orpheus_ws.errors import OrpheusError, StartupError

PROGRAM: Final = "orpheus-ws"


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    """What was asked for was done; `serve` had drained, or was told to end before it served."""
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
    INTERRUPTED = interrupts.INTERRUPTED
    """Ctrl-C ended it; `calibrate` wrote nothing to a manifest."""


LOG_SECONDS: Final = 2.0
"""For what was logged to be written, when nobody may be reading it any more."""


def run(commands: click.Group, name: str, program: str = PROGRAM) -> Exit:
    """Run a command line, called `name` by its user, to its end.

    What is wrong with it, or went wrong, is one line on standard error that begins with `program`.
    """
    try:
        code = commands.main(prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return Exit.USAGE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else name
        # Some of click's messages are lists.
        said = " ".join(error.format_message().split()).removesuffix(".")
        see = " See" if said.endswith("?") else "; see"
        click.echo(f"{program}: {said}{see} `{command} --help`", err=True)
        return Exit.USAGE
    except click.Abort:
        click.echo(f"{program}: interrupted", err=True)
        return Exit.INTERRUPTED
    except OrpheusError as error:
        return report(error, program)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # Files have their own errors, so this is a standard stream; that nobody reads it is click's affair.
        sys.stdout = _nowhere()  # for what was not flushed
        return report(StartupError(f"cannot write the output: {error.strerror}"), program)
    return Exit(code or Exit.DONE)


def report(error: OrpheusError, program: str = PROGRAM) -> Exit:
    """Say in one line on standard error what went wrong."""
    logs.finish(LOG_SECONDS)
    click.echo(f"{program}: {error}", err=True)
    return Exit.FAILED


def leave(code: Exit) -> NoReturn:
    """End this process at once, when all of ours is closed.

    Exit handlers are not run: those of a library that computes in other processes, such as
    TensorRT-LLM, may wait for ever for one that has died.
    """
    logs.finish(LOG_SECONDS)
    for stream in (sys.stdout, sys.stderr):
        # Nobody reads it, there is no space, or a signal came in the middle of a write.
        with contextlib.suppress(OSError, RuntimeError):
            stream.flush()
    os._exit(code)


def leave_anyway(code: Exit, seconds: float) -> None:
    """End this process so many seconds from now, if it has not ended by then."""
    late = threading.Timer(seconds, leave, (code,))
    late.daemon = True
    late.start()


def ender_of_children() -> Callable[[], None]:
    """What kills the processes below this one: those of a library that a model is being loaded with.

    It is made beforehand: a signal may come in the middle of an import, when another cannot begin.
    """
    try:
        import psutil
    except ModuleNotFoundError:  # of the extras; the engines that have processes bring it
        return lambda: None

    def end() -> None:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    return end


def open_standard_streams() -> None:
    """Have descriptors 0 to 2, whatever this process was started with.

    Where one was closed, the next socket would have its number, and what a library writes to standard
    error would reach a client.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    # Python has no stream for a descriptor that was closed, and everybody takes it that there is one.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")  # a standard stream is never closed
