"""Which id comes next: repetition penalty, temperature, top-p, and a number of the request's own.

Rule: the order and meaning are those of transformers' and TensorRT-LLM's samplers; the penalty counts
prompt and speech. By default only a legal id has a chance: one of the 4096 codes of the slot whose turn
it is, and end of speech between two frames. Every slot is computed in every step, alike, and draws
from its own seed, so that nobody's choice depends on another's.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import torch

from orpheus_ws import tokens

LEGAL_COLUMNS: Final = range(tokens.END_OF_SPEECH, tokens.AUDIO_END)
"""The ids that a legal choice needs the logits of."""

_FAINTEST: Final = 1e-5
"""A lower temperature is 0: the likeliest id."""


class Sampling(NamedTuple):
    """How one request samples."""

    temperature: float = tokens.TEMPERATURE
    top_p: float = tokens.TOP_P
    repetition_penalty: float = tokens.REPETITION_PENALTY


class Sampler:
    """The slots' sampling parameters and what each has seen. Blocking, and used by one thread."""

    def __init__(self, slots: int, columns: range, *, legal_only: bool, device: str) -> None:
        """`columns` are the ids that the logits are of."""
        self._columns = columns
        self._device = device
        self._candidates = _legal_columns(columns).to(device) if legal_only else None
        self._seen = torch.zeros(slots, len(columns), dtype=torch.bool, device=device)
        self._sampling = [Sampling()] * slots
        self._chances = [random.Random(0) for _ in range(slots)]

    def reset(self, slot: int, sampling: Sampling, seed: int, prompt: Iterable[int]) -> None:
        """A request begins in `slot`."""
        self._sampling[slot] = sampling
        self._chances[slot] = random.Random(seed)
        self._seen[slot] = False
        self._seen[
            slot, [self._columns.index(token) for token in prompt if token in self._columns]
        ] = True

    @torch.inference_mode()
    def choose(self, logits: torch.Tensor, turns: Sequence[int]) -> list[int | None]:
        """An id for each slot, of logits (slots, columns). None where no logit is a number.

        `turns` says which code of its frame comes next in each slot, 0…6. Every slot draws a
        number, so call it only with those that a request needs.
        """
        seen, ids = self._seen, None
        if self._candidates is not None:
            ids = self._candidates[torch.tensor(turns, device=self._device)]
            logits, seen = logits.gather(1, ids.clamp_min(0)), seen.gather(1, ids.clamp_min(0))
            logits = logits.masked_fill(ids < 0, -torch.inf)
        choices = self._draw(logits, seen)
        columns = choices if ids is None else ids.gather(1, choices[:, None])[:, 0]
        self._seen[torch.arange(len(columns), device=self._device), columns] = True
        usable = logits.amax(1).isfinite().tolist()
        return [
            self._columns[column] if good else None
            for column, good in zip(columns.tolist(), usable, strict=True)
        ]

    def _draw(self, logits: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Positions among the candidates."""
        temperatures = self._column(each.temperature for each in self._sampling)
        penalties = self._column(each.repetition_penalty for each in self._sampling)
        top_ps = self._column(each.top_p for each in self._sampling)
        numbers = self._column(chance.random() for chance in self._chances)
        penalised = torch.where(logits > 0, logits / penalties, logits * penalties)
        scores = torch.where(seen, penalised, logits)
        ordered, order = scores.sort(dim=1, descending=True, stable=True)
        greedy = temperatures < _FAINTEST
        probabilities = (ordered / temperatures.masked_fill(greedy, 1.0)).softmax(1)
        cumulated = probabilities.cumsum(1)
        # The likeliest that together have `top_p`, and at least one.
        kept = (cumulated - probabilities < top_ps) & ~greedy
        kept[:, 0] = True
        last = kept.sum(1, keepdim=True) - 1
        drawn = torch.searchsorted(cumulated, numbers * cumulated.gather(1, last), right=True)
        return order.gather(1, drawn.minimum(last))[:, 0]

    def _column(self, values: Iterable[float]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.float32, device=self._device)[:, None]


def _legal_columns(columns: range) -> torch.Tensor:
    """For each code of a frame the columns that it may be; the last is end of speech, or -1."""
    rows = []
    for slot in range(tokens.CODES_PER_FRAME):
        first = columns.index(tokens.audio_id(slot, 0))
        stop = columns.index(tokens.END_OF_SPEECH) if slot == 0 else -1
        rows.append([*range(first, first + tokens.CODEBOOK_SIZE), stop])
    return torch.tensor(rows)
