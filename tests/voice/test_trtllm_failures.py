"""What fails in TensorRT-LLM: one request, or the engine. In the shape of 1.2 and in a later one."""

import asyncio
import threading
from collections.abc import AsyncIterable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orpheus_ws import messages as m
from orpheus_ws import tokens
from orpheus_ws.engine import trtllm, trtllm_process, trtllm_watch
from orpheus_ws.errors import EngineFailed
from tests.harness import peer, server, turns_until
from tests.voice import fake_trtllm
from tests.voice.trtllm_engines import CAPACITY, LONG_TEXT, PROOF_REQUESTS, Open, groups_of, prompt


async def groups_of_rest(groups: AsyncIterable[Sequence[int]]) -> list[Sequence[int]]:
    """What is still to come."""
    return [group async for group in groups]


@pytest.mark.parametrize("fault", ["failing_requests", "gives_up"])
async def test_a_request_that_fails(behaviour: Any, opened: Open, fault: str) -> None:
    """An error of one request fails that context, after the ids it had; its neighbour goes on."""
    engine = await opened()
    getattr(behaviour, fault).add(PROOF_REQUESTS + 1)
    good = asyncio.create_task(groups_of(engine, prompt(LONG_TEXT)))
    await turns_until(lambda: engine.statistics().active == 1)
    groups = engine.generate(prompt(LONG_TEXT))
    ids = [*await anext(groups), *await anext(groups)]
    with pytest.raises(EngineFailed):
        await groups_of_rest(groups)
    assert len(ids) == 7
    assert (await good)[-1] == [tokens.END_OF_SPEECH]
    assert engine.alive
    assert engine.statistics().active == 0


async def test_what_the_engine_refuses(
    behaviour: Any, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that the engine does not take fails alone, and gives its slot back."""
    engine = await opened()

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("the user's words")

    with monkeypatch.context() as patched:
        patched.setattr(behaviour.opened[0], "generate_async", refuse)
        for _ in range(CAPACITY + 1):
            with pytest.raises(EngineFailed) as raised:
                await groups_of(engine, prompt())
            assert "words" not in str(raised.value)
    assert (await groups_of(engine, prompt()))[-1] == [tokens.END_OF_SPEECH]


@pytest.mark.parametrize("error", [RuntimeError("a worker failed"), KeyError("words")])
async def test_an_error_that_is_not_a_requests(
    behaviour: Any, opened: Open, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever is not known to concern one request is taken for the engine's end."""
    engine = await opened()

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(behaviour.opened[0], "generate_async", fail)
    with pytest.raises(EngineFailed):
        await groups_of(engine, prompt())
    assert not engine.alive
    await engine.wait_dead()


@pytest.mark.parametrize("error", [RuntimeError("a worker failed"), ValueError("words")])
async def test_an_error_between_answers(behaviour: Any, opened: Open, error: Exception) -> None:
    """Between answers only a `RequestError` concerns one request; all else ends the engine."""
    engine = await opened()
    behaviour.strange_requests[PROOF_REQUESTS] = error
    with pytest.raises(EngineFailed):
        await groups_of(engine, prompt(LONG_TEXT))
    assert not engine.alive


async def test_a_cancellation_of_the_librarys_own(behaviour: Any, opened: Open) -> None:
    """It fails the request rather than let it end as if all had been said."""
    engine = await opened()
    behaviour.strange_requests[PROOF_REQUESTS] = asyncio.CancelledError()
    with pytest.raises(EngineFailed):
        await groups_of(engine, prompt(LONG_TEXT))
    assert (await groups_of(engine, prompt()))[-1] == [tokens.END_OF_SPEECH]


async def test_the_engine_dies(behaviour: Any, opened: Open) -> None:
    """Its death fails every request, with a slot or without, and whoever serves it is told."""
    engine = await opened()
    behaviour.dies_after_steps = 200
    requests = [
        asyncio.create_task(groups_of(engine, prompt(LONG_TEXT, seed=seed)))
        for seed in range(CAPACITY + 2)
    ]
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineFailed] * len(requests)
    assert not engine.alive
    await engine.wait_dead()
    figures = engine.statistics()
    assert (figures.active, figures.waiting) == (0, 0)
    with pytest.raises(EngineFailed):
        await groups_of(engine, prompt())


