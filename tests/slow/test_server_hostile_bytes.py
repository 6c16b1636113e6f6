"""Bytes that are not theirs at every port, as `tests/test_server_hostile_bytes.py` has it, and more of them."""

import pytest

from tests.test_server_hostile_bytes import survive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEEDS = range(100, 300)


async def test_many_bytes_that_are_not_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every port refuses or closes; nothing is repeated, logged or kept; a neighbour loses nothing."""
    await survive(SEEDS, caplog)
