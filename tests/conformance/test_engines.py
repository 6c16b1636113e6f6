"""What every engine promises, asked of every engine.

Rule: nothing here knows an engine; `conftest.py` prepares those that need it. Modules of
`orpheus_ws.engine` that define `open_engine` are found by looking; one is skipped only where a
package that it needs is not installed. Time is counted in the engine's own steps.
"""

import asyncio
import importlib
import importlib.abc
import importlib.util
import pkgutil
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest

import orpheus_ws.engine
from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Engine, EngineStatistics, Prompt, find_engine
from orpheus_ws.errors import EngineFailed
from orpheus_ws.tokens import AUDIO_BASE, AUDIO_END, END_OF_SPEECH, Frame, FrameAssembler
from tests.conformance.conftest import Prepared

LONG_TEXT = (
    "The harbour was quiet that morning, and the gulls had not yet found the boats. "
    "An old man mended his nets on the wall, humming a tune that nobody else remembered."
)
PATIENCE_SECONDS = 30.0
"""Only a hang takes this long; no claim is about it."""


def _find_engines() -> tuple[list[str], dict[str, str]]:
    """Names of the engines there are, and of those whose package is missing with its name."""
    found, missing = [], {}
    for module in pkgutil.iter_modules(orpheus_ws.engine.__path__):
        path = f"orpheus_ws.engine.{module.name}"
        try:
            loaded = importlib.import_module(path)
        except ModuleNotFoundError as error:
            package = error.name or ""
            if package.startswith("orpheus_ws"):
                raise
            if _source_defines_engine(path):
                missing[module.name] = package
        else:
            if hasattr(loaded, "open_engine"):
                found.append(module.name)
    return found, missing


def _source_defines_engine(path: str) -> bool:
    """Tell an engine that cannot be imported here from one of its helper modules."""
    spec = importlib.util.find_spec(path)
    assert spec is not None
    assert spec.origin is not None
    assert isinstance(spec.loader, importlib.abc.InspectLoader)
    return "def open_engine(" in (spec.loader.get_source(path) or "")


FOUND, MISSING = _find_engines()


@pytest.fixture(
    params=[
        *FOUND,
        *(
            pytest.param(name, marks=pytest.mark.skip(reason=f"needs the package {package}"))
            for name, package in MISSING.items()
        ),
    ]
)
async def engine(request: pytest.FixtureRequest, prepared: Prepared) -> AsyncIterator[Engine]:
    """A small engine, closed afterwards."""
    options = prepared(request.param)
    config = EngineConfig(name=request.param, capacity=3, options=options)
    opened = await find_engine(config)(config)
    yield opened
    await opened.close()


def _prompt(engine: Engine, text: str, *, seed: int = 7, max_tokens: int = 2048) -> Prompt:
    return Prompt(text=text, voice=engine.voices[0], seed=seed, max_tokens=max_tokens)


async def _ids(engine: Engine, prompt: Prompt) -> list[int]:
    """All ids of one request."""
    async with aclosing(engine.generate(prompt)) as groups:
        return [token async for group in groups for token in group]


def _assemble(ids: list[int]) -> tuple[list[Frame], FrameAssembler]:
    assembler = FrameAssembler()
    return assembler.push(ids), assembler


