"""What the stand-in says: a script of speech, or, where a bias leaves few ids, those of them it draws.

Rule: a function of prompt and sampling alone, so that company changes nothing. Biases, temperature and
penalty act in the order of the real kernel: bias first, then temperature, then penalty.
"""

import math
import random
from typing import Any

from orpheus_ws import tokens
from tensorrt_llm.behaviour import behaviour
from tensorrt_llm.sampling_params import SamplingParams

FEW = 16
PROMPT_IDS_PER_FRAME = 4


class Speaker:
    """One request's ids, one at a time."""

    def __init__(self, prompt: list[int], params: SamplingParams, *, default_sampler: bool) -> None:
        self._key = f"{prompt}"
        self._params = params
        # 1.2's default sampler ignores both, without a word.
        penalised = behaviour.honours_penalty and not default_sampler
        seeded = behaviour.honours_seed and not default_sampler
        self._penalty = params.repetition_penalty if penalised else 1.0
        self._draw = random.Random(f"{params.seed or 0}") if seeded else random.Random()
        self._few = _favoured(params.embedding_bias) if behaviour.honours_bias else {}
        self._length = tokens.CODES_PER_FRAME * max(4, len(prompt) // PROMPT_IDS_PER_FRAME)
        self._said: list[int] = []

    def take_from(self, first: "Speaker", name: str) -> None:
        """Sample with this parameter of another request."""
        if name == "seed":
            self._draw = first._draw
        else:
            self._penalty = first._penalty

    def next_id(self) -> int:
        """The next id; `end_id` when the script is over."""
        self._said.append(token := self._favourite() if self._few else self._scripted())
        return token

    def _scripted(self) -> int:
        at = len(self._said)
        if at >= self._length and not self._params.ignore_eos:
            return self._params.end_id or 0
        code = random.Random(f"{self._key} {at} {self._params.seed}").randrange(
            tokens.CODEBOOK_SIZE
        )
        return tokens.audio_id(at % tokens.CODES_PER_FRAME, code)

    def _favourite(self) -> int:
        chance = random.Random(f"{self._key} {len(self._said)}")
        logits = {}
        for token, bias in self._few.items():
            logit = (chance.uniform(-5, 5) + bias) / (self._params.temperature or 1.0)
            if token in self._said:
                logit = logit * self._penalty if logit < 0 else logit / self._penalty
            logits[token] = logit
        if self._params.greedy:
            return max(logits, key=lambda token: logits[token])
        top = max(logits.values())
        weights = [math.exp(logit - top) for logit in logits.values()]
        return self._draw.choices(list(logits), weights)[0]


def _favoured(bias: Any) -> dict[int, float]:
    """Ids whose bias is above all others', if they are few."""
    if bias is None:
        return {}
    favoured = (bias > 0).nonzero().flatten().tolist()
    return {token: float(bias[token]) for token in favoured} if len(favoured) <= FEW else {}
