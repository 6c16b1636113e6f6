"""The codec loop: every sample once and in order, whatever happens at the same time."""

import asyncio
import gc
import random
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.audio import MOST_FRAMES, Portion
from orpheus_ws.codec import CodecStream, Decoder, open_decoder
from orpheus_ws.codec.loop import CodecLoop
from orpheus_ws.codec.simulated import periods, tone
from orpheus_ws.config import CodecConfig
from orpheus_ws.errors import Internal, Overloaded, StartupError
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import SAMPLES_PER_FRAME, Frame
from tests.harness import turns_until
from tests.looking_decoder import (
    ALL,
    LookingDecoder,
    frames,
    heard,
    join_codec_threads,
    opened,
    start,
)


async def test_every_frame_once() -> None:
    """N frames pushed at once come out as N frames, in order, for N from 0 to 40."""
    loop, _ = await start()
    for count in range(41):
        stream = opened(loop)
        stream.push(frames(*range(1, count + 1)))
        stream.finish()
        taken = []
        while len(samples := await stream.take(ALL)):
            taken.append(samples)
        stream.close()
        assert heard(taken) == list(range(1, count + 1))
        assert len(await loop_take_after_end(loop)) == 0
    await loop.close()


async def loop_take_after_end(loop: CodecLoop) -> Samples:
    """What `take` gives on a finished, empty stream, asked twice."""
    stream = opened(loop)
    stream.finish()
    assert len(await stream.take(ALL)) == 0
    again = await stream.take(ALL)
    stream.close()
    return again


async def push_all(stream: CodecStream, codes: list[int], chance: random.Random) -> None:
    """Push frames in pieces with turns of the event loop between them."""
    position = 0
    while position < len(codes):
        size = chance.randrange(1, 6)
        stream.push(frames(*codes[position : position + size]))
        position += size
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
    stream.finish()


async def one_stream(loop: CodecLoop, number: int, chance: random.Random) -> None:
    """A stream of random length, taken in a random rhythm, that may leave early."""
    codes = [number * 100 + n for n in range(1, chance.randrange(1, 30))]
    leave_early = chance.random() < 0.2
    stream = opened(loop)
    pushing = asyncio.create_task(push_all(stream, codes, chance))
    taken: list[Samples] = []
    while len(
        samples := await stream.take(
            Portion(1 + chance.randrange(3), 3 + chance.randrange(9), chance.choice([0.0, 3600.0]))
        )
    ):
        taken.append(samples)
        if leave_early:
            break
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
    await pushing
    stream.close()
    assert heard(taken) == (codes[: len(heard(taken))] if leave_early else codes)


