"""What each tenant may still do: contexts open at once, characters a minute. Pure.

Rule: a quota is one tenant's and nobody else's, shared by all of its sockets. What is refused is not
counted against it. There is a quota for each name that the keys have, so their number is the operator's
doing. Time is an argument, in seconds of any one clock.
"""

import math
from collections.abc import Callable
from typing import Final

from orpheus_ws.errors import ContextLimit, RateLimited, TextTooLong
from orpheus_ws.keys import KeyRing, TenantLimits
from orpheus_ws.server.bucket import Bucket

_SECONDS: Final = 60.0


class Quota:
    """See `session.Allowance`. `limited` hears which limit has refused something, `spoken` of text."""

    def __init__(
        self,
        limits: TenantLimits,
        limited: Callable[[str], None],
        spoken: Callable[[int], None],
    ) -> None:
        self.contexts = 0
        self._limits = TenantLimits()
        self._bucket: Bucket | None = None
        self._limited = limited
        self._spoken = spoken
        self.limit(limits)

    def limit(self, limits: TenantLimits) -> None:
        """These limits hold from now on; what is open stays open."""
        most = limits.text_per_minute
        if most is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = Bucket(most / _SECONDS, most)
        elif most != self._bucket.burst:
            self._bucket = self._bucket.resized(most / _SECONDS, most)
        self._limits = limits

    def open(self) -> None:
        """See `Allowance`."""
        most = self._limits.contexts
        if most is not None and self.contexts >= most:
            self._limited("contexts")
            raise ContextLimit(
                f"this key may have {most} contexts at once; end or cancel one first"
            )
        self.contexts += 1

    def close(self) -> None:
        """See `Allowance`."""
        self.contexts -= 1

    def take(self, chars: int, now: float) -> None:
        """See `Allowance`."""
        seconds = 0.0 if self._bucket is None else self._bucket.wait(chars, now)
        if seconds == 0.0:
            if self._bucket is not None:
                self._bucket.spend(chars, now)
            self._spoken(chars)
            return
        self._limited("text")
        most = self._limits.text_per_minute
        if math.isinf(seconds):
            raise TextTooLong(f"this key may send {most} characters a minute; send less at once")
        raise RateLimited(
            f"this key may send {most} characters a minute; try again later",
            retry_after_ms=math.ceil(seconds * 1000),
        )


class Quotas:
    """Everybody's."""

    def __init__(
        self,
        keys: KeyRing,
        limited: Callable[[str, str], None],
        spoken: Callable[[str, int], None],
    ) -> None:
        self._limited = limited
        self._spoken = spoken
        self._quotas: dict[str, Quota] = {}
        self._keys = keys
        self.renew(keys)

    def renew(self, keys: KeyRing) -> None:
        """There are new keys. A tenant that has none any more is remembered: its sockets close by and by."""
        self._keys = keys
        for name, quota in self._quotas.items():
            quota.limit(keys.limits(name))

    def of(self, tenant: str) -> Quota:
        """A tenant's."""
        if tenant not in self._quotas:
            self._quotas[tenant] = Quota(
                self._keys.limits(tenant),
                lambda limit: self._limited(tenant, limit),
                lambda chars: self._spoken(tenant, chars),
            )
        return self._quotas[tenant]
