"""An engine without a model: plausible ids at a stated cost, and every way an engine can go wrong.

Rule: the event loop is its only clock and nothing here waits for a consumer. What a request will
say is settled when it starts; every `steps_per_frame` *steps* an active request is one frame (7 ids)
further. A step is one iteration of in-flight batching: requests join and leave between steps. Whoever leaves frees
the slot in the same instant, so no slot is ever free while a request waits.
"""

import asyncio
import hashlib
import math
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from orpheus_ws import tokens
from orpheus_ws.config import EngineConfig, read_options
from orpheus_ws.engine import Engine, EngineStatistics, Prompt
from orpheus_ws.errors import EngineFailed

DEFAULT_CAPACITY = 64
MINIMUM_FRAMES = 4
"""Frames that any text gets, however short."""
CHARS_PER_SECOND = 15.0
BAD_ID_PERIOD = 4
"""With `bad_ids`, one wrong id comes with the last of every so many frames."""
GOOD_FRAMES = 2
"""Frames before `loop`, `raises`, `stalls` and `dies` show."""
LOOP_FRAMES = 3

Fault = Literal["none", "never_stops", "loop", "bad_ids", "empty", "raises", "stalls", "dies"]

_GOOD_IDS = GOOD_FRAMES * tokens.CODES_PER_FRAME
_SILENT_FRAME_IDS = np.array(tokens.frame_ids([0] * tokens.CODES_PER_FRAME))


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step costs, how long texts are, and what goes wrong.

    A step takes `step_seconds + stream_seconds * active`; 0 means one turn of the event loop. With
    `steps_per_frame = 7` a step is one token, as in a real engine that reports once a frame:
    requests that joined at different steps report at different steps. The faults:

    - `never_stops`: frames until `max_tokens`, no end of speech;
    - `loop`: 2 good frames, then the same 3 over and over until `max_tokens`;
    - `bad_ids`: every fourth frame has a text id, an audio id out of turn or an id beyond the
      audio range put somewhere before one of its seven ids;
    - `empty`: end of speech at once;
    - `raises`: `EngineFailed` for that request after 2 frames;
    - `stalls`: nothing more after 2 frames; the slot is held until the consumer leaves;
    - `dies`: at its third frame the engine fails every request and is never alive again.

    The last three pass by a request whose `max_tokens` allow it only those 2 frames.
    """

    step_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """What every step takes."""
    stream_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """What every active request adds to a step."""
    steps_per_frame: Annotated[int, Meta(ge=1)] = 1
    """How many steps a frame takes."""
    frames_per_char: Annotated[float, Meta(gt=0)] = (
        tokens.SAMPLE_RATE / tokens.SAMPLES_PER_FRAME / CHARS_PER_SECOND
    )
    """Frames for each character of text. The default is speech at 15 characters a second."""
    fault: Fault = "none"
    """What befalls requests."""
    fault_requests: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    """Which requests, counted from 0 in the order in which they were started. Empty: all. Request 0
    is the server's own test word, so the first utterance of a client is request 1."""


@dataclass(eq=False, slots=True)
class _Request:
    """One call of `generate`: `ids` is all it would say, of which `produced` exist by now."""

    ids: list[int]
    fault: Fault
    steps: int = 0
    produced: int = 0
    taken: int = 0
    failure: str | None = None
    waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        waiter = self.waiter
        # It is done if the consumer was cancelled in this very turn and has not left yet.
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail(self, reason: str) -> None:
        self.failure = reason
        self.wake()


