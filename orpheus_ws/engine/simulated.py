"""An engine without a model: plausible ids at a stated cost, and every way an engine can go wrong.

Rule: the event loop is its only clock and nothing here waits for a consumer. What a request will
say is settled when it starts (`simulated_speech`); every `steps_per_frame` *steps* an active request
is one frame (7 ids) further. A step is one iteration of in-flight batching: requests join and leave
between steps, and what a step takes is settled when it begins. Whoever leaves frees the slot in the
same instant, so no slot is ever free while a request waits. Its statistics say that it is simulated.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from orpheus_ws import tokens
from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Engine, EngineStatistics, Prompt
from orpheus_ws.engine.simulated_speech import GOOD_FRAMES, Fault, script, spoken_frames
from orpheus_ws.errors import EngineFailed, StartupError
from orpheus_ws.planning.profiles import GPUS, GpuName
from orpheus_ws.planning.steps import (
    Segment,
    StepTimes,
    Traffic,
    Variant,
    prompt_tokens,
    step_times,
)
from orpheus_ws.settings import read_options

DEFAULT_CAPACITY = 64
CHARS_PER_SECOND = 15.0
_GOOD_IDS = GOOD_FRAMES * tokens.CODES_PER_FRAME
_TIMES = ("step_seconds", "stream_seconds", "kv_token_seconds", "prefill_seconds")


_Seconds = Annotated[float, Meta(ge=0, le=60)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step costs, how long texts are, and what goes wrong.

    A step takes `step_seconds`, `stream_seconds` for each active request, `kv_token_seconds` for each
    id that they hold in the KV cache, and `prefill_seconds` for each request that joins; 0 altogether
    means one turn of the event loop. `gpu` gives these times as `docs/capacity.md` derives them. With
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

    gpu: GpuName | None = None
    """Take the times of a step on this GPU, a token a step. The times below must then be 0."""
    variant: Variant = "tuned"
    """With `gpu`: what the host adds. `floor`: nothing; `tuned`: as after work on the system, 216
    streams on an H100; `stock`: as usual, 24."""
    step_seconds: _Seconds = 0.0
    """What every step takes."""
    stream_seconds: _Seconds = 0.0
    """What every active request adds to a step."""
    kv_token_seconds: _Seconds = 0.0
    """What every id in the KV cache adds to a step: those of the prompt, and one for each step since."""
    prefill_seconds: _Seconds = 0.0
    """What every request that joins adds to its first step."""
    steps_per_frame: Annotated[int, Meta(ge=1)] = 1
    """How many steps a frame takes."""
    silent_frames: Annotated[int, Meta(ge=0, le=12)] = 0
    """Frames of silence before the speech of every request. Only the simulated codec makes silence of
    them."""
    first_frames: Annotated[int, Meta(ge=1, le=12)] = 1
    """Frames of speech that come together first, as if a codec had to wait for them."""
    frames_per_char: Annotated[float, Meta(gt=0)] = (
        tokens.SAMPLE_RATE / tokens.SAMPLES_PER_FRAME / CHARS_PER_SECOND
    )
    """Frames for each character of text. The default is speech at 15 characters a second."""
    fault: Fault = "none"
    """What befalls requests."""
    fault_requests: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    """Which requests, counted from 0 in the order in which they were started. Empty: all. Request 0
    is the server's own test word, so the first utterance of a client is request 1."""

    @property
    def times(self) -> StepTimes:
        """What a step takes."""
        if self.gpu is not None:
            return step_times(GPUS[self.gpu], variant=self.variant)
        return StepTimes(
            fixed=self.step_seconds,
            stream=self.stream_seconds,
            kv_token=self.kv_token_seconds,
            prefill=self.prefill_seconds,
        )

    @property
    def steps_of_a_frame(self) -> int:
        """How many steps a frame takes; on a GPU each makes one id."""
        return self.steps_per_frame if self.gpu is None else tokens.CODES_PER_FRAME

    def traffic(self, texts: Sequence[str]) -> Traffic:
        """What turns of these segments, each shorter than `max_tokens`, ask of this engine.

        With `planning.steps.largest_real_time_batch` it gives the capacity that this engine has with
        the simulated codec, which looks nowhere ahead.
        """
        segments = tuple(
            Segment(
                prompt_tokens=prompt_tokens(text),
                frames=self.silent_frames + spoken_frames(text, self.frames_per_char),
                silent_seconds=self.silent_frames * tokens.FRAME_SECONDS,
            )
            for text in texts
        )
        return Traffic(segments=segments, first_frames=self.first_frames, pace=1.0)


@dataclass(eq=False, slots=True)
class _Request:
    """One call of `generate`: `ids` is all it would say, of which `produced` exist by now."""

    ids: list[int]
    fault: Fault
    prompt_tokens: int
    last_step: int
    """The step with which all ids exist."""
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
            simulated=1,
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
        fault = self._fault(prompt)
        self._started += 1
        ids = script(prompt, fault, options.frames_per_char, options.silent_frames)
        frames, rest = divmod(len(ids), tokens.CODES_PER_FRAME)
        steps = options.steps_of_a_frame
        # What is less than a frame, such as end of speech, takes no longer than its ids do.
        last_step = steps * frames + math.ceil(rest * steps / tokens.CODES_PER_FRAME)
        request = _Request(ids, fault, prompt_tokens(prompt.text), last_step)
        self._waiting[request] = None
        self._admit()
        return request

    def _fault(self, _prompt: Prompt) -> Fault:
        """What befalls the request that is about to start."""
        options = self._options
        chosen = not options.fault_requests or self._started in options.fault_requests
        return options.fault if chosen else "none"

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
        now, times = asyncio.get_running_loop().time, self._options.times
        due = now()
        while self._running:
            # Whoever joins while this step runs takes part in the next.
            batch = tuple(self._running)
            due += self._step_seconds(batch, times)
            await asyncio.sleep(max(0.0, due - now()))
            self._step(batch)
        # Not in a `finally`: a task cancelled from outside must not be started anew by `_leave`.
        self._stepping = None

    def _step_seconds(self, batch: tuple[_Request, ...], times: StepTimes) -> float:
        """What the step takes that begins now; stalled requests hold their place in it."""
        held = joining = 0
        # What costs nothing need not be counted; there may be hundreds of requests.
        if times.kv_token:
            held = sum(each.prompt_tokens + each.steps for each in (*batch, *self._stalled))
        if times.prefill:
            joining = sum(not each.steps for each in batch)
        return times.step(self._active(), held, joining)

    def _step(self, batch: tuple[_Request, ...]) -> None:
        self._steps += 1
        self.stepped_at = asyncio.get_running_loop().time()
        running, steps_per_frame = self._running, self._options.steps_of_a_frame
        first_frames = self._options.silent_frames + self._options.first_frames
        first_ids = first_frames * tokens.CODES_PER_FRAME
        for request in batch:
            request.steps += 1
            if request.steps % steps_per_frame and request.steps != request.last_step:
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
            elif after < first_ids:
                continue
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


def examine(options: Options, _capacity: int | None) -> None:
    """Raise `StartupError` for times that come from two places."""
    given = [name for name in _TIMES if getattr(options, name)]
    if options.gpu is not None and given:
        raise StartupError(
            f"engine.options.gpu gives the times of a step already: leave out it or {given[0]}"
        )


async def open_engine(config: EngineConfig) -> Engine:
    """Open it with `config.capacity` slots, or 64. Raises `StartupError` for a wrong option."""
    options = read_options(config.options, Options, "engine.options")
    examine(options, config.capacity)
    return SimulatedEngine(config.capacity or DEFAULT_CAPACITY, options)
