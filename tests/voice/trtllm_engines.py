"""What tests of the TensorRT-LLM engine ask it for."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from orpheus_ws.engine import Prompt
from orpheus_ws.engine.trtllm import TrtllmEngine

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
