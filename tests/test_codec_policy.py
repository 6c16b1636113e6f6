"""Who takes part in a step, and when: nobody is forgotten, who is urgent comes first."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws.audio import MOST_FRAMES, Portion
from orpheus_ws.codec.policy import (
    DYNAMIC_WAIT,
    Dynamic,
    InFlight,
    Policy,
    Ready,
    ramp,
)
from orpheus_ws.errors import Internal
from tests.harness import turns_until
from tests.looking_decoder import ALL, frames, heard, opened, start

TIMES = st.floats(0, 1000).map(lambda time: round(time, 3))
READY = st.lists(
    st.builds(Ready, since=TIMES, unheard=st.booleans(), in_hand=TIMES, frames=st.integers(1, 8)),
    min_size=1,
    max_size=40,
)
MOST = st.integers(1, 8)
ROOMY = 10_000
"""Frames in a step: more than anybody brings."""
POLICIES = pytest.mark.parametrize("kind", [InFlight, Dynamic])


def left_over(ready: Sequence[Ready], chosen: Sequence[int]) -> list[Ready]:
    """Those who do not take part."""
    return [stream for index, stream in enumerate(ready) if index not in chosen]


@POLICIES
@given(ready=READY, most=MOST)
def test_a_batch_is_full_and_no_fuller(
    kind: type[InFlight | Dynamic], ready: list[Ready], most: int
) -> None:
    """As many take part as fit, each once."""
    chosen = kind(most).choose(ready, ROOMY)
    assert len(chosen) == len(set(chosen)) == min(most, len(ready))
    assert set(chosen) <= set(range(len(ready)))


@POLICIES
@given(ready=READY, most=MOST)
def test_everybody_is_served(kind: type[InFlight | Dynamic], ready: list[Ready], most: int) -> None:
    """Step by step all take part, in no more steps than it needs."""
    policy: Policy = kind(most)
    for _ in range(-(-len(ready) // most)):
        ready = left_over(ready, policy.choose(ready, ROOMY))
    assert not ready


@given(ready=READY, most=MOST)
def test_in_flight_serves_the_urgent(ready: list[Ready], most: int) -> None:
    """Nobody who was heard goes before somebody who was not, nor anybody before somebody else of
    his kind whose listener runs dry earlier."""
    chosen = InFlight(most).choose(ready, ROOMY)
    for out in left_over(ready, chosen):
        for index in chosen:
            taken = ready[index]
            assert taken.unheard >= out.unheard
            if taken.unheard == out.unheard:
                assert taken.since + taken.in_hand <= out.since + out.in_hand


@given(ready=READY, most=MOST, waiting=st.integers(1, 30))
def test_in_flight_overtakes_nobody_for_ever(ready: list[Ready], most: int, waiting: int) -> None:
    """What a listener had in hand is played while the stream waits: one with much in hand is not
    put off any more by those that became ready after it ran dry."""
    first = Ready(0.0, unheard=False, in_hand=5.0, frames=1)
    later = [Ready(5.001 + stream.since, False, stream.in_hand, 1) for stream in ready]
    assert 0 in InFlight(most).choose([first, *later * waiting], ROOMY)


@given(ready=READY, most=MOST)
def test_in_flight_waits_for_nothing(ready: list[Ready], most: int) -> None:
    """A step is due as soon as anybody is ready."""
    assert InFlight(most).due(ready) <= max(stream.since for stream in ready)


@given(ready=READY, most=MOST)
def test_dynamic_waits_for_its_window(ready: list[Ready], most: int) -> None:
    """A step is due 15 ms after the first became ready, and no later than a full batch is."""
    first = min(stream.since for stream in ready)
    due = Dynamic(most).due(ready)
    assert due == (first if len(ready) >= most else first + DYNAMIC_WAIT)
    assert DYNAMIC_WAIT == 0.015


@given(ready=READY, most=MOST)
def test_dynamic_is_first_come_first_served(ready: list[Ready], most: int) -> None:
    """Nobody goes before somebody who came earlier."""
    chosen = Dynamic(most).choose(ready, ROOMY)
    for out in left_over(ready, chosen):
        assert all(ready[index].since <= out.since for index in chosen)


@given(ready=READY, most=MOST, max_frames=st.integers(1, 64))
def test_in_flight_keeps_steps_short(ready: list[Ready], most: int, max_frames: int) -> None:
    """A step takes no more frames than saves work, though always somebody, and the most urgent."""
    chosen = InFlight(most).choose(ready, max_frames)
    frames = sum(ready[index].frames for index in chosen)
    assert len(chosen) == 1 or frames <= max_frames

    def urgency(stream: Ready) -> tuple[bool, float]:
        return not stream.unheard, stream.since + stream.in_hand

    if out := left_over(ready, chosen):
        following = min(out, key=urgency)
        assert all(urgency(ready[index]) <= urgency(following) for index in chosen)
        # Of several that are equally urgent any may follow.
        larger = max(s.frames for s in out if urgency(s) == urgency(following))
        assert len(chosen) == most or frames + larger > max_frames


# In the loop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (InFlight(1), [{30}, {40}, {20}, {50}, {10}]),
        (InFlight(2), [{30, 40}, {20, 50}, {10}]),
        (InFlight(3), [{20, 30, 40}, {10, 50}]),
        (Dynamic(1), [{10}, {20}, {30}, {40}, {50}]),
        (Dynamic(2), [{10, 20}, {30, 40}, {50}]),
    ],
)
async def test_the_policy_decides_who_goes_first(policy: Policy, order: list[set[int]]) -> None:
    """Of those who wait while a step runs, in flight takes whom nobody heard yet, then who has
    least in hand, the next segment of somebody who still listens like any other; dynamic batching takes
    them as they came."""
    loop, decoder = await start(6, policy)
    rich, poor, new, newer, joining, busy = (opened(loop) for _ in range(6))
    for stream in (rich, poor):
        stream.push(frames(1, 2))
        await stream.take(ALL)
    decoder.entered.clear()
    decoder.go_on.clear()
    busy.push(frames(1, 2))
    takes = [asyncio.create_task(busy.take(ALL))]
    await turns_until(decoder.entered.is_set)
    waiting = (
        (rich, 10, 3.0),
        (poor, 20, 1.0),
        (new, 30, 0.0),
        (newer, 40, 0.0),
        (joining, 50, 2.0),
    )
    for stream, code, in_hand in waiting:
        stream.push(frames(code, code + 1))
        takes.append(asyncio.create_task(stream.take(Portion(1, MOST_FRAMES, in_hand))))
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    decoder.order.clear()
    decoder.go_on.set()
    await asyncio.gather(*takes)
    assert list(map(set, decoder.order)) == [{1}, *order]
    await loop.close()


class Patient(Dynamic):
    """Dynamic batches of three, whose window is an hour."""

    def __init__(self) -> None:
        super().__init__(3)
        self.waiting = 0
        """How many wait for the batch to become full."""

    def due(self, ready: Sequence[Ready]) -> float:
        self.waiting = len(ready)
        return super().due(ready) + (3600.0 if len(ready) < 3 else 0.0)


async def test_a_dynamic_batch_waits_until_it_is_full() -> None:
    """What comes within a dynamic batch's window is one step, and the last to fit in starts it;
    who leaves meanwhile is not waited with."""
    policy = Patient()
    loop, decoder = await start(5, policy)
    streams = [opened(loop) for _ in range(5)]
    takes = []
    for number, stream in enumerate(streams):
        stream.push(frames(10 + number, 0))
        takes.append(asyncio.create_task(stream.take(ALL)))
        if number < 2:
            await turns_until(lambda: policy.waiting == len(takes))
        if number == 1:
            stream.close()
            with pytest.raises(Internal):
                await takes[1]
    await asyncio.gather(takes[0], *takes[2:4])
    assert decoder.order == [[10, 12, 13]]
    await loop.close()


async def test_a_dynamic_batch_does_not_wait_for_ever() -> None:
    """A stream that stays alone in its batch is decoded when the window is over."""
    loop, decoder = await start(policy=Dynamic(3))
    stream = opened(loop)
    stream.push(frames(1, 2))
    stream.finish()
    assert heard([await stream.take(ALL)]) == [1, 2]
    assert decoder.batches == [1]
    await loop.close()


@given(
    at_least=st.integers(1, 8),
    more=st.integers(0, 7),
    share=st.integers(1, 300),
    first=st.one_of(st.none(), st.integers(1, 3)),
)
def test_the_ramp_of_a_stream(at_least: int, more: int, share: int, first: int | None) -> None:
    """The first step takes only what can be heard; later ones what is asked for, within the share."""
    asked = Portion(at_least, min(8, at_least + more))
    ramped = ramp(asked, share, first)
    wait, take = ramped.at_least, ramped.at_most
    if first is not None:
        assert wait == take == max(first, at_least)
    else:
        assert wait == at_least
        assert at_least <= take <= max(at_least, share)
        assert take <= asked.at_most
