"""Pocket engine: what is special about it. What every engine promises is in `tests/conformance`."""

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import hibari
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Prompt, find_engine
from orpheus_ws.engine.pocket import (
    MAX_PASSAGE_CHARS,
    MAX_PHONEMES,
    MAX_WORD_CHARS,
    PocketEngine,
    PocketVoice,
    open_engine,
    passages,
)
from orpheus_ws.errors import EngineFailed, StartupError
from orpheus_ws.tokens import CODES_PER_FRAME, END_OF_SPEECH, TAGS

SENTENCE = "The weather is lovely today, and I would like a cup of coffee."
Opener = Callable[[int], PocketEngine]


@pytest.fixture(scope="module")
def voice() -> PocketVoice:
    """Loaded once for all tests here; it has no state of its own."""
    return PocketVoice()


@pytest.fixture
async def opened(voice: PocketVoice) -> AsyncIterator[Opener]:
    """Open engines of some capacity; they are closed afterwards."""
    engines: list[PocketEngine] = []

    def opener(capacity: int) -> PocketEngine:
        engines.append(PocketEngine(capacity, voice, ThreadPoolExecutor(max_workers=1)))
        return engines[-1]

    yield opener
    for engine in engines:
        await engine.close()


@pytest.fixture
def engine(opened: Opener) -> PocketEngine:
    """An engine with two slots."""
    return opened(2)


class Gate:
    """Holds up the worker inside hibari. Everything it does is safe from any thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = threading.Event()
        self.reached = asyncio.Event()
        original = hibari.Hibari.from_ids

        def held(*args: Any, **kwargs: Any) -> Any:
            self._loop.call_soon_threadsafe(self.reached.set)
            assert self._open.wait(timeout=30)
            return original(*args, **kwargs)

        monkeypatch.setattr(hibari.Hibari, "from_ids", held)

    def open(self) -> None:
        """Let the worker go on, now and later."""
        self._open.set()


def prompt(text: str, *, seed: int = 7, max_tokens: int = 2048) -> Prompt:
    """A request for the one voice."""
    return Prompt(text=text, voice="heart", seed=seed, max_tokens=max_tokens)


async def groups_of(engine: PocketEngine, request: Prompt) -> list[list[int]]:
    """All groups of one request."""
    async with aclosing(engine.generate(request)) as groups:
        return [list(group) async for group in groups]


async def ids_of(engine: PocketEngine, request: Prompt) -> list[int]:
    """All ids of one request."""
    return [token for group in await groups_of(engine, request) for token in group]


async def turn() -> None:
    """Let every task run that can; one just made runs until it has to wait."""
    await asyncio.sleep(0)


# Groups --------------------------------------------------------------------------------------------


async def test_the_first_group_does_not_wait_for_the_sentence(engine: PocketEngine) -> None:
    """The first group is out after phonemes, sound and one block, before the other blocks' steps."""
    async with aclosing(engine.generate(prompt(SENTENCE))) as groups:
        await anext(groups)
        before = engine.statistics().steps
        rest = [group async for group in groups]
    assert before == 3
    assert engine.statistics().steps == before + len(rest)
    assert len(rest) > 1


async def test_groups_grow(engine: PocketEngine) -> None:
    """Groups have 4, 8, 16 and then 32 frames, and end of speech comes on its own."""
    sizes = [
        len(group) for group in await groups_of(engine, prompt(f"{SENTENCE[:-1]}, {SENTENCE}"))
    ]
    assert [size / CODES_PER_FRAME for size in sizes[:4]] == [4, 8, 16, 32]
    assert sizes[-1] == 1


async def test_groups_do_not_shrink_with_the_next_sentence(engine: PocketEngine) -> None:
    """A second sentence goes on with large groups: only the first group of all is urgent."""
    text = f"{SENTENCE[:-1]}, {SENTENCE} {SENTENCE[:-1]}, {SENTENCE}"
    sizes = [len(group) for group in await groups_of(engine, prompt(text))]
    assert sizes.count(4 * CODES_PER_FRAME) == 1
    assert sizes.count(32 * CODES_PER_FRAME) >= 3


async def test_sentences_are_spoken_as_they_come(engine: PocketEngine) -> None:
    """A text's ids begin with those that its first sentence has by itself."""
    alone = await ids_of(engine, prompt(SENTENCE))
    both = await ids_of(engine, prompt(f"{SENTENCE} Thank you."))
    assert both[: len(alone) - 1] == alone[:-1]
    assert len(both) > len(alone)


