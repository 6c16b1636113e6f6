"""One prompt inside TensorRT-LLM: its answers come in, ids go out.

Rule: TensorRT-LLM answers with one object that grows, so an answer is read when it comes and before
anything else is awaited. Pure but for the waiting of whoever takes the ids.
"""

import asyncio
from typing import Any, Final

from orpheus_ws import tokens
from orpheus_ws.errors import EngineFailed

GIVEN_UP: Final = "the engine gave up this text; try again"


class Request:
    """One prompt. `result` is TensorRT-LLM's; `ids` have arrived and not been taken."""

    def __init__(self, result: Any, max_tokens: int, step: int) -> None:
        """`step` is the engine's when the request was made."""
        self.result = result
        self.ids: list[int] = []
        self.left = False
        """Nobody wants the ids any more."""
        self.ended = asyncio.Event()
        """The engine is done with it, or nothing will be heard of it any more."""
        self._failure: str | None = None
        self._max_tokens = max_tokens
        self._step = step
        self._seen = 0
        self._waiter: asyncio.Future[None] | None = None

    def accept(self) -> int:
        """Take what is new in `result`; return its steps.

        An id takes a step, so as many steps have passed since the request was made. End of speech
        is what the engine stops at: it is given once, whether or not it is among the ids.
        """
        output = self.result.outputs[0]
        fresh = output.token_ids[self._seen :]
        self._seen += len(fresh)
        if tokens.END_OF_SPEECH in fresh:
            del fresh[fresh.index(tokens.END_OF_SPEECH) :]
        if self.result.finished:
            if output.finish_reason == "stop":
                fresh.append(tokens.END_OF_SPEECH)
            elif output.finish_reason != "length" and not self.left:
                self._failure = GIVEN_UP
        self.ids += fresh
        self._wake()
        return self._step + self._seen

    def end(self, failure: str | None = None) -> None:
        """Nothing more will arrive."""
        self._failure = self._failure or failure
        self.ended.set()
        self._wake()

    @property
    def is_over(self) -> bool:
        """It has ended, or has all its ids and is about to end by itself."""
        return self.ended.is_set() or self.result.finished or self._seen >= self._max_tokens

    async def take(self) -> list[int]:
        """Return the ids that have arrived, at least one, or none at the end.

        Raises `EngineFailed` after the ids that came before the failure. Safe to cancel.
        """
        while not self.ids:
            if self._failure is not None:
                raise EngineFailed(self._failure)
            if self.ended.is_set():
                break
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        taken, self.ids = self.ids, []
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
