"""The server over real sockets: any messages at any time, cut anywhere, from peers that come and go."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from orpheus_ws import messages as m
from orpheus_ws.context import Context
from tests.server_machine import ServerMachine

SOME = settings(
    max_examples=5,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

TestServer = ServerMachine.TestCase
TestServer.settings = SOME


def test_a_gap_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that leaves out a number of a sequence is found out."""
    whole = Context.audio

    def gap(context: Context, pcm: bytes, samples: int) -> m.Audio | None:
        context._seq += context._seq == 1
        return whole(context, pcm, samples)

    monkeypatch.setattr(Context, "audio", gap)
    with pytest.raises(AssertionError, match="a gap"):
        run_state_machine_as_test(
            ServerMachine,
            settings=settings(SOME, max_examples=40, database=None, phases=[Phase.generate]),
        )
