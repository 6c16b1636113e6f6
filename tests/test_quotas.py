"""Quotas on a virtual clock: what is taken, what is refused and for how long, and who notices."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orpheus_ws.config import AuthConfig
from orpheus_ws.errors import ContextLimit, RateLimited, TextTooLong
from orpheus_ws.keys import TenantLimits, read_keys
from orpheus_ws.server.quotas import Quota, Quotas

steps = st.lists(st.tuples(st.floats(0, 200), st.integers(0, 300)), max_size=60)
"""Seconds that pass, and characters that are wanted then."""


def quota(limits: TenantLimits) -> Quota:
    """One that tells nobody."""
    return Quota(limits, lambda _limit: None, lambda _chars: None)


def minute(characters: int) -> Quota:
    """So many characters a minute."""
    return quota(TenantLimits(text_per_minute=characters))


def ask(tenant: Quota, amount: int, now: float) -> float:
    """Send so many characters; 0 if they were taken, or else the seconds until as many would be."""
    try:
        tenant.take(amount, now)
    except RateLimited as error:
        return (error.retry_after_ms or math.nan) / 1000
    except TextTooLong:
        return math.inf
    return 0.0


@given(per_minute=st.integers(1, 250), steps=steps)
def test_no_interval_has_more(per_minute: int, steps: list[tuple[float, int]]) -> None:
    """Between any two moments no more is taken than a minute's and what flows in meanwhile."""
    tenant, now, taken = minute(per_minute), 100.0, []
    for passed, amount in steps:
        now += passed
        if ask(tenant, amount, now) == 0.0:
            taken.append((now, amount))
    for first, (begin, _) in enumerate(taken):
        total = 0
        for end, amount in taken[first:]:
            total += amount
            assert total <= per_minute + (end - begin) * per_minute / 60 + 1e-6


@given(per_minute=st.integers(1, 250), steps=steps)
def test_the_wait_is_enough_and_needed(per_minute: int, steps: list[tuple[float, int]]) -> None:
    """After the milliseconds that are named it is there; before the last of them it is not."""
    tenant, now = minute(per_minute), 0.0
    for passed, amount in steps:
        now += passed
        wait = ask(tenant, amount, now)
        assert (wait == math.inf) == (amount > per_minute)
        if 0.002 < wait < math.inf:
            assert ask(tenant, amount, now + wait - 0.0011) > 0.0
            now += wait + 1e-6
            assert ask(tenant, amount, now) == 0.0


@given(per_minute=st.integers(1, 250), refused=st.lists(st.integers(251, 999), max_size=20))
def test_what_is_refused_costs_nothing(per_minute: int, refused: list[int]) -> None:
    """Whoever asks for too much again and again still has all that they had."""
    tenant = minute(per_minute)
    for amount in refused:
        assert ask(tenant, amount, 5.0) == math.inf
    assert ask(tenant, per_minute, 5.0) == 0.0


@given(st.integers(1, 250), st.integers(1, 250), st.integers(0, 250), st.booleans())
def test_a_new_limit_is_no_new_minute(old: int, new: int, used: int, more: bool) -> None:
    """What was used under the old limit counts under the new one, and no more than that."""
    tenant = minute(old)
    taken = used if ask(tenant, used, 0.0) == 0.0 else 0
    tenant.limit(TenantLimits(text_per_minute=new))
    left = max(0, new - taken)
    assert (ask(tenant, left + more, 0.0) > 0.0) == more


def test_time_does_not_run_back() -> None:
    """A moment before the last one fills nothing."""
    tenant = minute(60)
    assert ask(tenant, 60, 10.0) == 0.0
    assert ask(tenant, 1, 5.0) > 0.0


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
