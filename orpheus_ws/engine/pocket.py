"""A small English voice that speaks Orpheus's tokens on a CPU, with nothing to download.

Rule: all work is done on one worker thread, one bounded piece at a time, so that requests share it
in turn and the event loop never waits for it. `hibari` makes the sound of one sentence; the pocket
codec's encoder turns it into frames in blocks that start small, so that the first can be heard
before the rest is encoded. It is for development, tests and demonstrations: it is not Orpheus, and
`temperature`, `top_p` and `repetition_penalty` mean nothing to it.

Orpheus's tags (`<laugh>`) are left out rather than read aloud; tags alone are a short silence. Text
without a sound in English, such as an emoji, gives end of speech alone.
"""

import asyncio
import logging
import re
import textwrap
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import chain, repeat
from typing import Any, Final

import hibari
import msgspec
import numpy as np
from numpy.typing import NDArray

from orpheus_ws import tokens
from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import EngineStatistics, Prompt
from orpheus_ws.engine.pocket_encoder import PocketEncoder, frame_count
from orpheus_ws.errors import EngineFailed, StartupError
from orpheus_ws.settings import read_options

DEFAULT_CAPACITY: Final = 8
VOICE: Final = "heart"
"""The one voice inside hibari's wheel; it would download the others."""

FIRST_BLOCKS: Final = (4, 8, 16)
LATER_BLOCKS: Final = 32
"""Frames to a group. Four are 341 ms, enough for a codec to begin with."""

# What bounds a piece of work. hibari's own bound on a sentence is 400 phonemes as well, but it cuts
# only at punctuation; that many are about 20 s of sound and 0.2 s of work.
MAX_PHONEMES: Final = 400
MAX_PASSAGE_CHARS: Final = 400
# hibari's work on a word grows with the square of its length, and it cannot read a number of 40
# digits. The longest words of English have fewer letters.
MAX_WORD_CHARS: Final = 36

TAG_PAUSE: Final = np.zeros(4 * tokens.SAMPLES_PER_FRAME, np.float32)
"""What is heard of a segment that has tags alone: nothing, but it is no failure."""

# Contains a rare word, so that hibari also loads the model that it reads unknown words with.
WARM_UP_TEXT: Final = "Orpheus hummed, zibblefrawk!"

_TAG: Final = re.compile(f"<(?:{'|'.join(tokens.TAGS)})>")
_LONG_WORD: Final = re.compile(rf"(\S{{{MAX_WORD_CHARS}}})(?=\S)")
_CLOSED: Final = "the engine was closed"

_log = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """It has none."""


class PocketVoice:
    """Text → groups of ids. Blocking, and used by one thread; holds what was loaded."""

    def __init__(self) -> None:
        self._hibari: Any = hibari.Hibari(voice=VOICE)
        self._encoder = PocketEncoder()

    def speak(self, text: str, seed: int) -> Iterator[list[int]]:
        """Yield the ids of `text`, then end of speech; the same for the same `seed`.

        Every `next` is one bounded piece of work: find the phonemes of a sentence, make its sound,
        or encode a block of it. The first two give an empty group. What hibari raises comes out.
        """
        rng = np.random.default_rng(seed)
        sizes = chain(FIRST_BLOCKS, repeat(LATER_BLOCKS))
        if _TAG.search(text) and not any(passages(text)):
            yield from self._groups(TAG_PAUSE, sizes)
        for passage in passages(text):
            pronounced: list[str] = self._hibari.phonemize(passage)
            yield []
            for phonemes in chain.from_iterable(map(_cut_phonemes, pronounced)):
                audio = self._hibari.from_ids(self._hibari.ids(phonemes), rng=rng)
                yield []
                yield from self._groups(audio, sizes)
        yield [tokens.END_OF_SPEECH]

    def _groups(self, audio: NDArray[np.float32], sizes: Iterator[int]) -> Iterator[list[int]]:
        frame, frames = 0, frame_count(len(audio))
        while frame < frames:
            size = next(sizes)
            codes = self._encoder.encode_block(audio, frame, size)
            yield [token for row in codes.tolist() for token in tokens.frame_ids(row)]
            frame += size


