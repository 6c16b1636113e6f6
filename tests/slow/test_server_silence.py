"""A client that stops reading in the middle of its speech, at the server's own pace."""

import asyncio
import gc

import pytest

from tests.harness import peer, server, turns_until
from tests.server_peers import held, listening, metric, references
from tests.test_server_slow import SMALL_BUFFER, fall_silent

pytestmark = pytest.mark.slow

SILENCE_SECONDS = 60.0
WRITE_SECONDS = 20
LEAD_MS = 10_000
"""Half of what a server would stand still for that waited for the silent one, and far more than a busy machine does."""


async def test_a_minute_of_silence() -> None:
    """One client reads nothing for a minute: it is closed, twenty others hear no gap, nothing stays."""
    async with (
        server(
            "engine.options.fault=never_stops", f"server.write_seconds={WRITE_SECONDS}"
        ) as started,
        listening(started, 20, LEAD_MS) as listeners,
    ):
        others, descriptors = set(started._connections), held(started)[1]
        async with peer(started.address.url, receive_buffer=SMALL_BUFFER) as slow:
            await fall_silent(slow)
            remains = references(started, others)
            await asyncio.sleep(SILENCE_SECONDS)
            assert started._connections == others
            assert started.admission.active == 20
            assert await metric(started, "orpheus_socket_closes_total", code="1008") == 1
            slow.socket.transport.abort()
        await turns_until(lambda: held(started)[1] == descriptors)
        gc.collect()
        assert not [reference for reference in remains if reference() is not None]
        # What has come meanwhile is played from here on; a gap would be counted once it is over.
        await turns_until(lambda: all(listener.in_hand > 0 for listener in listeners))
        assert [listener.player.underruns for listener in listeners] == [0] * 20