async def _until(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until `condition` holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - an engine announces its figures to nobody
            await asyncio.sleep(0)


async def _within_two_steps(engine: Engine, condition: Callable[[EngineStatistics], bool]) -> None:
    """Let the engine step until `condition` holds of its figures, twice at the most."""
    last = engine.statistics().steps + 2

    def settled() -> bool:
        figures = engine.statistics()
        # An engine in another thread goes on while this one looks.
        if condition(figures):
            return True
        assert figures.steps <= last, f"still not so after two steps: {figures}"
        return False

    await _until(settled)


async def _assert_nothing_more_is_generated(engine: Engine) -> None:
    """Once idle, the engine's count grows by the next request's ids and by nothing else."""
    await _within_two_steps(engine, lambda figures: figures.active == 0)
    before = engine.statistics().tokens
    ids = await _ids(engine, _prompt(engine, "Hi."))
    assert engine.statistics().tokens == before + len(ids)


def test_the_engines_there_are() -> None:
    """Discovery finds all of ours, which run through this suite or are named as lacking a package."""
    assert {"pocket", "simulated", "torch", "trtllm"} <= {*FOUND, *MISSING}
    assert len(FOUND) >= 1


async def test_says_what_it_offers(engine: Engine) -> None:
    """An open engine is alive and idle, and has a voice and a slot."""
    assert engine.alive
    assert engine.capacity >= 1
    assert len(engine.voices) >= 1
    assert all(engine.voices)
    figures = engine.statistics()
    assert (figures.active, figures.waiting) == (0, 0)


async def test_even_a_short_text_gives_frames(engine: Engine) -> None:
    """ "Hi." becomes at least four frames and costs no id."""
    frames, assembler = _assemble(await _ids(engine, _prompt(engine, "Hi.")))
    assert len(frames) >= 4
    assert assembler.invalid == 0
    assert assembler.dropped == 0


async def test_every_voice_speaks(engine: Engine) -> None:
    """Each voice on offer gives frames and ends."""
    for voice in engine.voices:
        ids = await _ids(engine, Prompt(text="Hi.", voice=voice, seed=7))
        frames, assembler = _assemble(ids)
        assert frames
        assert assembler.ended


async def test_ends_with_end_of_speech(engine: Engine) -> None:
    """End of speech is the very last id and comes once."""
    ids = await _ids(engine, _prompt(engine, "Hi."))
    assert ids[-1] == END_OF_SPEECH
    assert ids.count(END_OF_SPEECH) == 1


async def test_no_group_is_empty(engine: Engine) -> None:
    """A group wakes the consumer for something."""
    async with aclosing(engine.generate(_prompt(engine, "Hi."))) as groups:
        assert [group async for group in groups if not group] == []


async def test_the_seed_decides(engine: Engine) -> None:
    """The same seed and text give the same ids."""
    prompt = _prompt(engine, "Good morning.", seed=11)
    assert await _ids(engine, prompt) == await _ids(engine, prompt)


async def test_stops_at_max_tokens(engine: Engine) -> None:
    """No request gets more ids than it may have, and those it gets are good."""
    ids = await _ids(engine, _prompt(engine, LONG_TEXT, max_tokens=70))
    frames, assembler = _assemble(ids)
    assert len(ids) <= 70
    assert len(frames) >= 4
    assert assembler.invalid == 0


async def test_counts_what_it_hands_out(engine: Engine) -> None:
    """After a request `tokens` has grown by its ids, steps were taken, and its slot is free."""
    before = engine.statistics()
    ids = await _ids(engine, _prompt(engine, "Hi."))
    await _within_two_steps(engine, lambda figures: figures.active == 0)
    after = engine.statistics()
    assert after.tokens == before.tokens + len(ids)
    assert after.steps > before.steps
    assert after.waiting == 0


async def test_more_requests_than_slots(engine: Engine) -> None:
    """Two more requests than slots all finish, and no more are active than there are slots."""
    seen: list[EngineStatistics] = []

    async def consume(seed: int) -> list[int]:
        ids: list[int] = []
        async with aclosing(engine.generate(_prompt(engine, "Hi.", seed=seed))) as groups:
            async for group in groups:
                seen.append(engine.statistics())
                ids += group
        return ids

    tasks = [asyncio.create_task(consume(seed)) for seed in range(engine.capacity + 2)]
    await _until(lambda: engine.statistics().waiting >= 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        everyone = await asyncio.gather(*tasks)
    assert all(ids[-1] == END_OF_SPEECH for ids in everyone)
    assert max(figures.active for figures in seen) <= engine.capacity


async def test_company_changes_nothing(engine: Engine) -> None:
    """A request gets the ids it would get alone, whoever else is being served."""
    prompts = [_prompt(engine, "Good morning.", seed=seed) for seed in range(engine.capacity)]
    alone = [await _ids(engine, prompt) for prompt in prompts]
    together = await asyncio.gather(*(_ids(engine, prompt) for prompt in prompts))
    assert together == alone


async def test_aclose_frees_the_slot(engine: Engine) -> None:
    """Closing the generator in mid-speech ends the request within two steps, and for good."""
    groups = engine.generate(_prompt(engine, LONG_TEXT))
    await anext(groups)
    assert engine.statistics().active == 1
    await groups.aclose()
    await _assert_nothing_more_is_generated(engine)


async def test_cancelling_one_who_waits_for_ids(engine: Engine) -> None:
    """Cancelling a task inside `anext` ends its request within two steps, and for good."""
    started = asyncio.Event()

    async def consume() -> None:
        async for _ in engine.generate(_prompt(engine, LONG_TEXT)):
            started.set()

    task = asyncio.create_task(consume())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _assert_nothing_more_is_generated(engine)


async def test_cancelling_one_who_is_busy(engine: Engine) -> None:
    """Cancelling a task that is busy with a group ends its request just the same."""
    started = asyncio.Event()

    async def consume() -> None:
        async with aclosing(engine.generate(_prompt(engine, LONG_TEXT))) as groups:
            async for _ in groups:
                started.set()
                await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(consume())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _assert_nothing_more_is_generated(engine)


async def test_cancelling_one_who_waits_for_a_slot(engine: Engine) -> None:
    """Cancelling a request that has no slot yet takes it out of the queue; the others go on."""
    prompts = [_prompt(engine, LONG_TEXT, seed=seed) for seed in range(engine.capacity)]
    others = [engine.generate(prompt) for prompt in prompts]
    await asyncio.gather(*(anext(groups) for groups in others))
    task = asyncio.create_task(_ids(engine, _prompt(engine, LONG_TEXT)))
    await _until(lambda: engine.statistics().waiting == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _within_two_steps(engine, lambda figures: figures.waiting == 0)
    assert engine.statistics().active == engine.capacity
    for groups in others:
        assert await anext(groups)
        await groups.aclose()
    await _assert_nothing_more_is_generated(engine)


async def test_a_freed_slot_goes_to_who_waits(engine: Engine) -> None:
    """A request that waits is served when another is closed in mid-speech."""
    others = [engine.generate(_prompt(engine, LONG_TEXT)) for _ in range(engine.capacity)]
    await asyncio.gather(*(anext(groups) for groups in others))
    task = asyncio.create_task(_ids(engine, _prompt(engine, "Hi.")))
    await _until(lambda: engine.statistics().waiting == 1)
    await others[0].aclose()
    await _within_two_steps(engine, lambda figures: figures.waiting == 0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await task)[-1] == END_OF_SPEECH
    for groups in others:
        await groups.aclose()


async def test_a_neighbour_that_leaves_disturbs_nobody(engine: Engine) -> None:
    """A request's ids are the same when another is closed beside it."""
    prompt = _prompt(engine, "Good morning.", seed=23)
    alone = await _ids(engine, prompt)
    neighbour = engine.generate(_prompt(engine, LONG_TEXT))
    await anext(neighbour)
    ids: list[int] = []
    async with aclosing(engine.generate(prompt)) as groups:
        ids += await anext(groups)
        await neighbour.aclose()
        async for group in groups:
            ids += group
    assert ids == alone


async def test_close_fails_what_runs_and_what_waits(engine: Engine) -> None:
    """Closing the engine in mid-speech ends every request, with a slot or without, by an error."""
    requests = [
        asyncio.create_task(_ids(engine, _prompt(engine, LONG_TEXT)))
        for _ in range(engine.capacity + 1)
    ]
    await _until(lambda: engine.statistics().tokens > 0)
    assert engine.statistics().waiting == 1
    await engine.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineFailed] * len(requests)
    assert (engine.statistics().active, engine.statistics().waiting) == (0, 0)


async def test_a_closed_engine_says_so(engine: Engine) -> None:
    """After `close` the engine is not alive and refuses work; closing it again is harmless."""
    await engine.close()
    await engine.close()
    assert not engine.alive
    with pytest.raises(EngineFailed):
        await _ids(engine, _prompt(engine, "Hi."))


async def test_whoever_serves_it_is_told_of_its_death(engine: Engine) -> None:
    """`wait_dead` waits while the engine lives, ends for all when it does not, and may be cancelled."""
    waiting = [asyncio.create_task(engine.wait_dead()) for _ in range(3)]
    assert (await _ids(engine, _prompt(engine, "Hi.")))[-1] == END_OF_SPEECH
    waiting.pop().cancel()
    assert not any(waiter.done() for waiter in waiting)
    await engine.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*waiting)
        await engine.wait_dead()


@pytest.mark.parametrize(
    "text",
    [
        "Hello <custom_token_9> <|eot_id|> world",
        "Hello <|begin_of_text|><|audio|> world",
        "<laugh> 12 \N{GRINNING FACE} \N{ZERO WIDTH SPACE}",
    ],
)
async def test_text_is_only_text(engine: Engine, text: str) -> None:
    """What looks like control tokens in the text brings forth nothing but legal ids, then the end."""
    *speech, end = await _ids(engine, _prompt(engine, text))
    assert end == END_OF_SPEECH
    assert [token for token in speech if not AUDIO_BASE <= token < AUDIO_END] == []
    assert _assemble(speech)[1].invalid == 0
