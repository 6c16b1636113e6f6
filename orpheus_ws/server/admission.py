"""How many sockets there are, and whether another may come.

Rule: a socket holds a slot from the handshake until its TCP connection is gone, whatever happens in
between; there are as many slots as the engine has, or `server.oversubscription` times as many. Who
of those that hold one may speak is `turns`' affair. The one exception is eviction: on a full server a
newcomer takes, in the same instant, the slot of the socket that has been abandoned for longest.
Draining admits nobody.
"""

import math
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

ABANDONED_SECONDS: Final = 60.0
ABANDONED_PINGS: Final = 3
"""Pings that must have gone unanswered, where they are sent more seldom than every 20 s."""


class Holder(Protocol):
    """Who holds a slot."""

    @property
    def tenant(self) -> str:
        """Name of whom it belongs to."""
        ...

    @property
    def silent_since(self) -> float | None:
        """Since when nothing was heard from it and nothing done for it; None while it is in use."""
        ...

    def evict(self) -> None:
        """Its slot is another's now: let it close, and do nothing more for it. Does not wait."""
        ...


def abandoned_after(ping_seconds: float) -> float:
    """Seconds of silence after which a socket that is not in use may be evicted."""
    return max(ABANDONED_SECONDS, ABANDONED_PINGS * ping_seconds)


def sockets_for(streams: int, oversubscription: float) -> int:
    """Sockets admitted to an engine that speaks so many streams at once."""
    # A product such as 100 * 1.15 is a little less than it should be.
    return math.floor(round(streams * oversubscription, 6))


class Admission:
    """Slots for sockets. `reserve` and `release` are idempotent for one holder.

    A holder that has been silent for `abandoned_seconds` is evicted when its slot is needed.
    """

    def __init__(self, capacity: int, abandoned_seconds: float) -> None:
        self.capacity = capacity
        self.draining = False
        self._abandoned_seconds = abandoned_seconds
        self._holders: set[Holder] = set()

    @property
    def active(self) -> int:
        """Slots in use."""
        return len(self._holders)

    def reserve(self, holder: Holder, now: float) -> bool:
        """Take a slot for `holder`, by evicting another if need be; false when there is none.

        `now` is of the clock that `silent_since` is of.
        """
        if holder in self._holders:
            return not self.draining
        if self.draining or (self.active >= self.capacity and not self._evict(now, self._holders)):
            return False
        self._holders.add(holder)
        return True

    def has_room_for(self, tenant: str, most: int | None, now: float) -> bool:
        """Whether this tenant, which may have `most`, may have one more; it evicts only its own."""
        own = {holder for holder in self._holders if holder.tenant == tenant}
        return most is None or len(own) < most or self._evict(now, own)

    def release(self, holder: Holder) -> None:
        """Give the slot back, if the holder still has one."""
        self._holders.discard(holder)

    def _evict(self, now: float, holders: AbstractSet[Holder]) -> bool:
        """Free the slot of that of the holders that has been silent longest, if for long enough."""
        silent = [
            (since, holder) for holder in holders if (since := holder.silent_since) is not None
        ]
        since, abandoned = min(silent, key=lambda pair: pair[0], default=(now, None))
        if abandoned is None or now - since < self._abandoned_seconds:
            return False
        self._holders.remove(abandoned)
        abandoned.evict()
        return True
