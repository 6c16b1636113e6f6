"""How far a command is, for people: on standard error, and only where that is a terminal.

Rule: a program that reads our output never sees a bar, and nobody sees one for what is over at once.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import click

PATIENCE_SECONDS: Final = 2.0
"""What takes less needs no bar."""
WIDTH: Final = 20


@contextlib.contextmanager
def advancing(
    length: int, label: str, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """A function that is told of every step; of `length` steps in all, there may be fewer."""
    if not sys.stderr.isatty():
        yield lambda _steps: None
        return
    begun, done = clock(), 0
    with contextlib.ExitStack() as stack:
        bar = None

        def advance(steps: int) -> None:
            nonlocal bar, done
            done += steps
            if bar is None and clock() - begun >= PATIENCE_SECONDS:
                drawn = click.progressbar(length=length, label=label, file=sys.stderr, width=WIDTH)
                bar = stack.enter_context(drawn)
            if bar is not None:
                bar.update(min(done, length) - bar.pos)

        yield advance


@contextlib.contextmanager
def parts(total: int) -> Iterator[Callable[[str], None]]:
    """A function that is told of each part before it begins. Elsewhere than on a terminal, a line each."""
    if not sys.stderr.isatty():
        yield lambda part: click.echo(f"{part} …", err=True)
        return
    with click.progressbar(
        length=total, file=sys.stderr, width=WIDTH, show_eta=False, item_show_func=lambda part: part
    ) as bar:
        begun = 0

        def begin(part: str) -> None:
            nonlocal begun
            bar.update(min(begun, total) - bar.pos, part)
            begun += 1

        yield begin
        bar.update(total - bar.pos, "")
