"""Which streams make the codec's next step, and how many frames of each. Pure.

Rule: the codec's thread and the simulation in `bench codec-queue` ask the same functions. In flight
is how it runs: nothing is waited for, because streams join and leave at any step. The dynamic batch
is what servers do whose decoder has to be called with whole batches; it is kept to be compared with.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

DYNAMIC_WAIT: Final = 0.015
"""Seconds that a dynamic batch is waited for: the window that published servers use."""

FRAMES_PER_STEP: Final = 32
"""Frames of all streams together that one step should take: a step of few streams costs nearly the
same with more frames, a step of many should not make the next one wait."""


class Ready(NamedTuple):
    """A stream that waits for a step."""

    since: float
    """When it became ready, in seconds of any clock."""
    unheard: bool
    """Nothing of it has been heard yet."""
    in_hand: float
    """Seconds of audio that its listener had then."""


class Policy(Protocol):
    """Decides when the next step is and who takes part."""

    def due(self, ready: Sequence[Ready]) -> float:
        """When a step should be made, if nothing else becomes ready before; `ready` has some."""
        ...

    def choose(self, ready: Sequence[Ready]) -> list[int]:
        """Indices of those who take part, at most as many as a batch holds."""
        ...


class InFlight:
    """At once; those first of whom nothing was heard, then those with the least in hand.

    What was in hand is being played meanwhile, so who has least is who runs dry first, and those
    who come later cannot overtake for ever.
    """

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch

    def due(self, ready: Sequence[Ready]) -> float:
        """See `Policy`."""
        return ready[0].since

    def choose(self, ready: Sequence[Ready]) -> list[int]:
        """See `Policy`."""
        if len(ready) <= self._max_batch:
            return list(range(len(ready)))

        def urgency(index: int) -> tuple[bool, float]:
            stream = ready[index]
            return not stream.unheard, stream.since + stream.in_hand

        return sorted(range(len(ready)), key=urgency)[: self._max_batch]


class Dynamic:
    """When a batch is full or its first member has waited for `DYNAMIC_WAIT`; in order of arrival."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch

    def due(self, ready: Sequence[Ready]) -> float:
        """See `Policy`."""
        first = min(stream.since for stream in ready)
        return first if len(ready) >= self._max_batch else first + DYNAMIC_WAIT

    def choose(self, ready: Sequence[Ready]) -> list[int]:
        """See `Policy`."""
        order = sorted(range(len(ready)), key=lambda index: ready[index].since)
        return order[: self._max_batch]


def frames_allowed(streams: int) -> int:
    """How many frames of each of so many streams one step may take."""
    return max(1, FRAMES_PER_STEP // max(1, streams))
