"""The simulated engine: each fault does what it says, and a step is a step.

Rule: progress is counted in steps and in turns of the event loop; where a step costs time, the
event loop's clock is a virtual one.
"""

import asyncio
import inspect
import math
import selectors
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Concatenate, ParamSpec, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orpheus_ws import tokens
from orpheus_ws.audio import Player, Shaper
from orpheus_ws.codec.simulated import periods, tone
from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Engine, EngineStatistics, Prompt
from orpheus_ws.engine.simulated import Options, SimulatedEngine, open_engine
from orpheus_ws.engine.simulated_speech import BAD_ID_PERIOD
from orpheus_ws.errors import EngineFailed, StartupError
from orpheus_ws.planning.profiles import GPUS, GpuName
from orpheus_ws.planning.steps import HOST, largest_real_time_batch, prompt_tokens, step_times
from orpheus_ws.tokens import END_OF_SPEECH, Frame, FrameAssembler, LoopDetector

P = ParamSpec("P")

TEXT = "Forty characters of text, no more, fine."
FRAMES = 32  # of TEXT: ceil(40 characters * 24 000 / 2048 / 15)


def _prompt(text: str = TEXT, *, seed: int = 7, max_tokens: int = 2048) -> Prompt:
    return Prompt(text=text, voice="tara", seed=seed, max_tokens=max_tokens)


def _engine(capacity: int = 3, **options: Any) -> SimulatedEngine:
    return SimulatedEngine(capacity, Options(**options))


async def _ids(engine: Engine, prompt: Prompt) -> list[int]:
    async with aclosing(engine.generate(prompt)) as groups:
        return [token async for group in groups for token in group]


async def _frames(engine: Engine, prompt: Prompt) -> list[Frame]:
    return FrameAssembler().push(await _ids(engine, prompt))


async def _until_failure(groups: AsyncGenerator[Sequence[int], None]) -> tuple[list[int], str]:
    """The ids that came before `EngineFailed`, and its text."""
    ids: list[int] = []
    try:
        async for group in groups:
            ids += group
    except EngineFailed as failure:
        return ids, str(failure)
    pytest.fail("the request ended without an error")


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _other_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {cast(asyncio.Task[Any], asyncio.current_task())}


class _VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop that moves its clock forward instead of sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: _VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits for something that never comes"
        self._loop.now += timeout
        return super().select(0)


def _on_a_virtual_clock(
    test: Callable[Concatenate[_VirtualClockLoop, P], Coroutine[Any, Any, None]],
) -> Callable[P, None]:
    def run(*args: P.args, **parameters: P.kwargs) -> None:
        loop = _VirtualClockLoop()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(test(loop, *args, **parameters))

    run.__doc__ = test.__doc__
    # pytest asks for the parameters by name; the loop comes from here.
    signature = inspect.signature(test)
    parameters = list(signature.parameters.values())[1:]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


async def test_opens_as_configured() -> None:
    """Slots come from `capacity`, 64 without; options from `engine.options`, also as text."""
    assert (await open_engine(EngineConfig(name="simulated"))).capacity == 64
    options = {"fault": "empty", "fault_requests": "1"}
    engine = await open_engine(EngineConfig(name="simulated", capacity=2, options=options))
    assert engine.capacity == 2
    assert engine.voices == tokens.VOICES
    assert [len(await _ids(engine, _prompt("Hi."))) for _ in range(3)] == [29, 1, 29]


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
        assert len(await _frames(_engine(), _prompt(text))) == expected
    assert len(await _frames(_engine(frames_per_char=0.5), _prompt("x" * 20))) == 10


async def test_one_frame_a_group_and_the_end_by_itself() -> None:
    """A consumer that keeps up gets one whole frame in each group, then end of speech."""
    *speech, end = [group async for group in _engine().generate(_prompt())]
    assert [len(FrameAssembler().push(group)) for group in speech] == [1] * FRAMES
    assert {len(group) for group in speech} == {7}
    assert end == [END_OF_SPEECH]


@example(seed=-1, text="\ud83d", limit=1)
@given(seed=st.integers(), text=st.text(st.characters(), max_size=200), limit=st.integers(1, 300))
def test_ids_are_a_function_of_seed_and_text(seed: int, text: str, limit: int) -> None:
    """Whatever the text: two engines agree, a lower limit gives a prefix, and all ids are legal."""

    async def main() -> None:
        whole = await _ids(_engine(), _prompt(text, seed=seed))
        short = await _ids(_engine(), _prompt(text, seed=seed, max_tokens=limit))
        assert short == whole[:limit]
        assembler = FrameAssembler()
        assert len(assembler.push(whole)) >= 4
        assert (assembler.invalid, assembler.dropped, assembler.ended) == (0, 0, True)

    asyncio.run(main())


