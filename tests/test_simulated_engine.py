"""The simulated engine: each fault does what it says, and a step is a step.

Rule: progress is counted in steps and in turns of the event loop.
"""

import asyncio
import math
from contextlib import aclosing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orpheus_ws import tokens
from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import EngineStatistics
from orpheus_ws.engine.simulated import open_engine
from orpheus_ws.engine.simulated_speech import BAD_ID_PERIOD
from orpheus_ws.errors import StartupError
from orpheus_ws.tokens import END_OF_SPEECH, FrameAssembler, LoopDetector
from tests.simulated_engines import (
    FRAMES,
    TEXT,
    engine_of,
    frames_of,
    ids_of,
    other_tasks,
    prompt,
    turns,
    until_failure,
)


async def test_opens_as_configured() -> None:
    """Slots come from `capacity`, 64 without; options from `engine.options`, also as text."""
    assert (await open_engine(EngineConfig(name="simulated"))).capacity == 64
    options = {"fault": "empty", "fault_requests": "1"}
    engine = await open_engine(EngineConfig(name="simulated", capacity=2, options=options))
    assert engine.capacity == 2
    assert engine.voices == tokens.VOICES
    assert [len(await ids_of(engine, prompt("Hi."))) for _ in range(3)] == [29, 1, 29]


@pytest.mark.parametrize("setting", ["stepseconds=1", "fault=odd", "frames_per_char=0"])
async def test_refuses_wrong_options(setting: str) -> None:
    """A key it does not know, or a value that makes no sense, stops the start."""
    option, _, value = setting.partition("=")
    with pytest.raises(StartupError, match=rf"engine\.options\.{option}"):
        await open_engine(EngineConfig(name="simulated", options={option: value}))


async def test_length_of_speech() -> None:
    """Fifteen characters make a second unless `frames_per_char` differs; four frames are least."""
    for text in ("", "Hi.", TEXT, "x" * 150):
        expected = max(4, math.ceil(len(text) / 15 * 24_000 / 2048))
        assert len(await frames_of(engine_of(), prompt(text))) == expected
    assert len(await frames_of(engine_of(frames_per_char=0.5), prompt("x" * 20))) == 10


async def test_one_frame_a_group_and_the_end_by_itself() -> None:
    """A consumer that keeps up gets one whole frame in each group, then end of speech."""
    *speech, end = [group async for group in engine_of().generate(prompt())]
    assert [len(FrameAssembler().push(group)) for group in speech] == [1] * FRAMES
    assert {len(group) for group in speech} == {7}
    assert end == [END_OF_SPEECH]


@example(seed=-1, text="\ud83d", limit=1)
@given(seed=st.integers(), text=st.text(st.characters(), max_size=200), limit=st.integers(1, 300))
def test_ids_are_a_function_of_seed_and_text(seed: int, text: str, limit: int) -> None:
    """Whatever the text: two engines agree, a lower limit gives a prefix, and all ids are legal."""

    async def main() -> None:
        whole = await ids_of(engine_of(), prompt(text, seed=seed))
        short = await ids_of(engine_of(), prompt(text, seed=seed, max_tokens=limit))
        assert short == whole[:limit]
        assembler = FrameAssembler()
        assert len(assembler.push(whole)) >= 4
        assert (assembler.invalid, assembler.dropped, assembler.ended) == (0, 0, True)

    asyncio.run(main())


async def test_seeds_and_texts_differ() -> None:
    """Another seed, or another text of the same length, gives other frames throughout."""
    first = await frames_of(engine_of(), prompt())
    for other in (prompt(seed=8), prompt(TEXT.swapcase())):
        assert not set(first) & set(await frames_of(engine_of(), other))


async def test_codes_reach_both_ends_of_the_codebook() -> None:
    """Codes 0 and 4095 occur: they are legal, and a reader that drops them must be noticed."""
    prompts = [prompt("x" * 360, seed=seed) for seed in range(20)]
    everything = [await frames_of(engine_of(), prompt) for prompt in prompts]
    codes = {code for frames in everything for frame in frames for code in frame}
    assert (min(codes), max(codes)) == (0, tokens.CODEBOOK_SIZE - 1)


async def test_a_step_advances_everyone_by_a_frame() -> None:
    """Three requests take no more steps than one, and each step gives each of them a frame."""
    engine = engine_of(capacity=3)

    async def consume(seed: int) -> list[tuple[int, int]]:
        groups = engine.generate(prompt(seed=seed))
        return [(engine.statistics().steps, len(group)) async for group in groups]

    expected = [(step, 7) for step in range(1, FRAMES + 1)] + [(FRAMES + 1, 1)]
    assert await asyncio.gather(*(consume(seed) for seed in range(3))) == [expected] * 3
    assert engine.statistics() == EngineStatistics(
        0, 0, FRAMES + 1, 3 * (7 * FRAMES + 1), simulated=1
    )


async def test_waits_for_no_consumer() -> None:
    """If nobody takes ids, the engine goes on to the end and to the next; all is kept, in one group."""
    engine = engine_of(capacity=1)
    groups, later = engine.generate(prompt()), engine.generate(prompt("Hi."))
    assert len(await anext(groups)) == 7
    assert len(await anext(later)) == 7
    assert engine.statistics() == EngineStatistics(
        1, 0, FRAMES + 2, 7 * FRAMES + 1 + 7, simulated=1
    )
    assert len(await anext(groups)) == 7 * (FRAMES - 1) + 1
    await later.aclose()


