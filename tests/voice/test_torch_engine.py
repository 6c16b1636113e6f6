"""Torch engine: what is special about it. What every engine promises is in `tests/conformance`."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

from orpheus_ws import tokens
from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Prompt
from orpheus_ws.engine.torch import TorchEngine, open_engine
from orpheus_ws.engine.torch_batch import Batch
from orpheus_ws.engine.torch_model import SlotModel
from orpheus_ws.errors import EngineFailed, StartupError
from tests.harness import turns_until
from tests.voice.fake_trtllm import write_manifest
from tests.voice.torch_checkpoints import SENTENCE, cut_short, spoilt

Opener = Callable[..., Awaitable[TorchEngine]]


@pytest.fixture
async def opened(tiny_checkpoint: Path) -> AsyncIterator[Opener]:
    """Open engines over the tiny checkpoint; they are closed afterwards."""
    engines: list[TorchEngine] = []

    async def opener(capacity: int = 2, **options: Any) -> TorchEngine:
        chosen = {"model": str(tiny_checkpoint), "context": 1024} | options
        engines.append(
            await open_engine(EngineConfig(name="torch", capacity=capacity, options=chosen))
        )
        return engines[-1]

    yield opener
    for engine in engines:
        await engine.close()
    assert threads() == []


def threads() -> list[threading.Thread]:
    """Threads of engines."""
    return [each for each in threading.enumerate() if each.name == "torch-engine"]


def prompt(text: str = SENTENCE, *, seed: int = 7, max_tokens: int = 100) -> Prompt:
    """A request for the first voice."""
    return Prompt(text=text, voice="tara", seed=seed, max_tokens=max_tokens)


async def groups_of(engine: TorchEngine, request: Prompt) -> list[list[int]]:
    """All groups of one request."""
    async with aclosing(engine.generate(request)) as groups:
        return [list(group) async for group in groups]


# Requests ------------------------------------------------------------------------------------------


async def test_a_group_is_a_frame(opened: Opener) -> None:
    """Ids reach the event loop by the frame; the last group has what is left of `max_tokens`."""
    engine = await opened()
    sizes = [len(group) for group in await groups_of(engine, prompt(max_tokens=24))]
    assert sizes == [7, 7, 7, 3]


async def test_who_has_left_costs_no_steps(opened: Opener) -> None:
    """A request that is left takes no part in further steps, and alone there are none."""
    engine = await opened()
    groups = engine.generate(prompt())
    await anext(groups)
    await groups.aclose()
    before = engine.statistics().steps
    batch = engine._loaded.result().batch
    await turns_until(lambda: not batch.busy)
    # The step under way, and one that began before the thread looked; it had three dozen more to say.
    assert engine.statistics().steps <= before + 2


async def test_running_streams_wait_for_one_prompt_at_most(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When several requests come at once, a step is taken between any two prompts."""
    engine = await opened(4)
    order: list[str] = []
    for name in ("join", "step"):
        original = getattr(Batch, name)

        def noted(*arguments: Any, original: Any = original, name: str = name) -> Any:
            order.append(name)
            return original(*arguments)

        monkeypatch.setattr(Batch, name, noted)
    await asyncio.gather(*(groups_of(engine, prompt(seed=seed)) for seed in range(4)))
    assert "".join(order).count("join") == 4
    assert "joinjoin" not in "".join(order)


async def test_a_slot_that_is_short_ends_the_speech(opened: Opener) -> None:
    """`context` bounds prompt and speech together; a prompt that leaves no room is refused alone."""
    engine = await opened(context=64)
    (group, *others) = await groups_of(engine, prompt("Hi.", max_tokens=2000))
    assert 14 < len(group) + sum(map(len, others)) < 64
    with pytest.raises(EngineFailed, match="too long"):
        await groups_of(engine, prompt(SENTENCE * 3))
    assert await groups_of(engine, prompt("Hi."))
    assert engine.statistics().active == 0


async def test_half_a_surrogate_pair_is_spoken(opened: Opener) -> None:
    """Text that no encoding has, as JSON can hold it, is spoken like a question mark."""
    engine = await opened()
    odd = await groups_of(engine, prompt("\ud83d Hi."))
    assert odd == await groups_of(engine, prompt("? Hi."))


async def test_free_ids(opened: Opener) -> None:
    """With `legal_only` off any id may come, and the engine goes on."""
    engine = await opened(1, legal_only=False)
    ids = [token for group in await groups_of(engine, prompt(max_tokens=14)) for token in group]
    assert len(ids) == 14
    assert any(not tokens.AUDIO_BASE <= token < tokens.AUDIO_END for token in ids)


# Failures ------------------------------------------------------------------------------------------