class SimulatedEngine:
    """`Engine` on the event loop. `statistics().tokens` counts ids as they come to exist."""

    def __init__(self, capacity: int, options: Options) -> None:
        self.stepped_at = 0.0
        """When the latest step was taken, by the event loop's clock."""
        self._capacity = capacity
        self._options = options
        self._stopped: str | None = None
        self._dead = asyncio.Event()
        # Dictionaries serve as ordered sets: first in, first out, and leaving costs no search.
        self._running: dict[_Request, None] = {}
        self._stalled: dict[_Request, None] = {}
        self._waiting: dict[_Request, None] = {}
        self._started = 0
        self._steps = 0
        self._tokens = 0
        self._stepping: asyncio.Task[None] | None = None

    @property
    def capacity(self) -> int:
        """Slots."""
        return self._capacity

    @property
    def voices(self) -> tuple[str, ...]:
        """Orpheus's own; they all sound the same here."""
        return tokens.VOICES

    @property
    def alive(self) -> bool:
        """False after `close` and after the fault `dies`."""
        return self._stopped is None

    async def wait_dead(self) -> None:
        """Return after `close` or the fault `dies`."""
        await self._dead.wait()

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Sequence[int], None]:
        """Yield one frame's 7 ids a group, or all there are if the consumer fell behind.

        End of speech is a step of its own. The slot is free as soon as the last id exists, and at
        once when the consumer closes the generator or is cancelled, waiting or not. Raises
        `EngineFailed`, after the ids that were produced before the failure.
        """
        request = self._join(prompt)
        ids = request.ids
        loop = asyncio.get_running_loop()
        try:
            while True:
                if request.taken < request.produced:
                    group = ids[request.taken : request.produced]
                    request.taken = request.produced
                    yield group
                elif request.failure is not None:
                    raise EngineFailed(request.failure)
                elif request.taken == len(ids):
                    return
                else:
                    request.waiter = loop.create_future()
                    await request.waiter
        finally:
            self._leave(request)

    def statistics(self) -> EngineStatistics:
        """Current figures."""
        return EngineStatistics(
            active=self._active(),
            waiting=len(self._waiting),
            steps=self._steps,
            tokens=self._tokens,
        )

    async def close(self) -> None:
        """Stop; active and waiting requests raise `EngineFailed`. Idempotent, safe to cancel."""
        self._stop("the engine was closed")
        if self._stepping is not None:
            self._stepping.cancel()
            await asyncio.wait([self._stepping])

    def _active(self) -> int:
        return len(self._running) + len(self._stalled)

    def _join(self, prompt: Prompt) -> _Request:
        if self._stopped is not None:
            raise EngineFailed(self._stopped)
        options = self._options
        chosen = not options.fault_requests or self._started in options.fault_requests
        fault: Fault = options.fault if chosen else "none"
        self._started += 1
        request = _Request(_script(prompt, fault, options.frames_per_char), fault)
        self._waiting[request] = None
        self._admit()
        return request

    def _leave(self, request: _Request) -> None:
        for place in (self._running, self._stalled, self._waiting):
            place.pop(request, None)
        self._admit()

    def _admit(self) -> None:
        """Give free slots to those who have waited longest, and see to it that steps are taken."""
        while self._waiting and self._active() < self._capacity:
            request = next(iter(self._waiting))
            del self._waiting[request]
            self._running[request] = None
        if self._running and self._stepping is None:
            self._stepping = asyncio.create_task(self._run(), name="simulated engine steps")

    async def _run(self) -> None:
        """Take steps while a request can advance; stalled ones alone are no reason to spin.

        The schedule is absolute. A step that the event loop delivers late does not delay the next:
        a real engine computes in another process and does not notice how busy this one is.
        """
        options = self._options
        now = asyncio.get_running_loop().time
        due = now()
        while self._running:
            # Whoever joins while this step runs takes part in the next.
            batch = tuple(self._running)
            due += options.step_seconds + options.stream_seconds * self._active()
            await asyncio.sleep(max(0.0, due - now()))
            self._step(batch)
        # Not in a `finally`: a task cancelled from outside must not be started anew by `_leave`.
        self._stepping = None

    def _step(self, batch: tuple[_Request, ...]) -> None:
        self._steps += 1
        self.stepped_at = asyncio.get_running_loop().time()
        running, steps_per_frame = self._running, self._options.steps_per_frame
        for request in batch:
            request.steps += 1
            if request.steps % steps_per_frame:
                continue
            if request not in running:
                continue  # it left, or the engine died, while this step ran
            before = request.produced
            if before == _GOOD_IDS and request.fault != "none":
                self._strike(request)
                if request not in running:
                    continue
            after = min(before + tokens.CODES_PER_FRAME, len(request.ids))
            request.produced = after
            self._tokens += after - before
            if after == len(request.ids):
                del running[request]
            request.wake()
        self._admit()

    def _strike(self, request: _Request) -> None:
        """Let the request's fault happen, if it is one that happens at the third frame."""
        if request.fault == "raises":
            del self._running[request]
            request.fail("the engine failed on this request, as its options ask")
        elif request.fault == "stalls":
            del self._running[request]
            self._stalled[request] = None
        elif request.fault == "dies":
            self._stop("the engine died, as its options ask")

    def _stop(self, reason: str) -> None:
        self._stopped = reason
        self._dead.set()
        for place in (self._running, self._stalled, self._waiting):
            for request in place:
                request.fail(reason)
            place.clear()


