"""Whether the sampler does what it is asked, shown before anything is served.

Rule: the engine is judged by the ids that it gives and by nothing that it says of itself, and with
requests that differ in one batch, as it will have to serve them. A sampler that ignores
`repetition_penalty` or `seed` raises nothing and sounds worse; TensorRT-LLM 1.2's default one is such.
A bias decides what each run must be, whatever the checkpoint: where the ids' biases differ by more than
logits can, the most favoured comes again and again, and under a penalty each in turn; where they are
equal and the temperature is so high that logits hardly count, chance decides.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from orpheus_ws import tokens
from orpheus_ws.errors import StartupError

TOKENS: Final = 16
ALLOWED: Final = tuple(tokens.audio_id(0, code) for code in range(4))
PENALTY: Final = 2.0
# The bias is added first, then divided by the temperature, then the penalty divides (1.2's
# penaltyKernels.cu, and later versions keep to it): 1000 / 2 is less than 700, and logits are of the
# order of ten.
STEPPED: Final = (1000.0, 900.0, 800.0, 700.0)
FLAT: Final = (30_000.0,) * 4
# Logits count for 1/300, and what has no bias for e^-100. Kernels that round differently from run to
# run (those of FP8 may) move a logit by less than 0.1: then one start in 500 is refused at most.
TEMPERATURE: Final = 300.0
PROOF_SECONDS: Final = 120.0
"""For all runs; the first steps of an engine may compile and tune kernels."""


class Runs(NamedTuple):
    """The ids of each run: `plain` alone, the others in one batch."""

    plain: Sequence[int]
    again: Sequence[int]
    penalised: Sequence[int]
    seeded: Sequence[int]
    reseeded: Sequence[int]
    """The same seed once more."""
    otherwise: Sequence[int]
    """Another seed."""


async def prove_sampler(
    llm: Any, sampling_params: Any, prompt: list[int], vocabulary: int, setting: str
) -> None:
    """Let the engine speak six times, five of them at once, and judge it.

    `sampling_params` is TensorRT-LLM's class; `setting` says what to change if the sampler fails.
    Raises `StartupError`. Cancelling leaves requests of 16 ids behind.
    """
    try:
        async with asyncio.timeout(PROOF_SECONDS):
            runs = await _speak(llm, sampling_params, prompt, vocabulary)
    except TimeoutError as error:
        raise StartupError(
            f"TensorRT-LLM gave no {TOKENS} ids within {PROOF_SECONDS:g} s: see what it printed"
        ) from error
    except Exception as error:
        raise StartupError(
            f"TensorRT-LLM failed on its first requests ({type(error).__name__}): see what it printed"
        ) from error
    if fault := judge(runs):
        raise StartupError(f"the sampler {fault}, so it would not speak well: {setting}")


async def _speak(llm: Any, sampling_params: Any, prompt: list[int], vocabulary: int) -> Runs:
    """One request alone, then five together: a sampler may mix up whose setting is whose."""
    stepped, flat = (_bias(values, vocabulary) for values in (STEPPED, FLAT))
    greedy = {"embedding_bias": stepped}
    chance = {"embedding_bias": flat, "temperature": TEMPERATURE, "top_p": 1.0}

    async def run(**sampling: Any) -> list[int]:
        result = llm.generate_async(
            prompt,
            sampling_params=sampling_params(
                max_tokens=TOKENS,
                end_id=tokens.END_OF_SPEECH,
                ignore_eos=True,
                detokenize=False,
                **sampling,
            ),
        )
        await result.aresult()
        return list(result.outputs[0].token_ids)

    plain = await run(repetition_penalty=1.0, **greedy)
    others = await asyncio.gather(
        run(repetition_penalty=1.0, **greedy),
        run(repetition_penalty=PENALTY, **greedy),
        run(seed=1, **chance),
        run(seed=1, **chance),
        run(seed=2, **chance),
    )
    return Runs(plain, *others)


def judge(runs: Runs) -> str | None:
    """Say what is wrong with the sampler that gave these ids; None if nothing is."""
    if any(len(ids) != TOKENS for ids in runs):
        return f"does not give as many ids as were asked for, {TOKENS}"
    if any(not set(ids) <= set(ALLOWED) for ids in runs):
        return "ignores embedding_bias"
    if runs.plain != runs.again:
        return "gives different ids for the same request without chance"
    repeated = first_repetition(runs.plain)
    if runs.penalised[:repeated] != runs.plain[:repeated]:
        return "applies repetition_penalty where nothing repeats"
    if runs.penalised[repeated:] == runs.plain[repeated:]:
        return "ignores repetition_penalty"
    if set(runs.penalised[: len(ALLOWED)]) != set(ALLOWED):
        return "applies repetition_penalty to some of the ids that were there before"
    if runs.seeded != runs.reseeded:
        return "gives different ids for the same seed"
    if runs.seeded == runs.otherwise:
        return "ignores the seed"
    return None


def first_repetition(ids: Sequence[int]) -> int:
    """Index of the first id that was there before; the length if there is none."""
    seen: set[int] = set()
    for index, token in enumerate(ids):
        if token in seen:
            return index
        seen.add(token)
    return len(ids)


def _bias(values: Sequence[float], vocabulary: int) -> torch.Tensor:
    # Logits are in single precision in TensorRT-LLM's samplers, and the bias must be of their type.
    bias = torch.zeros(vocabulary, dtype=torch.float32)
    bias[list(ALLOWED)] = torch.tensor(values)
    return bias
