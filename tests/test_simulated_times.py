"""The times of the simulated engine: what a step costs, and what capacity follows from it.

Rule: the event loop's clock is a virtual one.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from orpheus_ws import tokens
from orpheus_ws.audio import Player, Shaper
from orpheus_ws.codec.simulated import periods, tone
from orpheus_ws.config import EngineConfig
from orpheus_ws.engine.simulated import Options, SimulatedEngine, open_engine
from orpheus_ws.errors import StartupError
from orpheus_ws.planning.profiles import GPUS, GpuName
from orpheus_ws.planning.steps import HOST, largest_real_time_batch, prompt_tokens, step_times
from orpheus_ws.tokens import END_OF_SPEECH, FrameAssembler
from tests.simulated_engines import (
    FRAMES,
    TEXT,
    VirtualClockLoop,
    engine_of,
    frames_of,
    ids_of,
    on_a_virtual_clock,
    other_tasks,
    prompt,
    turns,
    until_failure,
)


@on_a_virtual_clock
async def test_a_step_costs_what_the_options_say(loop: VirtualClockLoop) -> None:
    """A step takes `step_seconds` and `stream_seconds` for each active request at its start."""
    engine = engine_of(capacity=3, step_seconds=0.05, stream_seconds=0.01)
    requests = [engine.generate(prompt()) for _ in range(3)]
    for nth in range(1, 11):
        await asyncio.gather(*map(anext, requests))
        assert loop.now == pytest.approx(nth * 0.08)
    await requests.pop().aclose()
    for nth in range(10):
        await asyncio.gather(*map(anext, requests))
        assert loop.now == pytest.approx(11 * 0.08 + nth * 0.07)
    await engine.close()


@on_a_virtual_clock
async def test_a_step_counts_ids_and_prompts(loop: VirtualClockLoop) -> None:
    """A step takes its time for each id that requests hold by then, and for each that joins."""
    engine = engine_of(step_seconds=0.05, kv_token_seconds=1e-3, prefill_seconds=0.2)
    held = prompt_tokens(TEXT) * 1e-3
    first, second = (engine.generate(prompt(seed=seed)) for seed in range(2))
    await anext(first)
    assert loop.now == pytest.approx(0.05 + 0.2 + held)
    await anext(first)
    assert loop.now == pytest.approx(2 * 0.05 + 0.2 + 2 * held + 1e-3)
    # The second joins while the third step runs, and takes part in the fourth.
    await anext(second)
    assert loop.now == pytest.approx(4 * 0.05 + 2 * 0.2 + 5 * held + (1 + 2 + 3) * 1e-3)
    await first.aclose()
    await second.aclose()


@on_a_virtual_clock
async def test_what_is_less_than_a_frame_waits_for_no_frame(loop: VirtualClockLoop) -> None:
    """With a token a step, end of speech comes a step after the last frame, and a cut frame as its
    last id does.
    """
    engine = engine_of(step_seconds=1.0, steps_per_frame=7)
    assert [len(group) async for group in engine.generate(prompt())] == [7] * FRAMES + [1]
    assert loop.now == pytest.approx(7 * FRAMES + 1)
    assert len(await ids_of(engine, prompt(max_tokens=10))) == 10
    assert loop.now == pytest.approx(7 * FRAMES + 1 + 10)


async def test_silence_and_the_first_frames() -> None:
    """`silent_frames` come before the speech, which stays what it was; `first_frames` come together."""
    engine = engine_of(silent_frames=3, first_frames=5)
    groups = [list(group) async for group in engine.generate(prompt())]
    assert list(map(len, groups)) == [8 * 7] + [7] * (FRAMES - 5) + [1]
    frames = FrameAssembler().push([token for group in groups for token in group])
    assert frames == [(0,) * 7] * 3 + await frames_of(engine_of(), prompt())
    short = engine_of(first_frames=12)
    assert [len(group) async for group in short.generate(prompt("Hi."))] == [29]


@pytest.mark.parametrize("gpu", GPUS)
@on_a_virtual_clock
async def test_a_step_of_a_gpu(loop: VirtualClockLoop, gpu: GpuName) -> None:
    """With `gpu` a step makes one id, and takes what the arithmetic says for `variant`."""
    for variant in HOST:
        engine = engine_of(gpu=gpu, variant=variant)
        times, before = step_times(GPUS[gpu], variant=variant), loop.now
        groups = engine.generate(prompt())
        assert len(await anext(groups)) == 7
        held = sum(prompt_tokens(TEXT) + step for step in range(7))
        spent = 7 * times.step(1, held / 7) + times.prefill
        assert loop.now - before == pytest.approx(spent)
        await groups.aclose()


async def test_times_come_from_one_place() -> None:
    """A GPU and a time of one's own together stop the start; the error names both."""
    options = {"gpu": "h100", "stream_seconds": 1e-3}
    with pytest.raises(StartupError, match=r"engine\.options\.gpu .* stream_seconds"):
        await open_engine(EngineConfig(name="simulated", options=options))


async def test_it_says_that_it_is_simulated() -> None:
    """Its statistics carry the mark; a metric is made of it."""
    assert engine_of().statistics().simulated == 1