async def test_a_prompt_that_cannot_be_read_costs_itself(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fails while a prompt is read is `EngineFailed` in our words, for that request."""
    engine = await opened()

    def fail(*_: object) -> None:
        raise RuntimeError("cannot read 'my secret'")

    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG):
        patch.setattr(SlotModel, "prefill", fail)
        with pytest.raises(EngineFailed) as caught:
            await groups_of(engine, prompt("my secret"))
    assert "secret" not in str(caught.value) + caplog.text
    assert engine.alive
    assert await groups_of(engine, prompt())


async def test_output_that_is_no_number_costs_the_request(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that overflows its type fails the request, naming the option, rather than speak."""
    engine = await opened(1)
    with monkeypatch.context() as patch:
        broken = torch.full((1, 28_680), torch.nan)
        patch.setattr(SlotModel, "step", lambda *_: broken)
        with pytest.raises(EngineFailed, match=r"engine\.options\.dtype"):
            await groups_of(engine, prompt())
    assert engine.statistics().active == 0
    assert await groups_of(engine, prompt())


async def test_a_step_that_fails_is_the_end(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A step is everybody's: all requests fail, waiting ones too, the death is told, nothing hangs."""
    engine = await opened()
    speaking = engine.generate(prompt(max_tokens=1000))
    await anext(speaking)

    def fail(*_: object) -> None:
        raise RuntimeError("device lost while saying 'my secret'")

    monkeypatch.setattr(SlotModel, "step", fail)
    others = [asyncio.create_task(groups_of(engine, prompt())) for _ in range(3)]
    with pytest.raises(EngineFailed, match="died"):
        async for _ in speaking:
            pass
    assert all(isinstance(each, EngineFailed) for each in await _outcomes(others))
    await engine.wait_dead()
    assert not engine.alive
    assert engine.statistics()[:2] == (0, 0)
    assert "secret" not in caplog.text
    assert "RuntimeError" in [getattr(record, "error", "") for record in caplog.records]
    with pytest.raises(EngineFailed, match="died"):
        await groups_of(engine, prompt())


async def _outcomes(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


# Opening -------------------------------------------------------------------------------------------


async def test_what_the_manifest_says(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Voices and the room of a slot are the manifest's, if there is one; else Orpheus's and 2560 ids."""
    engine = await open_engine(EngineConfig(capacity=1, options={"model": str(tiny_checkpoint)}))
    assert engine.voices == tokens.VOICES
    await engine.close()
    cut_short(tiny_checkpoint, tmp_path, "manifest.json", None)
    await asyncio.to_thread(write_manifest, tmp_path, max_prompt_tokens=44, max_tokens=20)
    engine = await open_engine(EngineConfig(capacity=1, options={"model": str(tmp_path)}))
    assert engine.voices == ("ava", "ben")
    (group, *others) = await groups_of(engine, prompt("Hi.", max_tokens=2000))
    assert 14 < len(group) + sum(map(len, others)) < 64
    await engine.close()


DAMAGE: dict[str, tuple[str, dict[str, Any], str]] = {
    "another architecture": ("config.json", {"architectures": ["GPT2LMHeadModel"]}, "Llama"),
    "quantised by half": (
        "config.json",
        {"quantization_config": {"quant_algo": "FP8"}},
        "quantise",
    ),
    "more layers than weights": ("config.json", {"num_hidden_layers": 3}, "do not fit"),
    "a short memory": ("config.json", {"max_position_embeddings": 512}, "engine.options.context"),
}


@pytest.mark.parametrize(("name", "changes", "advice"), DAMAGE.values(), ids=DAMAGE)
async def test_a_checkpoint_that_is_none(
    tiny_checkpoint: Path, tmp_path: Path, name: str, changes: dict[str, Any], advice: str
) -> None:
    """A checkpoint that does not fit is refused in one line that says what to do; no thread stays."""
    await _refused(spoilt(tiny_checkpoint, tmp_path, name, **changes), advice)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"model": ""}, "engine.options.model"),
        ({"model": "/nonexistent"}, "/nonexistent"),
        ({"device": "grandmother"}, "engine.options.device"),
        ({"device": "cuda:99"}, "engine.options.device"),
        ({"dtype": "int4"}, "float32"),
        ({"mode": "x"}, "'engine.options.model'"),
    ],
)
async def test_options_that_cannot_be(
    tiny_checkpoint: Path, options: dict[str, Any], advice: str
) -> None:
    """Options that name nothing there is are start-up errors that name the option."""
    await _refused(tiny_checkpoint, advice, **options)


async def test_too_little_memory(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the slots the operator learns what to lower."""

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate more than there is")

    monkeypatch.setattr(SlotModel, "__init__", fail)
    await _refused(tiny_checkpoint, "engine.capacity")


async def _refused(folder: Path, advice: str, **options: Any) -> None:
    with pytest.raises(StartupError) as caught:
        await open_engine(EngineConfig(capacity=1, options={"model": str(folder)} | options))
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)
    for thread in threads():
        await asyncio.to_thread(thread.join, 30)
    assert threads() == []


async def test_cancelling_the_start(tiny_checkpoint: Path) -> None:
    """Whoever gives up while the model loads is let go at once, and the thread ends by itself."""
    task = asyncio.create_task(open_engine(EngineConfig(options={"model": str(tiny_checkpoint)})))
    await turns_until(lambda: threads() != [])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for thread in threads():
        await asyncio.to_thread(thread.join, 30)
    assert threads() == []


async def test_close_while_cancelled(opened: Opener) -> None:
    """`close` may be cancelled and called again."""
    engine = await opened()
    task = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await engine.close()
    assert threads() == []


async def test_a_step_that_does_not_end(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing waits no longer than it says, and whoever listens is told; the thread ends once it can."""
    monkeypatch.setattr("orpheus_ws.engine.torch.CLOSE_SECONDS", 0.01)
    entered, go_on = threading.Event(), threading.Event()

    def hang(_batch: object) -> list[object]:
        entered.set()
        go_on.wait()
        return []

    monkeypatch.setattr(Batch, "step", hang)
    engine = await open_engine(EngineConfig(capacity=1, options={"model": str(tiny_checkpoint)}))
    speaking = asyncio.create_task(groups_of(engine, prompt()))
    await turns_until(entered.is_set)
    await engine.close()
    assert threads() != []
    with pytest.raises(EngineFailed, match="closed"):
        await speaking
    go_on.set()
    for thread in threads():
        await asyncio.to_thread(thread.join, 30)
    assert threads() == []
