"""How much of something may happen: so much at once, and so much a second after that.

Rule: pure; whoever asks says what time it is. What has been spent beyond what there was is owed, and
has to be made up for before there is more.
"""

import math


class Bucket:
    """A token bucket: `burst` tokens at first and at most, `per_second` new ones. Any clock."""

    def __init__(self, per_second: float, burst: float) -> None:
        self.per_second = per_second
        self.burst = burst
        self._tokens = burst
        self._at: float | None = None

    def spend(self, tokens: float, now: float) -> float:
        """Take tokens, whether they are there or not; return seconds until nothing is owed."""
        self._fill(now)
        self._tokens -= tokens
        return max(0.0, -self._tokens / self.per_second)

    def take(self, now: float) -> bool:
        """Take one token if there is a whole one."""
        if self.wait(1, now) > 0:
            return False
        self._tokens -= 1
        return True

    def wait(self, tokens: float, now: float) -> float:
        """Seconds until so many tokens are there: infinite for more than there ever are. Takes none."""
        self._fill(now)
        if tokens <= self._tokens:
            return 0.0
        return math.inf if tokens > self.burst else (tokens - self._tokens) / self.per_second

    def resized(self, per_second: float, burst: float) -> "Bucket":
        """Another that lacks as many tokens as this one: a new limit gives back nothing."""
        other = Bucket(per_second, burst)
        other._tokens = max(0.0, burst - (self.burst - self._tokens))
        other._at = self._at
        return other

    def _fill(self, now: float) -> None:
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._tokens = min(self.burst, self._tokens + passed * self.per_second)
        self._at = now