async def open_engine(config: EngineConfig) -> Engine:
    """Open it with `config.capacity` slots, or 64. Raises `StartupError` for a wrong option."""
    options = read_options(config.options, Options, "engine.options")
    return SimulatedEngine(config.capacity or DEFAULT_CAPACITY, options)


@lru_cache(maxsize=256)
def _script(prompt: Prompt, fault: Fault, frames_per_char: float) -> list[int]:
    """All that a request will say if nobody stops it: at most `max_tokens` ids. Not to be changed.

    It is kept, so that who measures with the same prompts does not measure the making of ids.
    """
    if fault == "empty":
        return [tokens.END_OF_SPEECH][: prompt.max_tokens]
    endless = fault in ("never_stops", "loop")
    frames = math.ceil(prompt.max_tokens / tokens.CODES_PER_FRAME)
    if not endless:
        frames = min(frames, max(MINIMUM_FRAMES, math.ceil(len(prompt.text) * frames_per_char)))
    entropy = _entropy(prompt)
    ids = _frames(entropy, frames, loops=fault == "loop")
    if fault == "bad_ids":
        _insert_bad_ids(ids, random.Random(entropy))
    if not endless:
        ids.append(tokens.END_OF_SPEECH)
    return ids[: prompt.max_tokens]


def _entropy(prompt: Prompt) -> int:
    """Seed and text as one number. Text from JSON may hold half a surrogate pair."""
    key = f"{prompt.seed} {prompt.text}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "big")


def _frames(entropy: int, frames: int, *, loops: bool) -> list[int]:
    """Flat ids of `frames` frames; the first ones do not depend on how many there are."""
    # An all-zero frame would be silence to the simulated codec; it is one in 2**84.
    size = (frames, tokens.CODES_PER_FRAME)
    codes = np.random.default_rng(entropy).integers(tokens.CODEBOOK_SIZE, size=size)
    if loops:
        order = np.arange(frames)
        order[GOOD_FRAMES:] = GOOD_FRAMES + (order[GOOD_FRAMES:] - GOOD_FRAMES) % LOOP_FRAMES
        codes = codes[order]
    ids: list[int] = (codes + _SILENT_FRAME_IDS).ravel().tolist()
    return ids


def _insert_bad_ids(ids: list[int], chance: random.Random) -> None:
    size = tokens.CODES_PER_FRAME
    for nth in range(len(ids) // size // BAD_ID_PERIOD):
        frame = (nth + 1) * BAD_ID_PERIOD - 1
        slot = chance.randrange(size)
        # `nth` bad ids have gone in before this one.
        ids.insert(frame * size + slot + nth, _bad_id(chance, slot))


def _bad_id(chance: random.Random, slot: int) -> int:
    """An id that may not come where `slot` is due. Never slot 0, which would start a frame."""
    code = chance.randrange(tokens.CODEBOOK_SIZE)
    return chance.choice(
        (
            chance.randrange(tokens.FIRST_SPECIAL_ID),
            tokens.audio_id(1 + slot % (tokens.CODES_PER_FRAME - 1), code),
            tokens.AUDIO_END + code,
        )
    )
