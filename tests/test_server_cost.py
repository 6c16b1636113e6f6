"""What the server does for each frame of audio, in counts that no clock and no other process changes."""

import gc
import sys
from collections import Counter
from types import FrameType
from typing import NamedTuple

from orpheus_ws import messages as m
from orpheus_ws.server.loop_monitor import OBJECTS_BETWEEN_COLLECTIONS, spare_collections
from orpheus_ws.server.receipts import RECEIPT_SECONDS
from orpheus_ws.tokens import FRAME_SECONDS, SAMPLES_PER_FRAME
from tests.harness import Peer, audio, pcm
from tests.server_peers import STEPPED, one

LEAD_MS = 10_000
TEXT = "The quick brown fox jumps over the lazy dog while the band plays on and on and on again."
FRAME_BY_FRAME = (STEPPED, "server.group_lead_ms=0")
NOT_THE_GATEWAY = ("/wire/", "/engine/", "/server/loop_monitor.py")
"""The client of the test decodes, the simulated engine takes steps, and the monitor goes by the clock."""
CALLS = 60
"""Of functions of ours, coroutines resumed among them, for a frame. Raise it for what is worth it."""


class _Spoken(NamedTuple):
    frames: float
    calls: Counter[str]
    """Of each function of the gateway, by name."""


async def speak(connected: Peer) -> _Spoken:
    """Have one segment spoken that fits into the lead, and count from its third frame to its last."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        path = frame.f_code.co_filename
        ours = "/orpheus_ws/" in path and not any(part in path for part in NOT_THE_GATEWAY)
        if event == "call" and ours:
            calls[frame.f_code.co_qualname] += 1

    await connected.send(m.Open(context="a", lead_ms=LEAD_MS, sampling=m.Sampling(seed=1)))
    await connected.say("a", TEXT)
    received: list[m.ServerMessage] = []
    while len(audio(received)) < 2:
        received.append(await connected.receive())
    before = len(pcm(received))
    sys.setprofile(count)
    try:
        received += await connected.utterance("a")
    finally:
        sys.setprofile(None)
    return _Spoken((len(pcm(received)) - before) / 2 / SAMPLES_PER_FRAME, calls)


async def test_calls_for_a_frame() -> None:
    """What is done for each frame is bounded: a layer, a lookup or a wake-up more for each would show."""
    async with one(*FRAME_BY_FRAME) as (_, connected):
        frames, calls = await speak(connected)
    assert frames > 40
    assert sum(calls.values()) / frames < CALLS, calls.most_common(20)


async def test_turns_for_a_frame() -> None:
    """For each frame two tasks are woken, once each, and the kernel is called in one turn."""
    async with one(*FRAME_BY_FRAME) as (_, connected):
        frames, calls = await speak(connected)
    for name in ("Connection._speak", "_Segment._feed", "Outbox._write"):
        assert 0 < calls[name] <= frames + 6, name


async def test_receipts_for_speech() -> None:
    """A listener is asked for at most one a second, and at the end."""
    async with one(*FRAME_BY_FRAME) as (_, connected):
        frames, calls = await speak(connected)
    assert 0 < calls["WebSocketPeer.ping"] <= frames * FRAME_SECONDS / RECEIPT_SECONDS + 1


def test_what_a_step_makes_is_not_searched() -> None:
    """A server that has spared its process collections makes thousands of objects without one."""
    usual = gc.get_threshold()
    try:
        spare_collections()
        gc.collect()
        searched = gc.get_stats()[0]["collections"]
        made: list[list[int]] = [[] for _ in range(OBJECTS_BETWEEN_COLLECTIONS - 1000)]
        assert gc.get_stats()[0]["collections"] == searched
        del made
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
