"""What a request gives: one object that grows while it is iterated.

The ids of a response are added when it is awaited, by whoever awaits it, and not before.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Response(NamedTuple):
    """What the worker sends."""

    ids: list[int]
    finish_reason: str | None = None
    error: BaseException | None = None


@dataclass
class CompletionOutput:
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None
    last_length: int = 0

    @property
    def token_ids_diff(self) -> list[int]:
        """Those of the last response only."""
        return self.token_ids[self.last_length :]


class RequestOutput:
    def __init__(self, request_id: int, prompt: list[int], abort: Callable[[int], None]) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt
        self.outputs = [CompletionOutput()]
        self.finished = False
        self.responses: asyncio.Queue[Response] = asyncio.Queue()
        self._abort = abort
        self._aborted = False

    def abort(self) -> None:
        """Queue a cancellation; the last response is still to come."""
        self._aborted = True
        self._abort(self.request_id)

    def aborted(self) -> bool:
        return self._aborted

    def __aiter__(self) -> "RequestOutput":
        return self

    async def __anext__(self) -> "RequestOutput":
        if self.finished:
            raise StopAsyncIteration
        response = await self.responses.get()
        if response.error is not None:
            self.finished = True
            raise response.error
        output = self.outputs[0]
        output.last_length = len(output.token_ids)
        output.token_ids.extend(response.ids)
        output.finish_reason = response.finish_reason
        self.finished = response.finish_reason is not None
        return self

    async def aresult(self) -> "RequestOutput":
        async for _ in self:
            pass
        return self

    def __await__(self) -> Generator[Any, None, "RequestOutput"]:
        return self.aresult().__await__()

    def result(self, timeout: float | None = None) -> "RequestOutput":
        raise AssertionError("it polls, and blocks the event loop")


class IterationResult:
    """Statistics of the iterations so far; ends when none has come for `timeout` seconds."""

    def __init__(self, lines: deque[str], arrived: asyncio.Event, timeout: float) -> None:
        self._lines = lines
        self._arrived = arrived
        self._timeout = timeout

    def __aiter__(self) -> "IterationResult":
        return self

    async def __anext__(self) -> dict[str, Any]:
        while not self._lines:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), self._timeout)
            except TimeoutError:
                raise StopAsyncIteration from None
        statistics: dict[str, Any] = json.loads(self._lines.popleft())
        return statistics