async def test_stops_at_max_tokens_to_the_id(engine: PocketEngine) -> None:
    """A request that may have 100 ids gets the first 100, with no end of speech, and no work more."""
    everything = await ids_of(engine, prompt(SENTENCE))
    before = engine.statistics().steps
    assert await ids_of(engine, prompt(SENTENCE, max_tokens=100)) == everything[:100]
    assert engine.statistics().steps - before == 5


# Text ----------------------------------------------------------------------------------------------


async def test_the_seed_is_the_voice(engine: PocketEngine) -> None:
    """The same seed gives the same ids and another seed gives others."""
    first = await ids_of(engine, prompt("Hello there.", seed=1))
    assert await ids_of(engine, prompt("Hello there.", seed=1)) == first
    assert await ids_of(engine, prompt("Hello there.", seed=2)) != first


async def test_tags_are_not_spoken(engine: PocketEngine) -> None:
    """Text with Orpheus's tags sounds exactly as it does without them."""
    plain = await ids_of(engine, prompt("Hello there, my friend."))
    tagged = f"<laugh> Hello {' '.join(f'<{tag}>' for tag in TAGS)} there, my<sigh>friend <yawn>."
    assert await ids_of(engine, prompt(tagged)) == plain


async def test_tags_alone_are_a_silence(engine: PocketEngine) -> None:
    """Text that has tags and no words gives frames: it is no failure to have nothing to say."""
    ids = await ids_of(engine, prompt("<laugh> <sigh>"))
    assert len(ids) == 4 * CODES_PER_FRAME + 1
    assert ids[-1] == END_OF_SPEECH


async def test_what_is_no_tag_is_spoken(engine: PocketEngine) -> None:
    """Only Orpheus's own tags go: other words between angle brackets are text."""
    assert list(passages("A <sob> and <b>bold</b>.")) == ["A <sob> and <b>bold</b>."]


@pytest.mark.parametrize("text", ["", " \n ", "\N{GRINNING FACE}", "你好", "-"])
async def test_text_without_a_sound_ends_at_once(engine: PocketEngine, text: str) -> None:
    """Where there is nothing to speak there is end of speech and nothing else."""
    assert await groups_of(engine, prompt(text)) == [[END_OF_SPEECH]]


@pytest.mark.parametrize("text", ["Hi", "I", "7", "⑴", "123²⁰", "1" * 5000])
async def test_odd_text_is_spoken(engine: PocketEngine, text: str) -> None:
    """Short words, single digits in any dress and endless numbers all give frames."""
    assert len(await ids_of(engine, prompt(text, max_tokens=200))) > 4 * CODES_PER_FRAME


@given(st.text(st.sampled_from("ab7.,!? \n'\"-<>[]()é中\N{GRINNING FACE}"), max_size=2000))
def test_passages_are_bounded_and_complete(text: str) -> None:
    """However the text is made, passages and their words are short, and no letter is lost."""
    found = list(passages(text))
    assert all(0 < len(passage) <= MAX_PASSAGE_CHARS for passage in found)
    assert all(len(word) <= MAX_WORD_CHARS for passage in found for word in passage.split())
    assert [c for c in "".join(found) if c.isalnum()] == [c for c in text if c.isalnum()]