async def test_seeds_and_texts_differ() -> None:
    """Another seed, or another text of the same length, gives other frames throughout."""
    first = await _frames(_engine(), _prompt())
    for other in (_prompt(seed=8), _prompt(TEXT.swapcase())):
        assert not set(first) & set(await _frames(_engine(), other))


async def test_codes_reach_both_ends_of_the_codebook() -> None:
    """Codes 0 and 4095 occur: they are legal, and a reader that drops them must be noticed."""
    prompts = [_prompt("x" * 360, seed=seed) for seed in range(20)]
    everything = [await _frames(_engine(), prompt) for prompt in prompts]
    codes = {code for frames in everything for frame in frames for code in frame}
    assert (min(codes), max(codes)) == (0, tokens.CODEBOOK_SIZE - 1)


async def test_a_step_advances_everyone_by_a_frame() -> None:
    """Three requests take no more steps than one, and each step gives each of them a frame."""
    engine = _engine(capacity=3)

    async def consume(seed: int) -> list[tuple[int, int]]:
        groups = engine.generate(_prompt(seed=seed))
        return [(engine.statistics().steps, len(group)) async for group in groups]

    expected = [(step, 7) for step in range(1, FRAMES + 1)] + [(FRAMES + 1, 1)]
    assert await asyncio.gather(*(consume(seed) for seed in range(3))) == [expected] * 3
    assert engine.statistics() == EngineStatistics(
        0, 0, FRAMES + 1, 3 * (7 * FRAMES + 1), simulated=1
    )


async def test_waits_for_no_consumer() -> None:
    """If nobody takes ids, the engine goes on to the end and to the next; all is kept, in one group."""
    engine = _engine(capacity=1)
    groups, later = engine.generate(_prompt()), engine.generate(_prompt("Hi."))
    assert len(await anext(groups)) == 7
    assert len(await anext(later)) == 7
    assert engine.statistics() == EngineStatistics(
        1, 0, FRAMES + 2, 7 * FRAMES + 1 + 7, simulated=1
    )
    assert len(await anext(groups)) == 7 * (FRAMES - 1) + 1
    await later.aclose()


async def test_serves_in_order_of_arrival() -> None:
    """With one slot, requests are served in the order they came; who gives up moves nobody."""
    engine = _engine(capacity=1)
    finished: list[int] = []

    async def consume(nth: int) -> None:
        await _ids(engine, _prompt("Hi.", seed=nth))
        finished.append(nth)

    tasks = [asyncio.create_task(consume(nth)) for nth in range(6)]
    await _turns(1)
    assert engine.statistics()[:2] == (1, 5)
    tasks[2].cancel()
    await asyncio.wait(tasks)
    assert finished == [0, 1, 3, 4, 5]
    assert engine.statistics().steps == 5 * 5


async def test_rests_when_idle() -> None:
    """The step task ends with the last request, and a later request starts another."""
    engine = _engine()
    for _ in range(2):
        await _ids(engine, _prompt("Hi."))
        assert _other_tasks() == set()
    async with aclosing(engine.generate(_prompt())) as groups:
        await anext(groups)
        assert len(_other_tasks()) == 1
    await _turns(2)
    assert _other_tasks() == set()


async def test_never_stops() -> None:
    """`never_stops`: good frames until `max_tokens`, the first as without it, and no end."""
    ids = await _ids(_engine(fault="never_stops"), _prompt(max_tokens=700))
    frames = FrameAssembler().push(ids)
    assert (len(ids), len(frames)) == (700, 100)
    assert frames[:FRAMES] == await _frames(_engine(), _prompt())
    assert len(set(frames)) == 100


async def test_loop() -> None:
    """`loop`: two good frames, then the same three until `max_tokens`, and no end."""
    ids = await _ids(_engine(fault="loop"), _prompt(max_tokens=700))
    good = await _frames(_engine(), _prompt())
    frames = FrameAssembler().push(ids)
    assert (len(ids), len(frames)) == (700, 100)
    assert frames == good[:2] + [good[2 + nth % 3] for nth in range(98)]
    detector = LoopDetector()
    assert any(detector.push(frame, audible=True) for frame in frames[:30])


async def test_bad_ids() -> None:
    """`bad_ids`: one illegal id in every fourth frame, of all three kinds; the rest is unharmed."""
    prompt = _prompt("x" * 300)
    ids = await _ids(_engine(fault="bad_ids"), prompt)
    good = await _frames(_engine(), prompt)
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
    assert ids == await _ids(_engine(fault="bad_ids"), prompt)


async def test_empty() -> None:
    """`empty`: end of speech and nothing else."""
    assert await _ids(_engine(fault="empty"), _prompt()) == [END_OF_SPEECH]


