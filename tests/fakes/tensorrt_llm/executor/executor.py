"""The worker: an iteration is one id for every request that runs.

It is a task on the event loop rather than another process, so that tests take no time. A real process
stands beside it, for those that ask whether one is left behind.
"""

import asyncio
import atexit
import itertools
import json
import subprocess
import threading
import weakref
from collections import deque
from typing import Any

from tensorrt_llm.behaviour import behaviour
from tensorrt_llm.executor.result import RequestOutput, Response
from tensorrt_llm.executor.utils import RequestError
from tensorrt_llm.model import Speaker
from tensorrt_llm.sampling_params import SamplingParams

FRAME = 7


class Running:
    """A request inside. Without `streaming` there is one response, the last."""

    def __init__(
        self, result: RequestOutput, params: SamplingParams, speaker: Speaker, *, streaming: bool
    ) -> None:
        self.streaming = streaming
        self.result = result
        self.params = params
        self.speaker = speaker
        self.produced = 0
        self.unsent: list[int] = []
        self.finish_reason: str | None = None
        self.kv_tokens = len(result.prompt_token_ids) + params.max_tokens

    def send(self, finish_reason: str | None = None, error: BaseException | None = None) -> None:
        if not (self.streaming or finish_reason or error):
            return
        self.result.responses.put_nowait(Response(self.unsent, finish_reason, error))
        self.unsent = []


class Executor:
    def __init__(self, args: Any) -> None:
        self.args = args
        self.worker = subprocess.Popen(["sleep", "600"])
        self.helper = subprocess.Popen(["sleep", "601"]) if behaviour.helper else None
        # Somebody else may have killed it by then, which `Popen` does not know and would complain of.
        weakref.finalize(self, self.worker.poll)
        if behaviour.waits_at_exit:
            atexit.register(self._wait_for_worker)
        self.pool = min(args.kv_cache_config.max_tokens, behaviour.kv_tokens)
        self._interval = getattr(args, "stream_interval", None) or 1
        self.lines: deque[str] = deque(maxlen=1000)
        self.arrived = asyncio.Event()
        self._running: dict[int, Running] = {}
        self._queued: deque[Running] = deque()
        self._aborts: set[int] = set()
        self._ids = itertools.count()
        self._iterations = 0
        self._stepping: asyncio.Task[None] | None = None
        self._shut_down = False

    def is_shutdown(self) -> bool:
        return self._shut_down

    def submit(
        self, prompt: list[int], params: SamplingParams, speaker: Speaker, streaming: bool
    ) -> RequestOutput:
        if self._shut_down:
            raise RuntimeError("LLM is shutting down")
        self._send_to_worker()
        result = RequestOutput(next(self._ids), prompt, self._abort)
        self._queued.append(Running(result, params, speaker, streaming=streaming))
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.get_running_loop().create_task(self._step_on())
        return result

    def shutdown(self) -> None:
        self._shut_down = True
        if behaviour.stuck is not None:
            behaviour.stuck.wait()
        self._wait_for_worker()
        for process in (self.worker, self.helper):
            if process is not None:
                process.kill()
                process.wait()
        atexit.unregister(self._wait_for_worker)

    @property
    def _worker_is_gone(self) -> bool:
        return self.worker.poll() is not None

    def _wait_for_worker(self) -> None:
        """What waits for an answer of a process that is gone waits for ever."""
        if self._worker_is_gone:
            threading.Event().wait()

    def _send_to_worker(self) -> None:
        """Sending waits until somebody takes what is sent."""
        self._wait_for_worker()

    def _abort(self, request_id: int) -> None:
        self._send_to_worker()
        self._aborts.add(request_id)

    async def _step_on(self) -> None:
        while (self._running or self._queued) and not self._shut_down:
            await asyncio.sleep(behaviour.step_seconds)
            if self._worker_is_gone:
                return  # nobody is told
            self._iterations += 1
            if self._iterations == behaviour.dies_after_steps:
                self._die()
                return
            self._admit()
            if behaviour.mixes_up:
                first = next(iter(self._running.values()))
                for running in self._running.values():
                    running.speaker.take_from(first.speaker, behaviour.mixes_up)
            for request_id, running in list(self._running.items()):
                self._advance(running)
                if running.result.request_id not in self._running:
                    continue
                if request_id in self._aborts and not behaviour.ignores_aborts:
                    running.send("cancelled")
                    del self._running[request_id]
            if self.args.enable_iter_perf_stats:
                self.lines.append(self._statistics())
                self.arrived.set()

    def _admit(self) -> None:
        """None starts that might not find room to its end."""
        while self._queued and len(self._running) < self.args.max_batch_size:
            taken = sum(running.kv_tokens for running in self._running.values())
            if taken + self._queued[0].kv_tokens > self.pool:
                return
            running = self._queued.popleft()
            self._running[running.result.request_id] = running

    def _advance(self, running: Running) -> None:
        params, request_id = running.params, running.result.request_id
        if running.finish_reason is None:
            token = running.speaker.next_id()
            running.produced += 1
            ended = token == params.end_id and not params.ignore_eos
            if not ended or behaviour.end_id_in_ids:
                running.unsent.append(token)
            if ended:
                running.finish_reason = "stop"
            elif running.produced == params.max_tokens:
                running.finish_reason = "length"
            elif running.produced > FRAME and (error := self._error(request_id)):
                running.send(error=error)
                del self._running[request_id]
                return
            elif running.produced > FRAME and request_id in behaviour.gives_up:
                running.finish_reason = "timeout"
            if running.finish_reason and behaviour.empty_last_response:
                running.send()
                return
        if running.finish_reason is not None:
            running.send(running.finish_reason)
            del self._running[request_id]
        elif running.produced == 1 or running.produced % self._interval == 0:
            running.send()

    def _error(self, request_id: int) -> BaseException | None:
        if request_id in behaviour.failing_requests:
            return RequestError("a request failed")
        return behaviour.strange_requests.get(request_id)

    def _die(self) -> None:
        self._shut_down = True
        if not behaviour.silent:
            for running in [*self._running.values(), *self._queued]:
                running.send(error=RuntimeError("Executor worker returned error"))

    def _statistics(self) -> str:
        used = sum(running.kv_tokens for running in self._running.values()) // 32
        cache = {"maxNumBlocks": self.pool // 32, "usedNumBlocks": used, "tokensPerBlock": 32}
        return json.dumps(
            {
                "iter": self._iterations,
                "iterLatencyMS": 5.0,
                "numQueuedRequests": len(self._queued),
                "gpuMemUsage": 2**30,
                "inflightBatchingStats": {
                    "numScheduledRequests": len(self._running),
                    "numPausedRequests": 0,
                },
            }
            | ({"kvCacheStats": cache} if behaviour.kv_statistics else {})
        )
