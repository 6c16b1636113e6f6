"""Orpheus on TensorRT-LLM: its `LLM` API with the PyTorch backend, version 1.2 and later.

Rule: ids in, ids out. Every request has one task that reads the engine's answers from the first to the
last, whoever listens: a slot is free when the engine has said that it is done with a request, and not
before. All results are awaited on one event loop, which is what TensorRT-LLM expects. Nothing is
served before the sampler was seen to work and the KV cache to be large enough.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import torch

from orpheus_ws import tokens
from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import EngineStatistics, Prompt
from orpheus_ws.engine.trtllm_process import (
    Loaded,
    abandon,
    close,
    end,
    examine,
    has_lost,
    is_gone,
    load,
    start_thread,
)
from orpheus_ws.engine.trtllm_proof import prove_sampler
from orpheus_ws.engine.trtllm_request import GIVEN_UP, Request
from orpheus_ws.engine.trtllm_setup import Options, check_pool
from orpheus_ws.engine.trtllm_watch import Watched, watch
from orpheus_ws.errors import EngineFailed, StartupError
from orpheus_ws.settings import read_options

__all__ = ["Options", "TrtllmEngine", "examine", "open_engine"]

ABORT_SECONDS: Final = 10.0
"""An engine that does not answer an abort for so long answers nothing any more; it takes a step."""
FOLLOW_SECONDS: Final = 1.0
"""How often statistics are asked for when there have been none."""
STATISTICS_SECONDS: Final = 5.0
"""For the first iteration statistics; TensorRT-LLM collects them every 0.2 s."""
ILLEGAL_BIAS: Final = -10_000.0
"""Logits are of the order of ten. Legal ids get 0: the penalty multiplies logit and bias together."""

_CLOSED: Final = "the engine was closed"
_DEAD: Final = "the engine has died; try again"
_log = logging.getLogger(__name__)


class TrtllmEngine:
    """`Engine` over one `LLM`. A step is one iteration of its in-flight batch."""

    def __init__(self, loaded: Loaded, options: Options, capacity: int) -> None:
        self._loaded = loaded
        self._llm = loaded.llm
        self._options = options
        self._capacity = capacity
        vocabulary = loaded.checkpoint.config.vocab_size
        self._bias = legal_bias(vocabulary) if options.legal_bias else None
        self._stopped: str | None = None
        self._dead = asyncio.Event()
        # Hands slots out in the order in which they were asked for.
        self._slots = asyncio.Semaphore(capacity)
        self._requests: dict[Request, asyncio.Task[None]] = {}
        self._waiting = 0
        self._steps = 0
        self._tokens = 0
        self._iteration: dict[str, Any] = {}
        self._following: asyncio.Task[None] | None = None
        self._closed = threading.Event()
        self._closing: asyncio.Task[None] | None = None

    @property
    def capacity(self) -> int:
        """Slots: the largest batch."""
        return self._capacity

    @property
    def voices(self) -> tuple[str, ...]:
        """Those of the manifest, of the options, or the published checkpoint's."""
        return self._loaded.voices

    @property
    def alive(self) -> bool:
        """False after `close`, and once the worker has died or answers no more."""
        return self._stopped is None

    async def wait_dead(self) -> None:
        """Return once the engine is not alive."""
        await self._dead.wait()

    async def prove(self) -> None:
        """See to it that sampler and KV cache are good enough. Raises `StartupError`.

        From here on the engine's statistics are followed.
        """
        loaded, options = self._loaded, self._options
        setting = "use TensorRT-LLM 1.2.1 or a later version whose sampler passes"
        if loaded.sampler_choice and options.sampler != "TRTLLMSampler":
            setting = "set engine.options.sampler to 'TRTLLMSampler'"
        encode = loaded.checkpoint.encode
        prompt = tokens.prompt_ids(self.voices[0], "Ready.", encode)
        vocabulary = loaded.checkpoint.config.vocab_size
        await prove_sampler(self._llm, loaded.sampling_params, prompt, vocabulary, setting)
        # There are none before the first request.
        async for figures in self._llm.get_stats_async(timeout=STATISTICS_SECONDS):
            self._iteration = figures
            break
        check_pool(loaded.limits, self._capacity, pool_tokens(self._iteration))
        self._following = asyncio.create_task(self._follow(), name="trtllm statistics")

    def start_watching(self) -> None:
        """Notice its death from here on, until `close`."""
        watched = Watched(
            is_dead=lambda: is_gone(self._llm) or has_lost(self._loaded.workers),
            progress=lambda: self._tokens if self._requests else None,
            died=self._die,
            end_workers=lambda: end(self._loaded.workers),
        )
        loop = asyncio.get_running_loop()
        start_thread(lambda: watch(watched, loop, self._closed), "trtllm-watch")

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Sequence[int], None]:
        """Yield 1 id, 6, and then 7 a group, which are whole frames; more if the consumer is slow.

        Closing the generator and being cancelled abort the request and wait until the engine has
        let go of it, about two steps; the slot is free then. Raises `EngineFailed`.
        """
        request = await self._submit(prompt)
        try:
            while group := await request.take():
                yield group
        finally:
            await self._leave(request)

    def statistics(self) -> EngineStatistics:
        """Current figures. `steps` is the least that the ids received took."""
        iteration = self._iteration
        cache, batch = (
            _part(iteration, name) for name in ("kvCacheStats", "inflightBatchingStats")
        )
        milliseconds = iteration.get("iterLatencyMS")
        return EngineStatistics(
            active=len(self._requests),
            waiting=self._waiting,
            steps=self._steps,
            tokens=self._tokens,
            kv_blocks=cache.get("maxNumBlocks"),
            kv_blocks_used=cache.get("usedNumBlocks"),
            scheduled=batch.get("numScheduledRequests"),
            paused=batch.get("numPausedRequests"),
            queued_inside=iteration.get("numQueuedRequests"),
            gpu_bytes=iteration.get("gpuMemUsage"),
            iteration_seconds=None if milliseconds is None else milliseconds / 1000,
        )

    async def close(self) -> None:
        """Stop, in at most about 15 s; kill what does not. Idempotent. Goes on when cancelled."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="trtllm close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._stop(_CLOSED)
        tasks = [*self._requests.values(), *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await close(self._loaded)
        # Not before: shutting down is when it may block the event loop, if ever.
        self._closed.set()

    async def _submit(self, prompt: Prompt) -> Request:
        """Wait for a slot and hand the prompt over. Safe to cancel."""
        self._check_alive()
        limits = self._loaded.limits
        ids = tokens.prompt_ids(prompt.voice, prompt.text, self._loaded.checkpoint.encode)
        if len(ids) > limits.max_prompt_tokens:
            raise EngineFailed("this text is too long for one segment; put full stops into it")
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            self._check_alive()
            max_tokens = min(prompt.max_tokens, limits.max_tokens)
            request = Request(self._start(ids, prompt, max_tokens), max_tokens, self._steps)
        except BaseException:
            self._slots.release()
            raise
        task = asyncio.create_task(self._read(request), name="trtllm request")
        self._requests[request] = task
        # Not in the task itself: one that is cancelled before it begins never runs.
        task.add_done_callback(lambda done: self._release(request, done))
        return request

    def _start(self, ids: list[int], prompt: Prompt, max_tokens: int) -> Any:
        # Without any of these the sampler takes the likeliest id, which is what 0 means.
        chance = prompt.temperature > 0 and prompt.top_p > 0
        try:
            params = self._loaded.sampling_params(
                max_tokens=max_tokens,
                end_id=tokens.END_OF_SPEECH,
                temperature=prompt.temperature if chance else None,
                top_p=prompt.top_p if chance else None,
                repetition_penalty=prompt.repetition_penalty,
                seed=prompt.seed,
                detokenize=False,
                embedding_bias=self._bias,
            )
            return self._llm.generate_async(ids, sampling_params=params, streaming=True)
        except Exception as error:
            # What it finds wrong with a request it says at once, with these.
            raise self._failure(error, ValueError, TypeError) from error

    async def _read(self, request: Request) -> None:
        """Read the answers to the last, or until `_stop` cancels it."""
        try:
            async for _ in request.result:
                if self._stopped is not None:
                    return  # what awaits inside the library may have swallowed the cancellation
                before = len(request.ids)
                self._steps = max(self._steps, request.accept())
                self._tokens += len(request.ids) - before
        except Exception as error:  # noqa: BLE001 - whatever it raises is the engine's
            request.end(str(self._failure(error)))

    def _release(self, request: Request, reading: asyncio.Task[None]) -> None:
        request.end(self._stopped or (GIVEN_UP if reading.cancelled() else None))
        del self._requests[request]
        self._slots.release()

    def _failure(self, error: Exception, *harmless: type[Exception]) -> EngineFailed:
        """Tell an error of one request from the engine's death, which fails all."""
        # Its text may hold what a user wrote.
        _log.error("TensorRT-LLM failed", extra={"error": type(error).__name__})
        known = (*harmless, self._loaded.request_error or RuntimeError)
        if is_gone(self._llm) or not isinstance(error, known):
            self._stop(_DEAD)
            return EngineFailed(_DEAD)
        return EngineFailed("the engine failed on this text; try again")

    async def _leave(self, request: Request) -> None:
        """Wait until the engine has let go of the request; one that never does is dead."""
        request.left = True
        if not request.is_over:
            try:
                request.result.abort()
            except Exception as error:  # noqa: BLE001 - whatever it raises is the engine's
                self._failure(error)
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await request.ended.wait()
        except TimeoutError:
            _log.critical("TensorRT-LLM does not answer")
            self._stop(_DEAD)

    async def _follow(self) -> None:
        """Keep the latest iteration statistics. They are for show: that there are none is no death."""
        while True:
            try:
                # Ends when there have been no new ones for a while.
                async for figures in self._llm.get_stats_async(timeout=FOLLOW_SECONDS):
                    if self._stopped is not None:
                        return  # as in `_read`
                    self._iteration = figures
            except Exception as error:  # noqa: BLE001 - whatever it raises
                _log.error("no statistics", extra={"error": type(error).__name__})
            await asyncio.sleep(FOLLOW_SECONDS)

    def _die(self) -> None:
        if self._stopped is None:
            _log.critical("TensorRT-LLM has died")
        self._stop(_DEAD)

    def _stop(self, reason: str) -> None:
        """Fail everything; the first reason stands."""
        if self._stopped is not None:
            return
        self._stopped = reason
        self._dead.set()
        for request, task in self._requests.items():
            request.end(reason)
            task.cancel()

    def _check_alive(self) -> None:
        if self._stopped is not None:
            raise EngineFailed(self._stopped)