async def test_raises() -> None:
    """`raises`: two frames, then an error for this request; its slot is free, the rest goes on."""
    engine = _engine(fault="raises", fault_requests=(1,))
    other = asyncio.create_task(_ids(engine, _prompt()))
    await _turns(1)
    ids, _ = await _until_failure(engine.generate(_prompt(seed=8)))
    assert engine.alive
    assert engine.statistics().active == 1
    assert (await other)[-1] == END_OF_SPEECH
    assert ids == (await _ids(_engine(), _prompt(seed=8)))[: 2 * 7]


async def test_stalls() -> None:
    """`stalls`: two frames, then silence; the slot is held, without spinning, until cancelled."""
    engine = _engine(capacity=1, fault="stalls", fault_requests=(0,))
    received: list[int] = []

    async def consume() -> None:
        async for group in engine.generate(_prompt()):
            received.extend(group)

    stalled = asyncio.create_task(consume())
    await _turns(1)
    waiting = asyncio.create_task(_ids(engine, _prompt("Hi.")))
    await _turns(50)
    assert len(received) == 2 * 7
    assert engine.statistics()[:2] == (1, 1)
    assert _other_tasks() == {stalled, waiting}
    stalled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stalled
    assert (await waiting)[-1] == END_OF_SPEECH
    assert engine.statistics()[:2] == (0, 0)


async def test_dies() -> None:
    """`dies`: at that request's third frame all fail, with a slot or without, and so will others."""
    engine = _engine(capacity=2, fault="dies", fault_requests=(0,))
    told = asyncio.create_task(engine.wait_dead())
    requests = [engine.generate(_prompt()) for _ in range(3)]
    outcomes = await asyncio.gather(*map(_until_failure, requests))
    await told
    assert [len(ids) for ids, _ in outcomes] == [2 * 7, 2 * 7, 0]
    assert not engine.alive
    assert engine.statistics()[:2] == (0, 0)
    later = await _until_failure(engine.generate(_prompt()))
    assert {reason for _, reason in (*outcomes, later)} == {outcomes[0][1]}
    assert _other_tasks() == set()


async def test_faults_befall_those_chosen() -> None:
    """Ordinals count requests in the order they are started, not created."""
    engine = _engine(fault="empty", fault_requests=(0, 2))
    created = [engine.generate(_prompt()) for _ in range(4)]
    assert [len(await anext(groups)) for groups in reversed(created)] == [1, 7, 1, 7]


@_on_a_virtual_clock
async def test_a_step_costs_what_the_options_say(loop: _VirtualClockLoop) -> None:
    """A step takes `step_seconds` and `stream_seconds` for each active request at its start."""
    engine = _engine(capacity=3, step_seconds=0.05, stream_seconds=0.01)
    requests = [engine.generate(_prompt()) for _ in range(3)]
    for nth in range(1, 11):
        await asyncio.gather(*map(anext, requests))
        assert loop.now == pytest.approx(nth * 0.08)
    await requests.pop().aclose()
    for nth in range(10):
        await asyncio.gather(*map(anext, requests))
        assert loop.now == pytest.approx(11 * 0.08 + nth * 0.07)
    await engine.close()


@_on_a_virtual_clock
async def test_a_step_counts_ids_and_prompts(loop: _VirtualClockLoop) -> None:
    """A step takes its time for each id that requests hold by then, and for each that joins."""
    engine = _engine(step_seconds=0.05, kv_token_seconds=1e-3, prefill_seconds=0.2)
    held = prompt_tokens(TEXT) * 1e-3
    first, second = (engine.generate(_prompt(seed=seed)) for seed in range(2))
    await anext(first)
    assert loop.now == pytest.approx(0.05 + 0.2 + held)
    await anext(first)
    assert loop.now == pytest.approx(2 * 0.05 + 0.2 + 2 * held + 1e-3)
    # The second joins while the third step runs, and takes part in the fourth.
    await anext(second)
    assert loop.now == pytest.approx(4 * 0.05 + 2 * 0.2 + 5 * held + (1 + 2 + 3) * 1e-3)
    await first.aclose()
    await second.aclose()


@_on_a_virtual_clock
async def test_what_is_less_than_a_frame_waits_for_no_frame(loop: _VirtualClockLoop) -> None:
    """With a token a step, end of speech comes a step after the last frame, and a cut frame as its
    last id does.
    """
    engine = _engine(step_seconds=1.0, steps_per_frame=7)
    assert [len(group) async for group in engine.generate(_prompt())] == [7] * FRAMES + [1]
    assert loop.now == pytest.approx(7 * FRAMES + 1)
    assert len(await _ids(engine, _prompt(max_tokens=10))) == 10
    assert loop.now == pytest.approx(7 * FRAMES + 1 + 10)


