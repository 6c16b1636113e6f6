"""Which streams make the codec's next step, and how many frames of each. Pure.

Rule: the codec's thread and the simulation in `bench codec-queue` ask the same functions. In flight
is how it runs: nothing is waited for, because streams join and leave at any step. The dynamic batch
is what servers do whose decoder has to be called with whole batches; it is kept to be compared with.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Literal, Protocol

import msgspec

from orpheus_ws.audio import Portion

DYNAMIC_WAIT: Final = 0.015
"""Seconds that a dynamic batch is waited for: the window that published servers use."""


class Ready(msgspec.Struct, frozen=True):
    """A stream that waits for a step."""

    since: float
    """When it became ready, in seconds of any clock."""
    unheard: bool
    """Nothing of it has been heard yet, and its listener has nothing else to play."""
    in_hand: float
    """Seconds of audio that its listener had then."""
    frames: int
    """Frames of it that the step would take."""


class Policy(Protocol):
    """Decides when the next step is and who takes part."""

    def due(self, ready: Sequence[Ready]) -> float:
        """When a step should be made, if nothing else becomes ready before; `ready` has some."""
        ...

    def choose(self, ready: Sequence[Ready], max_frames: int) -> list[int]:
        """Indices of those who take part, at most as many as a batch holds, but somebody.

        A step of more than `max_frames` frames altogether makes the next one wait and saves nothing.
        """
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

    def choose(self, ready: Sequence[Ready], max_frames: int) -> list[int]:
        """See `Policy`."""
        frames = sum(stream.frames for stream in ready)
        if len(ready) <= self._max_batch and frames <= max_frames:
            return list(range(len(ready)))

        def urgency(index: int) -> tuple[bool, float]:
            stream = ready[index]
            return not stream.unheard, stream.since + stream.in_hand

        most_urgent = sorted(range(len(ready)), key=urgency)[: self._max_batch]
        altogether = accumulate(ready[index].frames for index in most_urgent)
        fitting = sum(total <= max_frames for total in altogether)
        return most_urgent[: max(1, fitting)]


IN_FLIGHT: Final = InFlight(max_batch=64)
"""How the loop runs unless it is told otherwise."""


class Dynamic:
    """When a batch is full or its first member has waited for `DYNAMIC_WAIT`; in order of arrival."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch

    def due(self, ready: Sequence[Ready]) -> float:
        """See `Policy`."""
        first = min(stream.since for stream in ready)
        return first if len(ready) >= self._max_batch else first + DYNAMIC_WAIT

    def choose(self, ready: Sequence[Ready], max_frames: int) -> list[int]:
        """See `Policy`; it knows no bound but its batch."""
        order = sorted(range(len(ready)), key=lambda index: ready[index].since)
        return order[: self._max_batch]


def policy(batching: Literal["in_flight", "dynamic"], max_batch: int) -> Policy:
    """The policy of that name."""
    return InFlight(max_batch) if batching == "in_flight" else Dynamic(max_batch)


def ramp(portion: Portion, share: int, first_frames: int | None) -> Portion:
    """How many frames a stream waits for and takes next.

    Its first step is as small as can be heard, after `first_frames`; later ones (None) grow with
    what the listener has in hand, up to the stream's `share` of a step's frames.
    """
    if first_frames is not None:
        first = max(first_frames, portion.at_least)
        return Portion(first, first)
    return Portion(portion.at_least, max(portion.at_least, min(portion.at_most, share)))
