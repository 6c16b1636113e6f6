"""When to try again, and when to give up.

Rule: full jitter, so that clients which lost the same server do not come back together; a server's
`Retry-After` is the least wait and the jitter comes on top of it. What cannot be better a moment
later is never tried again. Clock, sleep and chance are fields, so that tests bring their own.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from orpheus_ws.errors import ClientError, Refused

PATIENCE_SECONDS: Final = 10.0
"""Enough for a proxy to find another server; no listener waits longer."""

_T = TypeVar("_T")


def _say_nothing(_error: ClientError, _seconds: float) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Waits between attempts: evenly random up to a bound that doubles from `first` to `cap`."""

    first: float = 0.2
    """Seconds. A listener hardly notices this much."""
    cap: float = 5.0
    """Seconds. One server then sees a handshake every 2.5 s from each client that waits for it."""
    waiting: Callable[[ClientError, float], None] = _say_nothing
    """Told before each wait why and for how many seconds. What it raises ends the attempts."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random
    """A number from 0 to 1."""

    async def retry(self, attempt: Callable[[], Awaitable[_T]], patience: float) -> _T:
        """Attempt until it works; `patience` is how many seconds may pass before the last attempt.

        Raises the error of the last attempt: at once when it is not `retryable`, or when the next
        attempt would come too late.
        """
        deadline = self.clock() + patience
        bound = self.first
        while True:
            try:
                return await attempt()
            except ClientError as error:
                asked = error.retry_after if isinstance(error, Refused) else None
                delay = (asked or 0.0) + self.chance() * bound
                if not error.retryable or self.clock() + delay > deadline:
                    raise
                self.waiting(error, delay)
            await self.sleep(delay)
            bound = min(2 * bound, self.cap)