async def test_serves_in_order_of_arrival() -> None:
    """With one slot, requests are served in the order they came; who gives up moves nobody."""
    engine = engine_of(capacity=1)
    finished: list[int] = []

    async def consume(nth: int) -> None:
        await ids_of(engine, prompt("Hi.", seed=nth))
        finished.append(nth)

    tasks = [asyncio.create_task(consume(nth)) for nth in range(6)]
    await turns(1)
    assert engine.statistics()[:2] == (1, 5)
    tasks[2].cancel()
    await asyncio.wait(tasks)
    assert finished == [0, 1, 3, 4, 5]
    assert engine.statistics().steps == 5 * 5


async def test_rests_when_idle() -> None:
    """The step task ends with the last request, and a later request starts another."""
    engine = engine_of()
    for _ in range(2):
        await ids_of(engine, prompt("Hi."))
        assert other_tasks() == set()
    async with aclosing(engine.generate(prompt())) as groups:
        await anext(groups)
        assert len(other_tasks()) == 1
    await turns(2)
    assert other_tasks() == set()


async def test_never_stops() -> None:
    """`never_stops`: good frames until `max_tokens`, the first as without it, and no end."""
    ids = await ids_of(engine_of(fault="never_stops"), prompt(max_tokens=700))
    frames = FrameAssembler().push(ids)
    assert (len(ids), len(frames)) == (700, 100)
    assert frames[:FRAMES] == await frames_of(engine_of(), prompt())
    assert len(set(frames)) == 100


async def test_loop() -> None:
    """`loop`: two good frames, then the same three until `max_tokens`, and no end."""
    ids = await ids_of(engine_of(fault="loop"), prompt(max_tokens=700))
    good = await frames_of(engine_of(), prompt())
    frames = FrameAssembler().push(ids)
    assert (len(ids), len(frames)) == (700, 100)
    assert frames == good[:2] + [good[2 + nth % 3] for nth in range(98)]
    detector = LoopDetector()
    assert any(detector.push(frame, audible=True) for frame in frames[:30])


async def test_bad_ids() -> None:
    """`bad_ids`: one illegal id in every fourth frame, of all three kinds; the rest is unharmed."""
    asked = prompt("x" * 300)
    ids = await ids_of(engine_of(fault="bad_ids"), asked)
    good = await frames_of(engine_of(), asked)
    assembler = FrameAssembler()
    frames = assembler.push(ids)
    assert assembler.invalid == len(good) // BAD_ID_PERIOD
    assert len(ids) == len(good) * 7 + 1 + assembler.invalid
    assert ids[-1] == END_OF_SPEECH
    assert any(token < tokens.FIRST_SPECIAL_ID for token in ids)
    assert any(token >= tokens.AUDIO_END for token in ids)
    assert assembler.dropped > 0  # only an id out of turn costs a frame
    unharmed = [frame for nth, frame in enumerate(good, 1) if nth % BAD_ID_PERIOD]
    assert [frame for frame in frames if frame in unharmed] == unharmed
    assert set(frames) <= set(good)
    assert ids == await ids_of(engine_of(fault="bad_ids"), asked)


async def test_empty() -> None:
    """`empty`: end of speech and nothing else."""
    assert await ids_of(engine_of(fault="empty"), prompt()) == [END_OF_SPEECH]


async def test_raises() -> None:
    """`raises`: two frames, then an error for this request; its slot is free, the rest goes on."""
    engine = engine_of(fault="raises", fault_requests=(1,))
    other = asyncio.create_task(ids_of(engine, prompt()))
    await turns(1)
    ids, _ = await until_failure(engine.generate(prompt(seed=8)))
    assert engine.alive
    assert engine.statistics().active == 1
    assert (await other)[-1] == END_OF_SPEECH
    assert ids == (await ids_of(engine_of(), prompt(seed=8)))[: 2 * 7]


async def test_stalls() -> None:
    """`stalls`: two frames, then silence; the slot is held, without spinning, until cancelled."""
    engine = engine_of(capacity=1, fault="stalls", fault_requests=(0,))
    received: list[int] = []

    async def consume() -> None:
        async for group in engine.generate(prompt()):
            received.extend(group)

    stalled = asyncio.create_task(consume())
    await turns(1)
    waiting = asyncio.create_task(ids_of(engine, prompt("Hi.")))
    await turns(50)
    assert len(received) == 2 * 7
    assert engine.statistics()[:2] == (1, 1)
    assert other_tasks() == {stalled, waiting}
    stalled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stalled
    assert (await waiting)[-1] == END_OF_SPEECH
    assert engine.statistics()[:2] == (0, 0)


async def test_dies() -> None:
    """`dies`: at that request's third frame all fail, with a slot or without, and so will others."""
    engine = engine_of(capacity=2, fault="dies", fault_requests=(0,))
    told = asyncio.create_task(engine.wait_dead())
    requests = [engine.generate(prompt()) for _ in range(3)]
    outcomes = await asyncio.gather(*map(until_failure, requests))
    await told
    assert [len(ids) for ids, _ in outcomes] == [2 * 7, 2 * 7, 0]
    assert not engine.alive
    assert engine.statistics()[:2] == (0, 0)
    later = await until_failure(engine.generate(prompt()))
    assert {reason for _, reason in (*outcomes, later)} == {outcomes[0][1]}
    assert other_tasks() == set()


async def test_faults_befall_those_chosen() -> None:
    """Ordinals count requests in the order they are started, not created."""
    engine = engine_of(fault="empty", fault_requests=(0, 2))
    created = [engine.generate(prompt()) for _ in range(4)]
    assert [len(await anext(groups)) for groups in reversed(created)] == [1, 7, 1, 7]
