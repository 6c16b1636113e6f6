"""The simulated engine as its tests ask it, and an event loop whose clock never waits."""

import asyncio
import inspect
import selectors
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Concatenate, ParamSpec, cast

import pytest

from orpheus_ws.engine import Engine, Prompt
from orpheus_ws.engine.simulated import Options, SimulatedEngine
from orpheus_ws.errors import EngineFailed
from orpheus_ws.tokens import Frame, FrameAssembler

P = ParamSpec("P")

TEXT = "Forty characters of text, no more, fine."
FRAMES = 32  # of TEXT: ceil(40 characters * 24 000 / 2048 / 15)


def prompt(text: str = TEXT, *, seed: int = 7, max_tokens: int = 2048) -> Prompt:
    """What an engine is asked for."""
    return Prompt(text=text, voice="tara", seed=seed, max_tokens=max_tokens)


def engine_of(capacity: int = 3, **options: Any) -> SimulatedEngine:
    """An engine that is not closed: it holds nothing that must be."""
    return SimulatedEngine(capacity, Options(**options))


async def ids_of(engine: Engine, prompt: Prompt) -> list[int]:
    """All ids of one request."""
    async with aclosing(engine.generate(prompt)) as groups:
        return [token async for group in groups for token in group]


async def frames_of(engine: Engine, prompt: Prompt) -> list[Frame]:
    """All frames of one request."""
    return FrameAssembler().push(await ids_of(engine, prompt))


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop that moves its clock forward instead of sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits for something that never comes"
        self._loop.now += timeout
        return super().select(0)


def on_a_virtual_clock(
    test: Callable[Concatenate[VirtualClockLoop, P], Coroutine[Any, Any, None]],
) -> Callable[P, None]:
    """Run an asynchronous test, which gets the loop first, on such a loop."""

    def run(*args: P.args, **parameters: P.kwargs) -> None:
        loop = VirtualClockLoop()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(test(loop, *args, **parameters))

    run.__doc__ = test.__doc__
    # pytest asks for the parameters by name; the loop comes from here.
    signature = inspect.signature(test)
    parameters = list(signature.parameters.values())[1:]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


async def until_failure(groups: AsyncGenerator[Sequence[int], None]) -> tuple[list[int], str]:
    """The ids that came before `EngineFailed`, and its text."""
    ids: list[int] = []
    try:
        async for group in groups:
            ids += group
    except EngineFailed as failure:
        return ids, str(failure)
    pytest.fail("the request ended without an error")


async def turns(count: int) -> None:
    """Let the event loop go round so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


def other_tasks() -> set[asyncio.Task[Any]]:
    """Every task but this one."""
    return asyncio.all_tasks() - {cast(asyncio.Task[Any], asyncio.current_task())}
