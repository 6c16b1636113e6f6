"""Quotas on a virtual clock: what is taken, what is refused and for how long, and who notices."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orpheus_ws.config import AuthConfig
from orpheus_ws.errors import ContextLimit, RateLimited, TextTooLong
from orpheus_ws.keys import TenantLimits, read_keys
from orpheus_ws.server.quotas import Bucket, Quota, Quotas

steps = st.lists(st.tuples(st.floats(0, 200), st.integers(0, 300)), max_size=60)
"""Seconds that pass, and characters that are wanted then."""


def quota(limits: TenantLimits) -> Quota:
    """One that tells nobody."""
    return Quota(limits, lambda _limit: None, lambda _chars: None)


@given(per_minute=st.integers(1, 250), steps=steps)
def test_no_interval_has_more(per_minute: int, steps: list[tuple[float, int]]) -> None:
    """Between any two moments no more is taken than the bucket holds and what flows in meanwhile."""
    bucket, now, taken = Bucket(per_minute), 100.0, []
    for passed, amount in steps:
        now += passed
        if bucket.take(amount, now) == 0.0:
            taken.append((now, amount))
    for first, (begin, _) in enumerate(taken):
        total = 0
        for end, amount in taken[first:]:
            total += amount
            assert total <= per_minute + (end - begin) * per_minute / 60 + 1e-6


@given(per_minute=st.integers(1, 250), steps=steps)
def test_the_wait_is_enough_and_needed(per_minute: int, steps: list[tuple[float, int]]) -> None:
    """After the seconds that are named it is there; a moment before them it is not."""
    bucket, now = Bucket(per_minute), 0.0
    for passed, amount in steps:
        now += passed
        wait = bucket.take(amount, now)
        assert (wait == math.inf) == (amount > per_minute)
        if 1e-3 < wait < math.inf:
            assert bucket.take(amount, now + wait - 1e-4 * wait) > 0.0
            assert bucket.take(amount, now + wait + 1e-6) == 0.0
            now += wait + 1e-6


@given(per_minute=st.integers(1, 250), refused=st.lists(st.integers(251, 999), max_size=20))
def test_what_is_refused_costs_nothing(per_minute: int, refused: list[int]) -> None:
    """Whoever asks for too much again and again still has all that he had."""
    bucket = Bucket(per_minute)
    for amount in refused:
        assert bucket.take(amount, 5.0) == math.inf
    assert bucket.take(per_minute, 5.0) == 0.0


@given(st.integers(1, 250), st.integers(1, 250), st.integers(0, 250))
def test_a_new_limit_is_no_new_minute(old: int, new: int, used: int) -> None:
    """What was used under the old limit counts under the new one."""
    bucket = Bucket(old)
    taken = used if bucket.take(used, 0.0) == 0.0 else 0
    assert bucket.resized(new).take(max(0, new - taken), 0.0) == 0.0
    assert taken == 0 or bucket.resized(new).take(max(1, min(new, new - taken + 1)), 0.0) > 0.0


def test_time_does_not_run_back() -> None:
    """A moment before the last one fills nothing."""
    bucket = Bucket(60)
    assert bucket.take(60, 10.0) == 0.0
    assert bucket.take(1, 5.0) > 0.0


def test_what_is_told() -> None:
    """What can come true later says when; what never can is another error, and not worth a retry."""
    told = quota(TenantLimits(contexts=1, text_per_minute=60))
    told.take(60, 0.0)
    with pytest.raises(RateLimited) as soon:
        told.take(30, 10.0)
    assert (soon.value.retryable, soon.value.retry_after_ms) == (True, 20_000)
    with pytest.raises(TextTooLong) as never:
        told.take(61, 1000.0)
    assert not never.value.retryable
    told.open()
    with pytest.raises(ContextLimit) as full:
        told.open()
    assert full.value.retryable
    told.close()
    told.open()


def test_without_limits() -> None:
    """Nothing is refused, and it is counted all the same."""
    heard: list[int] = []
    free = Quota(TenantLimits(), lambda _limit: None, heard.append)
    for _ in range(1000):
        free.open()
        free.take(10**6, 0.0)
    assert (free.contexts, sum(heard)) == (1000, 10**9)


def test_each_his_own() -> None:
    """One tenant's excess is told under his name, and leaves another's quota whole."""
    limited: list[tuple[str, str]] = []
    keys = read_keys(AuthConfig(keys={"a": "x", "b": "y"}, contexts=1, text_per_minute=10))
    quotas = Quotas(keys, lambda name, limit: limited.append((name, limit)), lambda _n, _c: None)
    quotas.of("a").open()
    quotas.of("a").take(10, 0.0)
    with pytest.raises(ContextLimit):
        quotas.of("a").open()
    with pytest.raises(RateLimited):
        quotas.of("a").take(1, 0.0)
    quotas.of("b").open()
    quotas.of("b").take(10, 0.0)
    assert limited == [("a", "contexts"), ("a", "text")]
    raised = read_keys(AuthConfig(keys={"a": "x", "b": "y"}, contexts=2, text_per_minute=20))
    quotas.renew(raised)
    quotas.of("a").open()
    quotas.of("a").take(10, 0.0)


class Contexts(RuleBasedStateMachine):
    """Contexts of one tenant open and end in any order while his limit changes."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 3
        self.open = 0
        self.quota = quota(TenantLimits(contexts=self.most))

    @rule()
    def begin(self) -> None:
        try:
            self.quota.open()
        except ContextLimit:
            assert self.open >= self.most
        else:
            assert self.open < self.most
            self.open += 1

    @rule()
    def end(self) -> None:
        if self.open:
            self.quota.close()
            self.open -= 1

    @rule(most=st.integers(1, 5))
    def change(self, most: int) -> None:
        self.most = most
        self.quota.limit(TenantLimits(contexts=most))

    @invariant()
    def counted(self) -> None:
        assert self.quota.contexts == self.open


TestContexts = Contexts.TestCase
