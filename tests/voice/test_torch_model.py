"""The torch engine's model and batch: exact, whoever shares the batch."""

import itertools
import random
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, LogitsProcessorList

from orpheus_ws import tokens
from orpheus_ws.engine import Prompt
from orpheus_ws.engine.torch_batch import Batch
from orpheus_ws.engine.torch_model import BLOCK
from tests.voice.torch_checkpoints import SENTENCE, batch_of, encoder, run, slot_model

TEXTS = ("Hi.", SENTENCE, f"{SENTENCE} {SENTENCE}", "Thank you for calling!")


class _Legal:
    """Legality as the facts of the model have it, for one sequence with a prompt of `start` ids."""

    def __init__(self, start: int) -> None:
        self._start = start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        slot = (input_ids.shape[1] - self._start) % 7
        first = 128_266 + 4096 * slot
        legal = torch.full_like(scores, -torch.inf)
        legal[:, first : first + 4096] = scores[:, first : first + 4096]
        if slot == 0:
            legal[:, 128_258] = scores[:, 128_258]
        return legal


def prompt(
    text: str, *, seed: int = 7, max_tokens: int = 100, temperature: float = tokens.TEMPERATURE
) -> Prompt:
    """A request for the first voice."""
    return Prompt(
        text=text, voice="tara", seed=seed, max_tokens=max_tokens, temperature=temperature
    )


def staggered(batch: Batch[int], prompts: list[Prompt]) -> dict[int, list[int]]:
    """The ids of each, when one joins after every second step, in slots from the last to the first."""
    found: dict[int, list[int]] = {}
    free = list(range(len(prompts)))
    for number, each in enumerate(prompts):
        batch.join(free.pop(), number, each)
        for group in batch.step() + batch.step():
            found.setdefault(group.owner, []).extend(group.ids)
    for owner, ids in run(batch).items():
        found.setdefault(owner, []).extend(ids)
    return found


@pytest.mark.parametrize("legal_only", [True, False])
def test_greedy_ids_are_those_of_transformers(tiny_checkpoint: Path, *, legal_only: bool) -> None:
    """At temperature 0 each request of a batch gets what `generate` gives it alone, with penalty."""
    # Choosing among all ids takes longer.
    length = 100 if legal_only else 20
    prompts = [prompt(text, temperature=0.0, max_tokens=length) for text in TEXTS]
    together = staggered(batch_of(tiny_checkpoint, 4, legal_only=legal_only), prompts)
    model = LlamaForCausalLM.from_pretrained(
        tiny_checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    encode = encoder(tiny_checkpoint)
    for number, text in enumerate(TEXTS):
        ids = tokens.prompt_ids("tara", text, encode)
        processors = LogitsProcessorList([_Legal(len(ids))] if legal_only else [])
        alone = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            repetition_penalty=tokens.REPETITION_PENALTY,
            logits_processor=processors,
            max_new_tokens=length,
            eos_token_id=tokens.END_OF_SPEECH,
            pad_token_id=tokens.END_OF_SPEECH,
        )
        assert together[number] == alone[0, len(ids) :].tolist()


def test_sampled_ids_do_not_depend_on_company(tiny_checkpoint: Path) -> None:
    """Seeded requests get in company, in other slots, the very ids that they get alone."""
    batch = batch_of(tiny_checkpoint, 4)
    prompts = [prompt(text, seed=seed, max_tokens=90) for seed, text in enumerate(TEXTS)]
    alone: dict[int, list[int]] = {}
    for number, each in enumerate(prompts):
        batch.join(0, number, each)
        alone |= run(batch)
    assert staggered(batch, prompts) == alone
    assert len(set(map(tuple, alone.values()))) == len(TEXTS)


@pytest.mark.parametrize("slots", [2, 3, 5, 8])
def test_company_changes_no_bit(tiny_checkpoint: Path, slots: int) -> None:
    """Logits in company are equal to those alone to the last bit, in every slot, also when the
    others have read so much that more blocks of keys are looked at."""
    model = slot_model(tiny_checkpoint, slots)
    chance = random.Random(0)
    speech = [chance.randrange(tokens.AUDIO_BASE, tokens.AUDIO_END) for _ in range(30)]
    model.prefill(0, speech[:20])
    alone = [
        model.step([speech[at]] + [0] * (slots - 1), [at] + [0] * (slots - 1))[0]
        for at in range(20, 30)
    ]
    for slot in range(slots):
        for other in range(slots):
            length = BLOCK + 3 if other == (slot + 1) % slots else 9 * other
            model.prefill(other, [chance.randrange(128_000) for _ in range(length)])
        model.prefill(slot, speech[:20])
        for at, expected in zip(range(20, 30), alone, strict=True):
            ids = [chance.randrange(128_000) for _ in range(slots)]
            positions = [9 * other for other in range(slots)]
            positions[(slot + 1) % slots] = BLOCK + at
            ids[slot], positions[slot] = speech[at], at
            assert torch.equal(model.step(ids, positions)[slot], expected)


def test_a_slot_forgets(tiny_checkpoint: Path) -> None:
    """A request in a slot that somebody longer has used before gets what it gets in a fresh one."""
    used, fresh = batch_of(tiny_checkpoint, 1), batch_of(tiny_checkpoint, 1)
    used.join(0, 0, prompt(f"{SENTENCE} {SENTENCE}", max_tokens=300))
    for _ in range(250):
        used.step()
    used.leave(0)
    used.join(0, 1, prompt("Hi."))
    fresh.join(0, 1, prompt("Hi."))
    assert run(used) == run(fresh)


def test_ids_come_by_the_frame(tiny_checkpoint: Path) -> None:
    """A frame comes with its seventh step and not before; the last group has what is left."""
    batch = batch_of(tiny_checkpoint, 2)
    batch.join(1, 1, prompt(SENTENCE, max_tokens=17))
    sizes = [[len(group.ids) for group in batch.step()] for _ in range(17)]
    assert sizes == [[], [], [], [], [], [], [7]] * 2 + [[], [], [3]]
    assert not batch.busy


@pytest.mark.parametrize("text", TEXTS)
def test_speech_is_legal(tiny_checkpoint: Path, text: str) -> None:
    """Every id is of the slot whose turn it is, until end of speech between two frames."""
    batch = batch_of(tiny_checkpoint, 1)
    batch.join(0, 0, prompt(text, max_tokens=2000, temperature=2.0))
    *speech, end = run(batch)[0]
    assert end == tokens.END_OF_SPEECH
    slots = [(token - tokens.AUDIO_BASE) // tokens.CODEBOOK_SIZE for token in speech]
    assert slots == list(itertools.islice(itertools.cycle(range(7)), len(speech)))
    assert len(speech) % 7 == 0


def test_without_the_rule_the_model_is_free(tiny_checkpoint: Path) -> None:
    """With `legal_only` off this model, which has learnt nothing, says things that are no speech."""
    batch = batch_of(tiny_checkpoint, 1, legal_only=False)
    batch.join(0, 0, prompt("Hi.", temperature=2.0, max_tokens=20))
    assembler = tokens.FrameAssembler()
    assembler.push(run(batch)[0])
    assert assembler.invalid > 0