DEFAULT_CAPACITY = None
"""It depends on the GPU, so it has to be measured."""


async def open_engine(config: EngineConfig) -> TrtllmEngine:
    """Load the checkpoint, prove the sampler and check the KV cache, which takes minutes.

    Raises `StartupError` that says what to change, and leaves nothing running then. Cancelling does
    not stop a load; it is shut down as soon as it is done.
    """
    options = read_options(config.options, Options, "engine.options")
    if config.capacity is None:
        raise StartupError(
            "engine.capacity is not set: set it to the number of streams that was measured on this GPU"
        )
    capacity = config.capacity
    loading = start_thread(lambda: load(options, capacity), "trtllm-load")
    try:
        loaded = await asyncio.wrap_future(loading)
    except asyncio.CancelledError:
        abandon(loading)
        raise
    engine = TrtllmEngine(loaded, options, capacity)
    engine.start_watching()
    try:
        await engine.prove()
    except BaseException:
        await engine.close()
        raise
    return engine


def legal_bias(vocabulary: int) -> torch.Tensor:
    """A bias that leaves audio ids and end of speech as they are: one float for each id."""
    bias = torch.full((vocabulary,), ILLEGAL_BIAS, dtype=torch.float32)
    bias[tokens.AUDIO_BASE : tokens.AUDIO_END] = 0.0
    bias[tokens.END_OF_SPEECH] = 0.0
    return bias


def pool_tokens(iteration: dict[str, Any]) -> int | None:
    """Ids that the KV cache holds, if the iteration statistics tell."""
    cache = _part(iteration, "kvCacheStats")
    blocks, size = cache.get("maxNumBlocks"), cache.get("tokensPerBlock")
    return blocks * size if isinstance(blocks, int) and isinstance(size, int) else None


def _part(iteration: dict[str, Any], name: str) -> dict[str, Any]:
    part = iteration.get(name)
    return part if isinstance(part, dict) else {}
