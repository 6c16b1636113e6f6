"""What a model is calibrated on: whole sequences of ids, prompt and speech, as an engine reads them.

Rule: a set is the same every time, and never without speech. Nearly all that an engine reads are audio
ids, and their values inside the model are not those of text. A set comes from a file, or the reference
engine speaks it.
"""

import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import click
import msgspec
from msgspec import Meta

from orpheus_ws import tokens
from orpheus_ws.engine import Prompt
from orpheus_ws.engine.checkpoint import Checkpoint, Encoder
from orpheus_ws.engine.checkpoint_limits import choose_voices
from orpheus_ws.engine.torch_batch import Batch
from orpheus_ws.engine.torch_model import ATTENTION, SlotModel, load_model
from orpheus_ws.engine.torch_sampling import LEGAL_COLUMNS, Sampler
from orpheus_ws.errors import EngineFailed, StartupError

PROMPTS: Final = Path(__file__).with_name("prompts.txt")
"""What is spoken if nothing else is given."""

CONTEXT: Final = 2560
"""Ids of a prompt and its speech, when the model speaks it."""

_SLOTS: Final = 8
_LONGEST: Final = 8192
"""Ids of a sequence; what Llama 3 was trained on, and 98 s of speech."""

_Id = Annotated[int, Meta(ge=0, lt=tokens.AUDIO_END)]
_AudioId = Annotated[int, Meta(ge=tokens.AUDIO_BASE, lt=tokens.AUDIO_END)]


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sequence: all its `ids`, or a `text`, the `voice` that speaks it, and its `audio` ids."""

    ids: Annotated[tuple[_Id, ...], Meta(min_length=1, max_length=_LONGEST)] | None = None
    text: str | None = None
    voice: Annotated[str, Meta(pattern=r"\S")] | None = None
    audio: Annotated[tuple[_AudioId, ...], Meta(max_length=_LONGEST)] | None = None


class Calibration(NamedTuple):
    """Sequences of ids. The order does not matter."""

    sequences: list[list[int]]

    @property
    def ids(self) -> int:
        """How many there are."""
        return sum(map(len, self.sequences))

    @property
    def audio_ids(self) -> int:
        """How many of them are audio."""
        return sum(
            tokens.AUDIO_BASE <= token < tokens.AUDIO_END
            for token in itertools.chain.from_iterable(self.sequences)
        )


def read(path: Path, encode: Encoder) -> Calibration:
    """Read a file of JSON Lines: one sequence a line, as `_Line` has it; blank lines do not count.

    `encode` is the model's. Raises `StartupError`, which names the line.
    """
    sequences = []
    for where, line in _lines(path):
        try:
            found = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError as error:
            # The validation error is one of them. Its text can contain the value.
            raise StartupError(
                f"{where} must be a JSON object with `ids`, or with `text`, `voice` and `audio`, "
                f"all of them lists of ids below {tokens.AUDIO_END} or text, {_LONGEST} ids at most"
            ) from error
        sequences.append(_sequence(found, where, encode))
    made = Calibration(sequences)
    if not made.audio_ids:
        raise StartupError(
            f"{path} has no audio id, {tokens.AUDIO_BASE} to {tokens.AUDIO_END - 1}: give sequences "
            "with the speech, or use --prompts to let the model speak"
        )
    return made


def read_prompts(path: Path) -> list[str]:
    """Texts to speak, one a line; blank lines do not count. Raises `StartupError`."""
    texts = [line.decode(errors="replace").strip() for _, line in _lines(path)]
    if not texts:
        raise StartupError(f"{path} is empty: write texts into it, one a line")
    return texts


def speak(checkpoint: Checkpoint, texts: list[str], *, device: str) -> Calibration:
    """Let the checkpoint speak the texts, by all its voices in turn.

    Sampled as published; a text's seed is its place in the list. Raises `StartupError`.
    """
    slots = min(_SLOTS, len(texts))
    folder = str(checkpoint.directory)
    model = load_model(folder, device=device, dtype="bfloat16", attention=ATTENTION)
    batch: Batch[int] = Batch(
        SlotModel(model, slots, CONTEXT, LEGAL_COLUMNS),
        Sampler(slots, LEGAL_COLUMNS, legal_only=True, device=device),
        checkpoint.encode,
        slots,
        CONTEXT,
    )
    voices = choose_voices((), checkpoint.manifest)
    prompts = [
        Prompt(text=text, voice=voice, seed=seed)
        for seed, (text, voice) in enumerate(zip(texts, itertools.cycle(voices), strict=False))
    ]
    spoken = [tokens.prompt_ids(each.voice, each.text, checkpoint.encode) for each in prompts]
    with click.progressbar(length=len(texts), label="Speaking", file=sys.stderr) as progress:
        for number, ids in _run(batch, slots, prompts):
            spoken[number] += [token for token in ids if token != tokens.END_OF_SPEECH]
            progress.update(1)
    return Calibration(spoken)


def _run(batch: Batch[int], slots: int, prompts: list[Prompt]) -> Iterator[tuple[int, list[int]]]:
    """Yield what was spoken of each prompt, with its place, in the order they end."""
    waiting = iter(enumerate(prompts))
    free = list(range(slots))
    slot_of: dict[int, int] = {}
    ids: dict[int, list[int]] = {}
    while True:
        for number, prompt in itertools.islice(waiting, len(free)):
            slot_of[number] = free.pop()
            ids[number] = []
            try:
                batch.join(slot_of[number], number, prompt)
            except EngineFailed as error:
                raise StartupError(f"prompt {number + 1} cannot be spoken: shorten it") from error
        if not batch.busy:
            return
        for group in batch.step():
            if group.failure is not None:
                raise StartupError(f"prompt {group.owner + 1} cannot be spoken: {group.failure}")
            ids[group.owner] += group.ids
            if group.last:
                free.append(slot_of.pop(group.owner))
                yield group.owner, ids.pop(group.owner)


def _sequence(line: _Line, where: str, encode: Encoder) -> list[int]:
    parts = (line.text, line.voice, line.audio)
    if line.ids is not None and parts == (None, None, None):
        return list(line.ids)
    if line.ids is not None or line.text is None or line.voice is None or line.audio is None:
        raise StartupError(
            f"{where} must have either `ids`, or `text`, `voice` and `audio`, and nothing else"
        )
    frames = tokens.FrameAssembler()
    frames.push(line.audio)
    if frames.invalid or frames.dropped:
        raise StartupError(
            f"{where} has audio ids out of turn: a frame has one of each slot, from "
            f"{tokens.AUDIO_BASE} + 4096 x its place in the frame"
        )
    return [*tokens.prompt_ids(line.voice, line.text, encode), *line.audio]


def _lines(path: Path) -> Iterable[tuple[str, bytes]]:
    """The lines that are not blank, and what to call them. Raises `StartupError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from error
    return [
        (f"line {number} of {path}", line)
        for number, line in enumerate(content.splitlines(), start=1)
        if line.strip()
    ]
