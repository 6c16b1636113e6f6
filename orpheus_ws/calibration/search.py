"""Which number of streams holds, in few probes. Pure.

Rule: a probe is a function from a number of streams to whether all bounds held. Nothing is known of it
but that more streams are harder; near the limit it may say either. So what a search finds is a
candidate, and only what was confirmed counts.
"""

from collections.abc import Callable
from typing import Final

FINENESS: Final = 0.01
"""The search ends when what holds and what does not are this close, or next to each other."""
STEP_DOWN: Final = 0.02
"""How much less is tried after a confirmation has failed; at least one stream."""
SMALL_STEPS: Final = 2
"""So many steps down are of that size; each one after them is twice as large as the one before."""

Probe = Callable[[int], bool]


def largest(holds: Probe, *, start: int, most: int) -> int:
    """The largest number from 1 to `most` that holds, to within 1 %; 0 if not even one does.

    Begins at `start`, doubles or halves until it has one number that holds and one that does not, and
    then halves what is between them. No number is probed twice.
    """
    low, high, number = 0, most + 1, min(start, most)
    while high - low > max(1, int(FINENESS * low)):
        if holds(number):
            low = number
        else:
            high = number
        if high > most:
            number = min(2 * low, most)
        elif low == 0:
            number = max(1, high // 2)
        else:
            number = (low + high) // 2
    return low


def confirmed(confirm: Probe, found: int) -> int:
    """`found`, or the first number below it that is confirmed; 0 if none is.

    What failed once is not tried again: it was given its chance, and another one would be luck's.
    """
    number, failures = found, 0
    while number > 0 and not confirm(number):
        failures += 1
        step = max(1, round(STEP_DOWN * found)) * 2 ** max(0, failures - SMALL_STEPS)
        # One stream is tried before it is given up.
        number = max(1, number - step) if number > 1 else 0
    return number