async def test_long_readings_are_cut(engine: PocketEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that reads at many times its length is still spoken in bounded pieces."""
    lengths: list[int] = []
    original = hibari.Hibari.ids

    def measured(self: Any, phonemes: str) -> Any:
        lengths.append(len(phonemes))
        return original(self, phonemes)

    monkeypatch.setattr(hibari.Hibari, "ids", measured)
    assert len(await ids_of(engine, prompt("&#" * 100, max_tokens=2048))) == 2048
    assert len(lengths) >= 2
    assert max(lengths) <= MAX_PHONEMES


# Sharing -------------------------------------------------------------------------------------------


async def test_requests_take_turns(engine: PocketEngine) -> None:
    """Two requests made together get their groups alternately, not one after the other."""
    order: list[int] = []
    note = order.append

    async def consume(number: int) -> None:
        async for _ in engine.generate(prompt(SENTENCE)):
            note(number)

    await asyncio.gather(consume(0), consume(1))
    assert order == [0, 1] * (len(order) // 2)
    assert len(order) > 4


async def test_the_queue_is_first_in_first_out(opened: Opener) -> None:
    """Requests that wait for the one slot are served in the order in which they came."""
    engine = opened(1)
    order: list[int] = []

    async def consume(number: int) -> None:
        await ids_of(engine, prompt("Hi."))
        order.append(number)

    await asyncio.gather(*(consume(number) for number in range(4)))
    assert order == [0, 1, 2, 3]


async def test_cancelling_does_not_wait_for_the_piece(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request cancelled while the worker is busy with it leaves its slot there and then."""
    engine, gate = opened(1), Gate(monkeypatch)
    task = asyncio.create_task(ids_of(engine, prompt(SENTENCE)))
    await gate.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.statistics().active == 0
    gate.open()
    assert (await ids_of(engine, prompt("Hi.")))[-1] == END_OF_SPEECH


async def test_a_cancelled_piece_that_waits_is_never_begun(
    engine: PocketEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request cancelled before its turn costs the worker nothing."""
    gate = Gate(monkeypatch)
    busy = asyncio.create_task(ids_of(engine, prompt("Hi.", max_tokens=7)))
    await gate.reached.wait()
    steps = engine.statistics().steps
    task = asyncio.create_task(ids_of(engine, prompt(SENTENCE)))
    await turn()
    assert engine.statistics().active == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    await busy
    assert engine.statistics().steps == steps + 1


async def test_a_slot_given_to_one_who_was_cancelled_goes_on(opened: Opener) -> None:
    """A slot that is handed over in the very turn in which its taker is cancelled is not lost."""
    engine = opened(1)
    holder = engine.generate(prompt(SENTENCE))
    await anext(holder)
    waiting = [asyncio.create_task(ids_of(engine, prompt("Hi."))) for _ in range(2)]
    await turn()
    assert engine.statistics().waiting == 2
    await holder.aclose()
    waiting[0].cancel()
    assert (await waiting[1])[-1] == END_OF_SPEECH
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert engine.statistics()[:2] == (0, 0)


# Failure and the end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["phonemize", "ids", "from_ids"])
async def test_failures_of_hibari_are_ours(
    engine: PocketEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
) -> None:
    """Whatever hibari raises comes out as `EngineFailed` in our words, and only for that request."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("cannot speak 'my secret'")

    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG):
        patch.setattr(hibari.Hibari, method, fail)
        with pytest.raises(EngineFailed) as caught:
            await ids_of(engine, prompt("my secret"))
    assert "secret" not in str(caught.value)
    assert "secret" not in caplog.text
    assert "RuntimeError" in caplog.text
    assert engine.alive
    assert engine.statistics().active == 0
    assert (await ids_of(engine, prompt("Hi.")))[-1] == END_OF_SPEECH


async def test_close_waits_for_the_piece_and_fails_the_rest(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` returns when the worker is idle; what ran, waited or was paused has failed."""
    engine, gate = opened(2), Gate(monkeypatch)
    gate.open()
    paused = engine.generate(prompt(SENTENCE))
    await anext(paused)
    gate = Gate(monkeypatch)
    running = asyncio.create_task(ids_of(engine, prompt(SENTENCE)))
    await gate.reached.wait()
    waiting = asyncio.create_task(ids_of(engine, prompt(SENTENCE)))
    await turn()
    assert engine.statistics().waiting == 1
    closing = asyncio.create_task(engine.close())
    await turn()
    assert not engine.alive
    with pytest.raises(EngineFailed):
        await waiting
    assert not closing.done()
    gate.open()
    await closing
    for left in (running, anext(paused)):
        with pytest.raises(EngineFailed):
            await left
    assert engine.statistics()[:2] == (0, 0)


# Opening -------------------------------------------------------------------------------------------


async def test_opens_by_name_with_its_defaults() -> None:
    """`engine = "pocket"` opens it with 8 slots and the one voice in hibari's package."""
    engine = await find_engine(EngineConfig())(EngineConfig())
    assert isinstance(engine, PocketEngine)
    assert engine.capacity == 8
    assert engine.voices == ("heart",)
    await engine.close()


async def test_refuses_unknown_options() -> None:
    """It has no options, and says so rather than ignore one."""
    with pytest.raises(StartupError, match=r"engine\.options\.speed"):
        await open_engine(EngineConfig(options={"speed": 2}))


async def test_a_voice_that_does_not_load_is_a_startup_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When hibari cannot load, the operator learns what to do and no thread is left behind."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(hibari.Hibari, "__init__", fail)
    with pytest.raises(StartupError) as caught:
        await open_engine(EngineConfig())
    assert "pip install" in str(caught.value)
    for thread in threading.enumerate():
        if thread.name.startswith("pocket-voice"):
            await asyncio.to_thread(thread.join, 30)
            assert not thread.is_alive()


def test_a_missing_hibari_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, opening by name says which package is missing and how to install it."""
    monkeypatch.delitem(sys.modules, "orpheus_ws.engine.pocket")
    monkeypatch.setitem(sys.modules, "hibari", None)
    with pytest.raises(StartupError, match=r"'hibari'.*orpheus-ws\[pocket\]"):
        find_engine(EngineConfig())
