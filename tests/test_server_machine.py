"""The server over real sockets: any messages at any time, cut anywhere, from peers that come and go."""

import pytest
from hypothesis import HealthCheck, settings

from orpheus_ws import messages as m
from orpheus_ws.context import Context
from tests.harness import JSON, MSGPACK
from tests.server_machine import ServerMachine

TestServer = ServerMachine.TestCase
TestServer.settings = settings(
    max_examples=20,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_a_gap_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that leaves out a number of a sequence is found out."""
    whole = Context.audio

    def gap(context: Context, pcm: bytes, samples: int) -> m.Audio | None:
        context._seq += context._seq == 1
        return whole(context, pcm, samples)

    monkeypatch.setattr(Context, "audio", gap)
    machine = ServerMachine()
    try:
        machine.connect([MSGPACK, JSON], [])
        with pytest.raises(AssertionError, match="a gap"):  # noqa: PT012 - whichever hears of it first
            machine.text(0, "a", "One two three four. ", [], [])
            machine.end(0, "a", [], [])
            machine.rest(0)
    finally:
        with pytest.raises(AssertionError, match="a gap"):
            machine.teardown()
