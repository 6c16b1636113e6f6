"""The attackers of `bench storm`, against a port of this test's own."""

import multiprocessing
import socket

import pytest

from orpheus_ws.bench import attackers
from orpheus_ws.bench.attackers import Attack, Seen


@pytest.mark.parametrize("per_second", [4, 50, 400])
def test_the_rate_is_kept_to(per_second: int) -> None:
    """Whatever the rate, there are attempts, and no more than it allows."""
    seconds = 0.5
    with socket.create_server(("127.0.0.1", 0), backlog=400) as listener:
        port: int = listener.getsockname()[1]
        ours, theirs = multiprocessing.Pipe()
        ours.send("begin")
        attackers.run(Attack(port, b"", per_second, seconds), theirs)
        assert ours.recv() == "ready"
        seen: Seen = ours.recv()
    assert 1 <= seen.attempts <= per_second * seconds + 1
    assert seen.statuses == {"unanswered": seen.attempts}
