"""The codec loop: a thread that ends unasked or not at all, and an event loop that is gone."""

import asyncio
import threading
import time

import pytest

from orpheus_ws.audio import MOST_FRAMES, Portion
from orpheus_ws.codec import Decoder, patience
from orpheus_ws.codec.loop import CodecLoop
from orpheus_ws.codec.patience import MOST_FAILURES, MOST_LOOKS, StepWatch
from orpheus_ws.errors import Internal
from tests.harness import turns_until
from tests.looking_decoder import LookingDecoder, frames, join_codec_threads, opened, start


async def test_the_thread_dies() -> None:
    """A decoder that ends the thread ends the codec: all who wait fail, all who ask later, and at once."""
    loop, decoder = await start(slots=3)
    deaths = [asyncio.create_task(loop.wait_dead()) for _ in range(2)]
    streams = [opened(loop) for _ in range(2)]
    idle = asyncio.create_task(streams[1].take(Portion(1, MOST_FRAMES)))
    await asyncio.sleep(0)
    assert not any(death.done() for death in deaths)
    decoder.fail_on, decoder.failure = 13, SystemExit("the driver had enough")
    streams[0].push(frames(1, 13))
    for take in (streams[0].take(Portion(1, MOST_FRAMES)), idle, streams[1].take(Portion(1, 1))):
        with pytest.raises(Internal):
            await take
    await asyncio.gather(*deaths)
    assert not loop.alive
    with pytest.raises(Internal):
        opened(loop)
    for stream in streams:
        stream.close()
    assert loop.statistics().streams == 0
    await loop.close()
    await loop.wait_dead()
    assert not any(thread.name == "codec" for thread in threading.enumerate())


async def test_cancelling_the_start() -> None:
    """Whoever gives up while the decoder is opened is let go at once, and the thread ends by itself."""
    entered, go_on = threading.Event(), threading.Event()

    def open_slowly() -> Decoder:
        entered.set()
        go_on.wait()
        return LookingDecoder(1)

    starting = asyncio.create_task(CodecLoop.start(open_slowly))
    await turns_until(entered.is_set)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    go_on.set()
    await asyncio.to_thread(join_codec_threads)


async def failing(loop: CodecLoop) -> None:
    """A stream whose step fails."""
    stream = opened(loop)
    stream.push(frames(13))
    stream.finish()
    with pytest.raises(Internal):
        await stream.take(Portion(1, MOST_FRAMES))
    stream.close()


async def test_every_step_fails() -> None:
    """A decoder that fails so many times in a row is dead; one that can still decode is not."""
    loop, decoder = await start()
    decoder.fail_on = 13
    for _ in range(3):
        for _ in range(MOST_FAILURES - 1):
            await failing(loop)
        stream = opened(loop)
        stream.push(frames(1))
        stream.finish()
        assert len(await stream.take(Portion(1, MOST_FRAMES)))
        stream.close()
    assert loop.alive
    for _ in range(MOST_FAILURES):
        assert loop.alive
        await failing(loop)
    await loop.wait_dead()
    with pytest.raises(Internal):
        opened(loop)
    await loop.close()
    join_codec_threads()


async def test_a_step_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The codec is dead then, whoever waits is told so, and closing it waits for nobody."""
    monkeypatch.setattr(patience, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr("orpheus_ws.codec.loop.CLOSE_SECONDS", 0.01)
    loop, decoder = await start()
    decoder.go_on.clear()
    streams = [opened(loop) for _ in range(2)]
    streams[0].push(frames(1, 2))
    for stream in streams:
        with pytest.raises(Internal):
            await stream.take(Portion(1, MOST_FRAMES))
    await loop.wait_dead()
    assert loop.statistics().busy_seconds > 0
    for stream in streams:
        stream.close()
    await loop.close()
    decoder.go_on.set()
    await asyncio.to_thread(join_codec_threads)


async def test_closing_waits_for_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec that is closed while a step hangs lets go of it after a while."""
    monkeypatch.setattr("orpheus_ws.codec.loop.CLOSE_SECONDS", 0.01)
    loop, decoder = await start()
    decoder.go_on.clear()
    stream = opened(loop)
    stream.push(frames(1, 2))
    taking = asyncio.create_task(stream.take(Portion(1, MOST_FRAMES)))
    await turns_until(decoder.entered.is_set)
    await loop.close()
    with pytest.raises(Internal):
        await taking
    decoder.go_on.set()
    await asyncio.to_thread(join_codec_threads)


@pytest.mark.parametrize("busy", [False, True])
async def test_a_process_that_was_stopped(monkeypatch: pytest.MonkeyPatch, busy: bool) -> None:
    """Only steps that were seen often enough hang: not long ones, not many, and not none."""
    monkeypatch.setattr(patience, "LOOK_SECONDS", 0.0)
    looks, hung = 0, asyncio.Event()

    def since() -> float | None:
        nonlocal looks
        looks += 1
        # A new step now and then, an hour ago by its own account.
        return (
            time.perf_counter() - 3600 if busy and looks % MOST_LOOKS == 0 else looks // MOST_LOOKS
        )

    watch = StepWatch(since if busy else lambda: None, hung.set)
    for _ in range(5 * MOST_LOOKS):
        await asyncio.sleep(0)
    watch.stop()
    assert not hung.is_set()


async def test_a_decoder_that_ends_the_thread_while_opening() -> None:
    """A decoder that leaves instead of opening ends `start` as well; nobody waits for it."""

    class LeftError(BaseException):
        pass

    def leave() -> Decoder:
        raise LeftError

    with pytest.raises(LeftError):
        await CodecLoop.start(leave)
    await asyncio.to_thread(join_codec_threads)


def test_an_event_loop_that_is_gone() -> None:
    """A thread whose event loop was closed without it ends by itself, while opening and after a step."""
    decoder = LookingDecoder(1)
    decoder.go_on.clear()

    def slow() -> Decoder:
        decoder.entered.set()
        assert decoder.go_on.wait(10)
        return decoder

    async def leave_it_opening() -> None:
        starting = asyncio.create_task(CodecLoop.start(slow))
        await turns_until(decoder.entered.is_set)
        starting.cancel()

    async def leave_it_decoding() -> None:
        decoder.go_on.set()
        loop = await CodecLoop.start(slow)
        decoder.entered.clear()
        decoder.go_on.clear()
        stream = opened(loop)
        stream.push(frames(1, 2))
        taking = asyncio.create_task(stream.take(Portion(1, MOST_FRAMES)))
        await turns_until(decoder.entered.is_set)
        taking.cancel()

    for scenario in (leave_it_opening, leave_it_decoding):
        asyncio.run(scenario())
        decoder.go_on.set()
        join_codec_threads()
