"""In-flight batching: requests join and leave slots between steps, and a step is one id for each.

Rule: blocking, used by one thread, and knows neither threads nor the event loop. A prompt is read when
its request joins, all but its last id; that one is fed in the next step like any other, so that there
is one place where ids are chosen. A frame's ids come out together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from orpheus_ws import tokens
from orpheus_ws.engine import Prompt
from orpheus_ws.engine.checkpoint import Encoder
from orpheus_ws.engine.torch_model import SlotModel
from orpheus_ws.engine.torch_sampling import Sampler, Sampling
from orpheus_ws.errors import EngineFailed

_Owner = TypeVar("_Owner")


class Group(NamedTuple, Generic[_Owner]):
    """What a step brought out for a request: a frame's ids or its last few, or why it failed."""

    owner: _Owner
    ids: Sequence[int]
    last: bool
    failure: str | None = None


@dataclass(slots=True)
class _Row(Generic[_Owner]):
    owner: _Owner
    newest: int
    """The id to be fed next, whose place is `position`."""
    position: int
    left: int
    """How many ids it may still get."""
    produced: int = 0
    group: list[int] = field(default_factory=list)


class Batch(Generic[_Owner]):
    """Requests in slots. An owner is whatever the caller knows a request by."""

    def __init__(
        self, model: SlotModel, sampler: Sampler, encode: Encoder, slots: int, context: int
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._encode = encode
        self._context = context
        self._rows: list[_Row[_Owner] | None] = [None] * slots

    @property
    def busy(self) -> bool:
        """Whether a step would bring anybody further."""
        return any(row is not None for row in self._rows)

    def join(self, slot: int, owner: _Owner, prompt: Prompt) -> None:
        """Read the prompt into a slot that is free. Raises `EngineFailed` if it is too long.

        What torch raises comes out.
        """
        ids = tokens.prompt_ids(prompt.voice, prompt.text, self._encode)
        room = self._context - len(ids)
        if room < 1:
            raise EngineFailed("the segment is too long for this engine; send shorter sentences")
        self._model.prefill(slot, ids[:-1])
        sampling = Sampling(prompt.temperature, prompt.top_p, prompt.repetition_penalty)
        self._sampler.reset(slot, sampling, prompt.seed, ids)
        left = min(prompt.max_tokens, room)
        self._rows[slot] = _Row(owner, newest=ids[-1], position=len(ids) - 1, left=left)

    def leave(self, slot: int) -> None:
        """Free the slot, also one that is free."""
        self._rows[slot] = None

    def step(self) -> list[Group[_Owner]]:
        """One id for each request; what is complete by it. What torch raises comes out."""
        rows = self._rows
        logits = self._model.step(
            [0 if row is None else row.newest for row in rows],
            [0 if row is None else row.position for row in rows],
        )
        turns = [0 if row is None else row.produced % tokens.CODES_PER_FRAME for row in rows]
        chosen = self._sampler.choose(logits, turns)
        groups = []
        for slot, (row, token) in enumerate(zip(rows, chosen, strict=True)):
            if row is not None and (group := _advance(row, token)):
                groups.append(group)
                if group.last:
                    self.leave(slot)
        return groups


def _advance(row: _Row[_Owner], token: int | None) -> Group[_Owner] | None:
    if token is None:
        failure = (
            "the model's output is not a number; the operator should set engine.options.dtype to "
            "float32 or bfloat16"
        )
        return Group(row.owner, (), last=True, failure=failure)
    row.newest, row.position = token, row.position + 1
    row.produced += 1
    row.left -= 1
    row.group.append(token)
    last = row.left == 0 or token == tokens.END_OF_SPEECH
    if not last and len(row.group) < tokens.CODES_PER_FRAME:
        return None
    ids, row.group = row.group, []
    return Group(row.owner, ids, last)