@given(seed=st.integers(0, 2**32), streams=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_any_interleaving(seed: int, streams: int) -> None:
    """Streams that push, take, pause and leave in any order each get all of their own frames."""

    async def scenario() -> None:
        loop, _ = await start(slots=streams)
        chance = random.Random(seed)
        for _ in range(2):
            await asyncio.gather(*(one_stream(loop, number, chance) for number in range(streams)))
        assert loop.statistics().streams == 0
        await loop.close()

    asyncio.run(scenario())


async def test_nothing_is_decoded_unasked() -> None:
    """Frames wait undecoded until somebody takes: a slow listener costs no decoding."""
    loop, decoder = await start()
    stream = opened(loop)
    stream.push(frames(*range(1, 30)))
    stream.finish()
    assert heard([await stream.take(ALL)]) == [1]
    assert heard([await stream.take(ALL)]) == list(range(2, 2 + MOST_FRAMES))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(decoder.batches) == 2
    stream.close()
    await loop.close()


async def test_streams_share_a_step() -> None:
    """What is ready while the thread is busy is decoded together in its next step."""
    loop, decoder = await start(slots=5)
    streams = [opened(loop) for _ in range(5)]
    decoder.go_on.clear()
    takes = []
    for number, stream in enumerate(streams):
        stream.push(frames(number + 1))
        stream.finish()
        takes.append(asyncio.create_task(stream.take(ALL)))
        if number == 0:
            await turns_until(decoder.entered.is_set)
    await asyncio.sleep(0)
    decoder.go_on.set()
    for number, take in enumerate(takes):
        assert heard([await take]) == [number + 1]
    assert decoder.batches == [1, 4]
    for stream in streams:
        stream.close()
    await loop.close()


async def test_one_turn_is_one_batch() -> None:
    """What becomes ready in one turn of the event loop is decoded in one step, idle thread or not."""
    loop, decoder = await start(slots=8)
    streams = [opened(loop) for _ in range(8)]
    takes = [asyncio.create_task(stream.take(ALL)) for stream in streams]
    await asyncio.sleep(0)
    for stream in streams:
        stream.push(frames(1, 2))
    await asyncio.gather(*takes)
    assert decoder.batches == [8]
    await loop.close()


async def test_a_step_that_hangs_shows() -> None:
    """While a decode hangs its duration can be read; when it is over, there is none."""
    loop, decoder = await start()
    assert loop.statistics().busy_seconds == 0.0
    stream = opened(loop)
    decoder.go_on.clear()
    taking = asyncio.create_task(stream.take(ALL))
    stream.push(frames(1, 2))
    await turns_until(decoder.entered.is_set)
    first = loop.statistics().busy_seconds
    assert first > 0.0
    await turns_until(lambda: loop.statistics().busy_seconds > first)
    decoder.go_on.set()
    await taking
    assert loop.statistics().busy_seconds == 0.0
    await loop.close()


async def test_a_failed_decode_fails_only_its_step() -> None:
    """A decode that raises is Internal for the streams of that step; the loop goes on."""
    loop, decoder = await start()
    decoder.fail_on = 13
    unlucky, lucky = opened(loop), opened(loop)
    unlucky.push(frames(13))
    unlucky.finish()
    with pytest.raises(Internal):
        await unlucky.take(ALL)
    with pytest.raises(Internal):
        await unlucky.take(ALL)
    unlucky.close()
    lucky.push(frames(1, 2))
    lucky.finish()
    assert heard([await lucky.take(ALL)]) == [1, 2]
    lucky.close()
    await loop.close()


async def test_a_reused_slot_is_fresh() -> None:
    """A stream that leaves in the middle of a step leaves nothing to the next one in its slot."""
    loop, decoder = await start(slots=1)
    for _ in range(50):
        first = opened(loop)
        decoder.entered.clear()
        decoder.go_on.clear()
        first.push(frames(7, 7, 7))
        taking = asyncio.create_task(first.take(ALL))
        await turns_until(decoder.entered.is_set)
        first.close()
        second = opened(loop)
        second.push(frames(1, 2, 3))
        second.finish()
        decoder.go_on.set()
        with pytest.raises(Internal):
            await taking
        assert heard([await second.take(ALL), await second.take(ALL)]) == [1, 2, 3]
        second.close()
    await loop.close()


async def test_a_slot_reused_before_its_step() -> None:
    """What waits for a step when its stream is closed is not decoded, least of all with its successor's."""
    loop, decoder = await start(slots=2)
    busy, first = opened(loop), opened(loop)
    decoder.go_on.clear()
    busy.push(frames(9))
    busy.finish()
    hearing = asyncio.create_task(busy.take(ALL))
    await turns_until(decoder.entered.is_set)
    first.push(frames(7))
    first.finish()
    leaving = asyncio.create_task(first.take(ALL))
    await asyncio.sleep(0)
    await turns_until(lambda: not loop._submitted)  # the thread has it, and is not there yet
    first.close()
    second = opened(loop)
    second.push(frames(1))
    second.finish()
    following = asyncio.create_task(second.take(ALL))
    await asyncio.sleep(0)
    await turns_until(lambda: not loop._submitted)
    decoder.go_on.set()
    assert heard([await hearing]) == [9]
    with pytest.raises(Internal):
        await leaving
    assert heard([await following]) == [1]
    assert decoder.order == [[9], [1]]
    await loop.close()


async def test_cancelling_a_take() -> None:
    """A cancelled `take` leaves a stream that can be closed, and a slot that can be used."""
    loop, _ = await start(slots=1)
    stream = opened(loop)
    taking = asyncio.create_task(stream.take(ALL))
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    stream.push(frames(1))
    stream.close()
    stream.close()
    following = opened(loop)
    following.push(frames(2))
    following.finish()
    assert heard([await following.take(ALL)]) == [2]
    following.close()
    await loop.close()


async def speak_and_go(loop: CodecLoop, sent: list[Frame]) -> None:
    """One stream from its beginning to its end."""
    stream = loop.open(seed=1, early=True)
    stream.push(sent)
    stream.finish()
    length = 0
    while len(samples := await stream.take(ALL)):
        length += len(samples)
    assert length == len(sent) * SAMPLES_PER_FRAME
    stream.close()


async def test_streams_leave_nothing_behind() -> None:
    """After 10 000 streams memory is as it was after 500, and every slot can be used."""
    loop = await CodecLoop.start(lambda: open_decoder(CodecConfig(name="simulated", slots=25)))
    sent = frames(1, 2, 3)
    tracemalloc.start()
    try:
        for number in range(420):
            if number == 20:
                gc.collect()
                before, _ = tracemalloc.get_traced_memory()
            await asyncio.gather(*(speak_and_go(loop, sent) for _ in range(25)))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000
    assert loop.statistics().streams == 0
    streams = [opened(loop) for _ in range(25)]
    with pytest.raises(Overloaded):
        opened(loop)
    for stream in streams:
        stream.close()
    await loop.close()


async def test_slots_are_bounded() -> None:
    """One stream too many is Overloaded; a closed one makes room."""
    loop, _ = await start(slots=2)
    first, _second = opened(loop), opened(loop)
    with pytest.raises(Overloaded):
        opened(loop)
    first.close()
    opened(loop)
    await loop.close()


async def test_closing_the_loop() -> None:
    """Closing fails what is open, ends the thread, and may be repeated."""
    loop, _ = await start()
    stream = opened(loop)
    taking = asyncio.create_task(stream.take(ALL))
    await asyncio.sleep(0)
    await loop.close()
    await loop.close()
    with pytest.raises(Internal):
        await taking
    with pytest.raises(Internal):
        opened(loop)
    assert not any(thread.name == "codec" for thread in threading.enumerate())


async def test_a_decoder_that_cannot_start() -> None:
    """What opening the decoder raises comes out of `start`, and no thread stays behind."""

    def broken() -> Decoder:
        raise StartupError("no weights")

    with pytest.raises(StartupError, match="no weights"):
        await CodecLoop.start(broken)
    with pytest.raises(StartupError, match="there are simulated, streaming"):
        await CodecLoop.start(lambda: open_decoder(CodecConfig(name="simulatde")))
    await asyncio.to_thread(join_codec_threads)


async def test_steps_are_reported() -> None:
    """Every step is reported once, with its streams."""
    steps: list[int] = []
    loop = await CodecLoop.start(
        lambda: LookingDecoder(2), stepped=lambda streams, _seconds: steps.append(streams)
    )
    stream = opened(loop)
    stream.push(frames(*range(1, 21)))
    stream.finish()
    while len(await stream.take(ALL)):
        pass
    stream.close()
    assert steps == [1, 1, 1, 1]
    await loop.close()


async def test_the_simulated_decoder_tells_its_frames() -> None:
    """A tone has whole periods, is told apart by its frame, and zeros are silent."""
    loop = await CodecLoop.start(lambda: open_decoder(CodecConfig(name="simulated", slots=1)))
    stream = opened(loop)
    sent: list[Frame] = [(1, 2, 3, 4, 5, 6, 7), (0,) * 7, (9, 0, 0, 0, 0, 0, 0)]
    stream.push(sent)
    stream.finish()
    samples = np.concatenate([await stream.take(ALL), await stream.take(ALL)])
    assert len(samples) == 3 * SAMPLES_PER_FRAME
    for frame, part in zip(sent, np.split(samples, 3), strict=True):
        np.testing.assert_array_equal(part, tone(periods(frame)))
    assert not np.any(samples[SAMPLES_PER_FRAME : 2 * SAMPLES_PER_FRAME])
    stream.close()
    await loop.close()


async def test_a_decoder_that_miscounts() -> None:
    """A decoder that answers for too few streams fails its step; the loop goes on."""
    loop, decoder = await start()
    whole = decoder.step
    decoder.step = lambda batch: whole(batch)[1:]  # type: ignore[method-assign]
    unlucky = opened(loop)
    unlucky.push(frames(1))
    unlucky.finish()
    with pytest.raises(Internal):
        await unlucky.take(ALL)
    unlucky.close()
    decoder.step = whole  # type: ignore[method-assign]
    lucky = opened(loop)
    lucky.push(frames(2))
    lucky.finish()
    assert heard([await lucky.take(ALL)]) == [2]
    lucky.close()
    await loop.close()
