"""The engine contract: one segment's prompt in, groups of Orpheus token ids out.

Rule: an engine knows text, ids and slots; it knows no frames, no audio and no sockets. It is opened
by name: `engine.name = "pocket"` imports `orpheus_ws.engine.pocket` and awaits its `open_engine(config)`;
a name with a dot is a module of somebody else's. A module whose `Options` can be wrong in ways that
show before anything is opened may have `examine(options, capacity)`, which raises `StartupError` and
may return advice; `orpheus-ws doctor` calls it. `DEFAULT_CAPACITY` is how many slots it has unless told
otherwise; None: that must be told (see `capacity`). Every engine passes `tests/conformance`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from orpheus_ws import tokens
from orpheus_ws.config import EngineConfig
from orpheus_ws.named_parts import load_part


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One segment to speak and how to sample it. `seed` is always set."""

    text: str
    voice: str
    seed: int
    temperature: float = tokens.TEMPERATURE
    top_p: float = tokens.TOP_P
    repetition_penalty: float = tokens.REPETITION_PENALTY
    max_tokens: int = tokens.MAX_TOKENS


class EngineStatistics(NamedTuple):
    """Where an engine stands. Counters only grow. What an engine does not know of itself is None."""

    active: int
    """Requests that hold a slot."""
    waiting: int
    """Requests that wait for one."""
    steps: int
    """Steps of the whole batch since start."""
    tokens: int
    """Ids generated since start."""
    kv_blocks: int | None = None
    """Blocks that the KV cache has."""
    kv_blocks_used: int | None = None
    """Blocks of the KV cache that hold something."""
    scheduled: int | None = None
    """Requests in the latest step, by the engine's own account."""
    paused: int | None = None
    """Requests that had to give up their place in the KV cache; should be 0."""
    queued_inside: int | None = None
    """Requests that have a slot here and still wait inside the engine; should be 0."""
    gpu_bytes: int | None = None
    """Memory of the GPU that the engine has taken."""
    iteration_seconds: float | None = None
    """What the latest step took."""
    simulated: int | None = None
    """1: there is no model, and what a step takes is an option."""


class Engine(Protocol):
    """What the rest of the program asks of an engine. All calls are made on the event loop."""

    @property
    def capacity(self) -> int:
        """Slots: how many requests run at once. Further ones wait inside `generate`."""
        ...

    @property
    def voices(self) -> tuple[str, ...]:
        """Names a prompt may carry; the first is the default. Never empty."""
        ...

    @property
    def alive(self) -> bool:
        """False once the engine can never answer again."""
        ...

    async def wait_dead(self) -> None:
        """Return once `alive` is false, at once if it is already; any number may wait.

        Whoever serves the engine is told by this and need not ask. Requests still running raise
        `EngineFailed` all the same, before or after. Safe to cancel.
        """
        ...

    def generate(self, prompt: Prompt) -> AsyncGenerator[Sequence[int], None]:
        """Yield the ids of one segment in groups, ending with end of speech or at `max_tokens`.

        The consumer may stop at any time with `aclose()` or by being cancelled: the slot is free
        within two engine steps, and nothing more is generated. Raises `EngineFailed`.
        """
        ...

    def statistics(self) -> EngineStatistics:
        """Current figures; cheap enough for every scrape."""
        ...

    async def close(self) -> None:
        """Stop. Requests still running raise `EngineFailed`. Idempotent."""
        ...


Opener = Callable[[EngineConfig], Awaitable[Engine]]


def find_engine(config: EngineConfig) -> Opener:
    """Import the engine that `config.name` names, and return what opens it.

    Raises `StartupError` with what to do, before anything slow has begun, and so does what it returns.
    """
    opener: Opener = load_part("orpheus_ws.engine", config.name, "open_engine", extra=config.name)
    return opener
