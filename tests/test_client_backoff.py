"""When the client tries again: on a virtual clock."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.client import Backoff
from orpheus_ws.errors import ClientError, Refused, Unreachable
from tests.client_peers import VirtualTime

FULL = Refused("HTTP 503", status=503, retry_after=3.0)
GONE = Unreachable("nothing listens")


def failing(*errors: ClientError) -> Callable[[], "asyncio.Future[int]"]:
    """Attempts that fail with these, the last for ever."""
    attempts = iter(errors)

    async def attempt() -> int:
        raise next(attempts, errors[-1])

    return lambda: asyncio.ensure_future(attempt())


async def test_waits_double_up_to_the_cap() -> None:
    """Each wait is a chance of a bound that doubles up to the cap; the last error comes through."""
    time = VirtualTime(chance=1.0)
    backoff = time.backoff()
    with pytest.raises(Unreachable):
        await backoff.retry(failing(GONE), patience=20.0)
    assert time.slept == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


async def test_retry_after_is_the_least_wait() -> None:
    """A server's Retry-After is waited, and the jitter on top, so that not all come back at once."""
    time = VirtualTime(chance=0.5)
    with pytest.raises(Refused):
        await time.backoff().retry(failing(FULL), patience=7.0)
    assert time.slept == [3.1, 3.2]


async def test_no_wait_that_is_in_vain() -> None:
    """When the server asks for more patience than there is, its refusal comes through at once."""
    time = VirtualTime()
    with pytest.raises(Refused):
        await time.backoff().retry(failing(FULL), patience=3.0)
    assert time.slept == []


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 426])
async def test_what_time_does_not_mend(status: int) -> None:
    """A wrong key, origin or path is not tried again."""
    time = VirtualTime()
    with pytest.raises(Refused):
        await time.backoff().retry(failing(Refused("no", status=status)), patience=60.0)
    assert time.slept == []


async def test_whoever_is_told_may_give_up() -> None:
    """`waiting` hears of each wait before it begins, and what it raises ends the attempts."""
    time = VirtualTime(chance=1.0)
    told: list[tuple[str, float]] = []

    def waiting(error: ClientError, seconds: float) -> None:
        told.append((str(error), seconds))
        if not isinstance(error, Refused):
            raise error

    backoff = Backoff(
        waiting=waiting, clock=lambda: time.now, sleep=time.sleep, chance=lambda: time.chance
    )
    with pytest.raises(Unreachable):
        await backoff.retry(failing(FULL, GONE), patience=60.0)
    assert told == [("HTTP 503", 3.2), ("nothing listens", 0.4)]
    assert time.slept == [3.2]


@settings(deadline=None)
@given(
    asked=st.lists(st.none() | st.floats(0, 30), min_size=1, max_size=20),
    chance=st.floats(0, 1),
    patience=st.floats(0, 100),
)
def test_never_longer_than_patience(
    asked: list[float | None], chance: float, patience: float
) -> None:
    """Whatever servers ask for, no attempt begins after `patience`, and none before Retry-After."""
    time = VirtualTime(chance=chance)
    # Even a client that always draws the shortest wait comes to an end.
    errors = [Refused("full", status=503, retry_after=seconds) for seconds in asked]
    errors.append(Refused("wrong key", status=401))
    with pytest.raises(Refused):
        asyncio.run(time.backoff().retry(failing(*errors), patience))
    assert time.now <= patience + 1e-9
    assert len(time.slept) <= len(asked)
    assert all(slept >= (least or 0.0) for slept, least in zip(time.slept, asked, strict=False))