class PocketEngine:
    """`Engine` over one `PocketVoice`. A step is one piece of work of one request."""

    def __init__(self, capacity: int, voice: PocketVoice, worker: ThreadPoolExecutor) -> None:
        self._capacity = capacity
        self._voice = voice
        self._worker = worker
        self._closed = False
        self._dead = asyncio.Event()
        # Hands slots out in the order in which they were asked for.
        self._slots = asyncio.Semaphore(capacity)
        self._active = 0
        self._waiting = 0
        self._steps = 0  # written by the worker thread alone
        self._tokens = 0

    @property
    def capacity(self) -> int:
        """Slots."""
        return self._capacity

    @property
    def voices(self) -> tuple[str, ...]:
        """The one voice that needs no download."""
        return (VOICE,)

    @property
    def alive(self) -> bool:
        """False after `close`."""
        return not self._closed

    async def wait_dead(self) -> None:
        """Return after `close`: a piece that fails costs one request and never the engine."""
        await self._dead.wait()

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Sequence[int], None]:
        """Yield groups of 4, 8, 16 and then 32 frames, the last of each sentence perhaps smaller.

        Work is done only while the consumer waits for a group. Closing the generator and being
        cancelled free the slot at once; a piece that is running then is finished and forgotten.
        Raises `EngineFailed`.
        """
        async with self._slot():
            pieces = self._voice.speak(prompt.text, prompt.seed)
            left = prompt.max_tokens
            while left > 0:
                group = (await self._advance(pieces))[:left]
                if group:
                    left -= len(group)
                    self._tokens += len(group)
                    yield group
                if group[-1:] == [tokens.END_OF_SPEECH]:
                    return

    def statistics(self) -> EngineStatistics:
        """Current figures."""
        return EngineStatistics(
            active=self._active, waiting=self._waiting, steps=self._steps, tokens=self._tokens
        )

    async def close(self) -> None:
        """Stop, once the piece that is running is finished. Idempotent; safe to cancel."""
        if self._closed:
            return
        self._closed = True
        self._dead.set()
        # Wakes the first who waits for a slot; it finds the engine closed and passes the slot on.
        self._slots.release()
        try:
            # Pieces are taken in order: when an empty one is done, nothing runs any more.
            await asyncio.get_running_loop().run_in_executor(self._worker, lambda: None)
        finally:
            self._worker.shutdown(wait=False)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        self._check_open()
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        self._active += 1
        try:
            self._check_open()
            yield
        finally:
            self._active -= 1
            self._slots.release()

    async def _advance(self, pieces: Iterator[list[int]]) -> list[int]:
        """Do one piece of work in its turn. A cancelled one that has not begun never begins."""
        self._check_open()
        loop = asyncio.get_running_loop()
        group = await loop.run_in_executor(self._worker, self._step, pieces)
        self._check_open()
        return group

    def _step(self, pieces: Iterator[list[int]]) -> list[int]:
        """Runs on the worker thread."""
        self._check_open()
        self._steps += 1
        try:
            return next(pieces)
        except Exception as error:
            # The text of the exception may hold words of the user.
            _log.error("the pocket voice failed: %s", type(error).__name__)
            raise EngineFailed("the pocket voice could not speak this text; reword it") from error

    def _check_open(self) -> None:
        if self._closed:
            raise EngineFailed(_CLOSED)


async def open_engine(config: EngineConfig) -> PocketEngine:
    """Load the voice on its thread and let it speak once, so that the first request is not slow.

    `config.capacity` is 8 unless it is set. Raises `StartupError`. Safe to cancel.
    """
    read_options(config.options, Options, "engine.options")
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pocket-voice")
    try:
        voice = await asyncio.get_running_loop().run_in_executor(worker, _load)
    except BaseException:
        worker.shutdown(wait=False)
        raise
    return PocketEngine(config.capacity or DEFAULT_CAPACITY, voice, worker)


def passages(text: str) -> Iterator[str]:
    """Yield the sentences of `text` without tags, cut between words where they are too long.

    A word of more than 36 characters is cut as well. White space is not kept.
    """
    spoken = "".join(map(_plain_digit, _TAG.sub(" ", text)))
    spoken = _LONG_WORD.sub(r"\1 ", spoken)
    for sentence in hibari.Hibari.split_sentences(spoken):
        yield from textwrap.wrap(sentence, MAX_PASSAGE_CHARS, break_on_hyphens=False)


def _plain_digit(char: str) -> str:
    """Write a digit in a circle, a bracket, an index and so on as such: hibari fails on some.

    It reads a square and a cube by itself, as in "5 m²".
    """
    if char.isdigit() and not char.isdecimal() and char not in "²³":
        return str(unicodedata.digit(char))
    return char


def _cut_phonemes(phonemes: str) -> list[str]:
    return textwrap.wrap(phonemes, MAX_PHONEMES, break_on_hyphens=False)


def _load() -> PocketVoice:
    try:
        voice = PocketVoice()
        for _ in voice.speak(WARM_UP_TEXT, seed=0):
            pass
    except Exception as error:
        raise StartupError(
            f"the pocket voice cannot be loaded ({type(error).__name__}): "
            "pip install --force-reinstall 'orpheus-ws[pocket]'"
        ) from error
    return voice