async def test_silence_and_the_first_frames() -> None:
    """`silent_frames` come before the speech, which stays what it was; `first_frames` come together."""
    engine = _engine(silent_frames=3, first_frames=5)
    groups = [list(group) async for group in engine.generate(_prompt())]
    assert list(map(len, groups)) == [8 * 7] + [7] * (FRAMES - 5) + [1]
    frames = FrameAssembler().push([token for group in groups for token in group])
    assert frames == [(0,) * 7] * 3 + await _frames(_engine(), _prompt())
    short = _engine(first_frames=12)
    assert [len(group) async for group in short.generate(_prompt("Hi."))] == [29]


@pytest.mark.parametrize("gpu", GPUS)
@_on_a_virtual_clock
async def test_a_step_of_a_gpu(loop: _VirtualClockLoop, gpu: GpuName) -> None:
    """With `gpu` a step makes one id, and takes what the arithmetic says for `variant`."""
    for variant in HOST:
        engine = _engine(gpu=gpu, variant=variant)
        times, before = step_times(GPUS[gpu], variant=variant), loop.now
        groups = engine.generate(_prompt())
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
    assert _engine().statistics().simulated == 1


async def _speak(engine: SimulatedEngine, texts: Sequence[str]) -> int:
    """Speak `texts` as the server would, silence trimmed, to a virtual player; its underruns."""
    loop, player, shaper = asyncio.get_running_loop(), Player(), Shaper()
    for nth, text in enumerate(texts):
        await asyncio.sleep(max(0.0, player.seconds_until(LEAD_SECONDS, loop.time())))
        assembler = FrameAssembler()
        async for ids in engine.generate(_prompt(text, seed=nth)):
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
@_on_a_virtual_clock
async def test_the_capacity_is_known(loop: _VirtualClockLoop, given: dict[str, Any]) -> None:
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


@_on_a_virtual_clock
async def test_the_schedule_does_not_drift(loop: _VirtualClockLoop) -> None:
    """Time that others spend on the event loop, even whole steps of it, delays no later step."""
    received = 0
    async for group in _engine(step_seconds=0.05).generate(_prompt()):
        received += len(group)
        # A third of a step every time, and once ten steps at a stretch.
        loop.now += 0.5 if received == 5 * 7 else 0.05 / 3
    assert received == FRAMES * 7 + 1
    assert loop.now == pytest.approx((FRAMES + 1) * 0.05 + 0.05 / 3)


@_on_a_virtual_clock
async def test_who_joins_during_a_step_waits_for_the_next(loop: _VirtualClockLoop) -> None:
    """A request that comes in the middle of a step has its first frame after one more."""
    engine = _engine(step_seconds=0.05)
    first = asyncio.create_task(_ids(engine, _prompt()))
    await asyncio.sleep(0.07)
    groups = engine.generate(_prompt())
    await anext(groups)
    assert loop.now == pytest.approx(0.15)
    await groups.aclose()
    await first


@_on_a_virtual_clock
async def test_idle_time_is_not_made_up_for(loop: _VirtualClockLoop) -> None:
    """After a pause the first step takes as long as any: the schedule starts anew."""
    engine = _engine(step_seconds=0.05)
    await _ids(engine, _prompt("Hi."))
    loop.now = 100.0
    await _ids(engine, _prompt("Hi."))
    assert loop.now == pytest.approx(100 + 5 * 0.05)


@_on_a_virtual_clock
async def test_a_consumer_may_be_cancelled_as_its_frame_comes(loop: _VirtualClockLoop) -> None:
    """A request cancelled between the end of a step and its delivery does no harm to the next."""
    engine = _engine(step_seconds=0.05)
    doomed, other = (asyncio.create_task(_ids(engine, _prompt())) for _ in range(2))
    await _turns(2)
    # The step's own timer was set before for the same moment, so it goes off first.
    loop.call_at(0.05, doomed.cancel)
    await asyncio.wait([doomed])
    assert doomed.cancelled()
    assert loop.now == 0.05
    assert (await other)[-1] == END_OF_SPEECH


@_on_a_virtual_clock
async def test_close_waits_for_nothing(loop: _VirtualClockLoop) -> None:
    """Closing cuts short the step under way, ends a stall too, and leaves no task behind."""
    engine = _engine(capacity=2, step_seconds=60.0, fault="stalls", fault_requests=(0,))
    tasks = [asyncio.create_task(_until_failure(engine.generate(_prompt()))) for _ in range(3)]
    await asyncio.sleep(60.0 * 3 + 1)
    await engine.close()
    assert _other_tasks() <= set(tasks)
    outcomes = await asyncio.gather(*tasks)
    assert [len(ids) for ids, _ in outcomes] == [2 * 7, 3 * 7, 0]
    assert engine.statistics()[:2] == (0, 0)
    assert loop.now == 60.0 * 3 + 1
