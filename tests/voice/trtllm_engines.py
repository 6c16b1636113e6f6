"""What tests of the TensorRT-LLM engine ask it for."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Prompt, trtllm
from orpheus_ws.engine.trtllm import TrtllmEngine
from orpheus_ws.errors import StartupError

LONG_TEXT: Final = (
    "The harbour was quiet that morning, and the gulls had not yet found the boats. " * 2
)
PROOF_REQUESTS: Final = 6
"""Requests of the start-up proof, before any of ours."""
CAPACITY: Final = 3

Open = Callable[..., Awaitable[TrtllmEngine]]


def prompt(text: str = "Hi.", *, seed: int = 7, **sampling: Any) -> Prompt:
    """A prompt of the default voice."""
    return Prompt(text=text, voice="tara", seed=seed, **sampling)


async def groups_of(engine: TrtllmEngine, asked: Prompt) -> list[list[int]]:
    """All groups of one request."""
    async with aclosing(engine.generate(asked)) as groups:
        return [list(group) async for group in groups]


@asynccontextmanager
async def running(
    model: Path | None, capacity: int | None = 3, **options: Any
) -> AsyncIterator[TrtllmEngine]:
    """An engine of this checkpoint."""
    given = {"model": str(model), **options} if model else options
    config = EngineConfig(name="trtllm", capacity=capacity, options=given)
    engine = await trtllm.open_engine(config)
    try:
        yield engine
    finally:
        await engine.close()


async def refusal(model: Path | None, capacity: int | None = 3, **options: Any) -> str:
    """The one line that a start ends with."""
    with pytest.raises(StartupError) as raised:
        async with running(model, capacity, **options):
            pass
    assert "\n" not in str(raised.value)
    return str(raised.value)
