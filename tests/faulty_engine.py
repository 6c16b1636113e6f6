"""The simulated engine, which is told by a text's first word what is to go wrong with it.

It is opened by name, as anybody's engine is: `engine.name=tests.faulty_engine`. What it says depends on
the text alone, so that any client's audio can be compared with what it should be. With `leak` it is a part
that loses something with every request, for tests of what must notice.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Engine, Prompt, simulated
from orpheus_ws.engine.simulated_speech import Fault
from orpheus_ws.settings import read_options

Leak = Literal["none", "memory", "task", "descriptor", "slot"]
LEAKS: Final[tuple[Leak, ...]] = get_args(Leak)[1:]
LEAKED_BYTES: Final = 262_144

FAULTS: Final[dict[str, Fault]] = {
    "Babble": "bad_ids",
    "Die": "dies",
    "Hush": "empty",
    "Mumble": "loop",
    "Raise": "raises",
    "Ramble": "never_stops",
    "Stall": "stalls",
}
JUNK: Final = "Junk"
"""First word of a text for which the engine gives what are no ids at all."""


def faulty(word: str) -> str:
    """A text that this befalls."""
    return f"{word} and never mind what the rest of this says."


class Options(simulated.Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of the simulated engine, and what is lost with every request."""

    leak: Leak = "none"


class FaultyEngine(simulated.SimulatedEngine):
    """See above."""

    def __init__(self, capacity: int, options: Options) -> None:
        super().__init__(capacity, options)
        self._leak = options.leak
        self._lost: list[Any] = []

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Sequence[int], None]:
        """See `Engine`."""
        if prompt.text.startswith(JUNK):
            junk: Any = ["no id", None, -1.5]
            yield junk
        spoken = super().generate(msgspec.structs.replace(prompt, seed=0))
        async with contextlib.aclosing(spoken) as groups:
            async for group in groups:
                yield group

    def _join(self, prompt: Prompt) -> simulated._Request:
        self._lose()
        return super()._join(prompt)

    def _fault(self, prompt: Prompt) -> Fault:
        return FAULTS.get(prompt.text.partition(" ")[0]) or super()._fault(prompt)

    def _leave(self, request: simulated._Request) -> None:
        super()._leave(request)
        if self._leak == "slot":
            self._stalled[request] = None

    def _lose(self) -> None:
        match self._leak:
            case "memory":
                self._lost.append(b"x" * LEAKED_BYTES)
            case "task":
                self._lost.append(asyncio.create_task(asyncio.Event().wait()))
            case "descriptor":
                self._lost.append(os.dup(0))
            case "none" | "slot":
                pass


async def open_engine(config: EngineConfig) -> Engine:
    """See `orpheus_ws.engine`."""
    options = read_options(config.options, Options, "engine.options")
    return FaultyEngine(config.capacity or 8, options)
