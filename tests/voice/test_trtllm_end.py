"""How the TensorRT-LLM engine ends: in bounded time, and with everything that it started."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orpheus_ws.engine import trtllm_process
from orpheus_ws.engine.checkpoint import open_checkpoint
from orpheus_ws.manifest import Limits
from tests.harness import turns_until
from tests.voice.trtllm_engines import refusal, running

pytestmark = pytest.mark.usefixtures("nothing_is_left")

LIMITS = Limits(max_batch_size=1, max_num_tokens=1, max_prompt_tokens=1, max_tokens=1)


async def test_a_shutdown_that_hangs(
    behaviour: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing takes bounded time, and a worker that did not end by itself is killed."""
    monkeypatch.setattr(trtllm_process.close, "__defaults__", (0.01,))
    behaviour.stuck = threading.Event()
    async with running(model):
        (llm,) = behaviour.opened
    assert llm.worker.poll() is not None
    behaviour.stuck.set()


async def test_a_shutdown_that_fails(
    behaviour: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it raises is not passed on, and its worker is killed."""

    def fail() -> None:
        raise RuntimeError("no")

    async with running(model):
        (llm,) = behaviour.opened
        monkeypatch.setattr(llm, "shutdown", fail)
    assert llm.worker.poll() is not None


async def test_what_a_worker_started_ends_with_it(model: Path) -> None:
    """Processes below a worker are ended too, though nobody's child any more once it has gone."""
    worker = await asyncio.create_subprocess_exec("sh", "-c", "sleep 600 & wait")
    process = psutil.Process(worker.pid)
    await turns_until(lambda: len(process.children()) == 1)
    (below,) = process.children()
    loaded = trtllm_process.Loaded(
        llm=SimpleNamespace(shutdown=worker.kill),
        sampling_params=None,
        request_error=None,
        sampler_choice=False,
        workers=frozenset({process}),
        checkpoint=await asyncio.to_thread(open_checkpoint, str(model), "trtllm"),
        limits=LIMITS,
        voices=("tara",),
    )
    await trtllm_process.close(loaded)
    await worker.wait()
    assert not below.is_running() or below.status() == psutil.STATUS_ZOMBIE


async def test_who_does_not_wait_for_the_load(behaviour: Any, model: Path) -> None:
    """A load that is cancelled goes on to its end, and then leaves nothing behind."""
    behaviour.loading = threading.Event()
    start = asyncio.create_task(refusal(model))
    await turns_until(lambda: len(behaviour.opened) == 1)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    behaviour.loading.set()
    (llm,) = behaviour.opened
    await turns_until(lambda: llm.worker.poll() is not None)