@pytest.mark.parametrize("known", [True, False])
async def test_an_error_of_nobody_knows_what(
    behaviour: Any, opened: Open, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Where a version has no class for errors of a request, any is one unless the engine is gone."""
    if not known:
        monkeypatch.delattr("tensorrt_llm.executor.utils.RequestError")
    engine = await opened()
    behaviour.strange_requests[PROOF_REQUESTS] = RuntimeError("which?")
    with pytest.raises(EngineFailed):
        await groups_of(engine, prompt(LONG_TEXT))
    assert engine.alive == (not known)
    if not known:
        behaviour.dies_after_steps = 100
        with pytest.raises(EngineFailed):
            await groups_of(engine, prompt(LONG_TEXT))
        assert not engine.alive


@pytest.mark.parametrize("sign", ["executor", "worker", "silence"])
async def test_a_death_that_no_request_is_told_of(
    behaviour: Any, opened: Open, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    """A worker that is gone is noticed though its requests wait for ever, and nothing is asked of it."""
    monkeypatch.setattr(trtllm_watch, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(trtllm_process.close, "__defaults__", (0.01,))
    monkeypatch.setattr(trtllm_watch, "SILENCE_SECONDS", 0.05 if sign == "silence" else 600.0)
    behaviour.helper = sign == "silence"
    engine = await opened()
    (llm,) = behaviour.opened
    behaviour.silent = True
    if sign == "executor":
        behaviour.dies_after_steps = 150
    waiting = [asyncio.create_task(groups_of(engine, prompt(LONG_TEXT))) for _ in range(2)]
    await turns_until(lambda: engine.statistics().active == 2)
    if sign != "executor":
        llm.worker.kill()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineFailed] * 2
    await engine.wait_dead()
    assert not engine.alive
    assert not any(result.aborted() for _, result in llm.requests)


def _progress(*numbers: int | None) -> Callable[[], int | None]:
    """One after the other at each look."""
    left = iter(numbers)
    return lambda: next(left)


@pytest.mark.parametrize(
    ("numbers", "dead"),
    [
        ((None,) * 12, False),
        ((7,) * 5 + (8,) * 5 + (9, 9), False),
        ((7, 7, None) * 4, False),
        ((1, 2, 3) + (4,) * 9, True),
    ],
)
async def test_what_silence_is(
    monkeypatch: pytest.MonkeyPatch, numbers: tuple[int | None, ...], dead: bool
) -> None:
    """Only looks one after another count, at which somebody waits and nothing has come."""
    monkeypatch.setattr(trtllm_watch, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(trtllm_watch, "SILENCE_SECONDS", 0.005)
    over, deaths = threading.Event(), []
    progress = _progress(*numbers)

    def last_look() -> int | None:
        try:
            return progress()
        except StopIteration:
            over.set()
            return None

    watched = trtllm_watch.Watched(
        is_dead=lambda: False,
        progress=last_look,
        died=lambda: deaths.append(1),
        end_workers=lambda: None,
    )
    await asyncio.to_thread(trtllm_watch.watch, watched, asyncio.get_running_loop(), over)
    assert len(deaths) == dead


async def test_an_idle_engine_is_not_dead(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that nobody asks for anything says nothing, and lives."""
    engine = await opened()
    looks: list[object] = []
    monkeypatch.setattr(trtllm, "is_gone", looks.append)
    monkeypatch.setattr(trtllm_watch, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(trtllm_watch, "SILENCE_SECONDS", 0.005)
    await turns_until(lambda: len(looks) > 20 or not engine.alive)
    assert engine.alive


class Swallowing:
    """Statistics that lose a cancellation, as `asyncio.wait_for` may in Python 3.11."""

    def __init__(self) -> None:
        self.awaited = False

    def __aiter__(self) -> "Swallowing":
        return self

    async def __anext__(self) -> dict[str, Any]:
        self.awaited = True
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {}
        raise StopAsyncIteration


async def test_a_cancellation_that_is_lost(
    behaviour: Any, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine closes though the library did not pass a cancellation on."""
    monkeypatch.setattr(trtllm, "FOLLOW_SECONDS", 0.01)
    engine = await opened()
    swallowing = Swallowing()
    monkeypatch.setattr(behaviour.opened[0], "get_stats_async", lambda timeout: swallowing)
    await turns_until(lambda: swallowing.awaited)
    await engine.close()
    assert not engine.alive


async def test_a_server_whose_engine_dies(behaviour: Any, tmp_path: Path) -> None:
    """Everybody who listens is told, and the server knows that it is dead."""
    model = fake_trtllm.write_checkpoint(tmp_path)
    mine = ("engine.name=trtllm", f"engine.options.model={model}", "engine.uncalibrated=3")
    async with server(*mine) as started, peer(started.address.url) as client:
        behaviour.dies_after_steps = 150
        await client.say("a", LONG_TEXT)
        last = (await client.utterance("a"))[-1]
        assert isinstance(last, m.Error)
        assert last.code == "engine_failed"
        await started.wait_dead()