async def _speak(engine: SimulatedEngine, texts: Sequence[str]) -> int:
    """Speak `texts` as the server would, silence trimmed, to a virtual player; its underruns."""
    loop, player, shaper = asyncio.get_running_loop(), Player(), Shaper()
    for nth, text in enumerate(texts):
        await asyncio.sleep(max(0.0, player.seconds_until(LEAD_SECONDS, loop.time())))
        assembler = FrameAssembler()
        async for ids in engine.generate(prompt(text, seed=nth)):
            tones = [tone(periods(frame)) for frame in assembler.push(ids)]
            if tones and len(heard := shaper.feed(np.concatenate(tones))):
                player.receive(len(heard) / tokens.SAMPLE_RATE, loop.time())
        player.receive(len(shaper.finish()) / tokens.SAMPLE_RATE, loop.time())
    return player.underruns


async def _underruns(engine: SimulatedEngine, texts: Sequence[str]) -> int:
    """As many streams as there are slots, turn after turn; the underruns while all of them speak."""

    async def stream(nth: int) -> int:
        await asyncio.sleep(nth * TURN_SECONDS / engine.capacity)
        turns = [await _speak(engine, texts) for _ in range(5)]
        # In the first turn others were still silent, in the last some are again.
        return sum(turns[1:-1])

    return sum(await asyncio.gather(*map(stream, range(engine.capacity))))


LEAD_SECONDS = 2.0
SENTENCES = ("x" * 60, "x" * 75, "x" * 90)
TURN_SECONDS = 15.0


@pytest.mark.parametrize(
    "given",
    [
        {"gpu": "h100-mig-3g.40gb", "variant": "stock"},
        {"gpu": "h200", "variant": "stock", "silent_frames": 6},
        {"step_seconds": 4e-3, "stream_seconds": 1e-4, "steps_per_frame": 7, "first_frames": 2},
        {
            "step_seconds": 2e-3,
            "stream_seconds": 5e-5,
            "kv_token_seconds": 1.5e-7,
            "prefill_seconds": 1e-3,
            "steps_per_frame": 7,
        },
    ],
    ids=str,
)
@on_a_virtual_clock
async def test_the_capacity_is_known(loop: VirtualClockLoop, given: dict[str, Any]) -> None:
    """What the arithmetic says is right within 2 % (at least one stream): no underruns with so many
    less, and some with so many more.
    """
    options = Options(**given)
    capacity = largest_real_time_batch(options.times, options.traffic(SENTENCES))
    assert capacity > 10
    margin = max(1, math.ceil(capacity * 0.02))
    engines = [SimulatedEngine(capacity + more, options) for more in (-margin, margin)]
    enough, too_many = [await _underruns(engine, SENTENCES) for engine in engines]
    assert enough == 0 < too_many


@on_a_virtual_clock
async def test_the_schedule_does_not_drift(loop: VirtualClockLoop) -> None:
    """Time that others spend on the event loop, even whole steps of it, delays no later step."""
    received = 0
    async for group in engine_of(step_seconds=0.05).generate(prompt()):
        received += len(group)
        # A third of a step every time, and once ten steps at a stretch.
        loop.now += 0.5 if received == 5 * 7 else 0.05 / 3
    assert received == FRAMES * 7 + 1
    assert loop.now == pytest.approx((FRAMES + 1) * 0.05 + 0.05 / 3)


@on_a_virtual_clock
async def test_who_joins_during_a_step_waits_for_the_next(loop: VirtualClockLoop) -> None:
    """A request that comes in the middle of a step has its first frame after one more."""
    engine = engine_of(step_seconds=0.05)
    first = asyncio.create_task(ids_of(engine, prompt()))
    await asyncio.sleep(0.07)
    groups = engine.generate(prompt())
    await anext(groups)
    assert loop.now == pytest.approx(0.15)
    await groups.aclose()
    await first


@on_a_virtual_clock
async def test_idle_time_is_not_made_up_for(loop: VirtualClockLoop) -> None:
    """After a pause the first step takes as long as any: the schedule starts anew."""
    engine = engine_of(step_seconds=0.05)
    await ids_of(engine, prompt("Hi."))
    loop.now = 100.0
    await ids_of(engine, prompt("Hi."))
    assert loop.now == pytest.approx(100 + 5 * 0.05)


@on_a_virtual_clock
async def test_a_consumer_may_be_cancelled_as_its_frame_comes(loop: VirtualClockLoop) -> None:
    """A request cancelled between the end of a step and its delivery does no harm to the next."""
    engine = engine_of(step_seconds=0.05)
    doomed, other = (asyncio.create_task(ids_of(engine, prompt())) for _ in range(2))
    await turns(2)
    # The step's own timer was set before for the same moment, so it goes off first.
    loop.call_at(0.05, doomed.cancel)
    await asyncio.wait([doomed])
    assert doomed.cancelled()
    assert loop.now == 0.05
    assert (await other)[-1] == END_OF_SPEECH


@on_a_virtual_clock
async def test_close_waits_for_nothing(loop: VirtualClockLoop) -> None:
    """Closing cuts short the step under way, ends a stall too, and leaves no task behind."""
    engine = engine_of(capacity=2, step_seconds=60.0, fault="stalls", fault_requests=(0,))
    tasks = [asyncio.create_task(until_failure(engine.generate(prompt()))) for _ in range(3)]
    await asyncio.sleep(60.0 * 3 + 1)
    await engine.close()
    assert other_tasks() <= set(tasks)
    outcomes = await asyncio.gather(*tasks)
    assert [len(ids) for ids, _ in outcomes] == [2 * 7, 3 * 7, 0]
    assert engine.statistics()[:2] == (0, 0)
    assert loop.now == 60.0 * 3 + 1
