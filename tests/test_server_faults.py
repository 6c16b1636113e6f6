"""The server over real sockets: engines that misbehave, and bad input."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence

import msgpack
import pytest

from orpheus_ws import messages as m
from orpheus_ws.engine import Prompt
from orpheus_ws.server import Server
from orpheus_ws.tokens import CODES_PER_FRAME, END_OF_SPEECH, FRAME_SECONDS, frame_ids
from tests.harness import JSON, MSGPACK, Peer, pcm, peer, turns_until
from tests.server_peers import SENTENCE, STEPPED, closed, metric, one

# Engines that misbehave ---------------------------------------------------------------------------


async def utterance_of(
    groups: Sequence[list[int]], started: Server, connected: Peer
) -> list[m.ServerMessage]:
    """What is heard of an engine that answers with just these ids, and ends."""

    async def generate(_prompt: Prompt) -> AsyncGenerator[list[int], None]:
        for group in (*groups, [END_OF_SPEECH]):
            yield group

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(started.engine, "generate", generate)
        await connected.say("a", SENTENCE)
        return await connected.utterance("a")


async def test_never_stops() -> None:
    """never-stops: the segment ends at max_tokens with a warning and the context goes on."""
    async with one("engine.options.fault=never_stops", "engine.options.fault_requests=1") as (
        started,
        connected,
    ):
        await connected.send(m.Open(context="a", sampling=m.Sampling(max_tokens=350)))
        await connected.say("a", f"{SENTENCE} {SENTENCE}")
        received = await connected.utterance("a")
        await turns_until(lambda: started.engine.statistics().active == 0)
    assert [x.code for x in received if isinstance(x, m.Warn)] == ["segment_length"]
    assert sum(isinstance(message, m.Segment) for message in received) == 2
    done = received[-1]
    assert isinstance(done, m.Done)
    assert done.reason == "length"


async def test_an_engine_that_ignores_max_tokens() -> None:
    """The segment ends at max_tokens also if the engine would say more, and is left."""
    left: list[int] = []

    async def generate(_prompt: Prompt) -> AsyncGenerator[list[int], None]:
        said = 0
        try:
            while said < 4096:
                yield frame_ids([said + 1] * CODES_PER_FRAME)
                said += CODES_PER_FRAME
        finally:
            left.append(said)

    async with one() as (started, connected):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(started.engine, "generate", generate)
            await connected.send(m.Open(context="a", sampling=m.Sampling(max_tokens=70)))
            await connected.say("a", SENTENCE)
            received = await connected.utterance("a")
        assert len(pcm(received)) == 10 * 2048 * 2
        assert [x.code for x in received if isinstance(x, m.Warn)] == ["segment_length"]
        # The group that makes the budget full is the last that is asked for.
        assert left == [70 - CODES_PER_FRAME]


async def test_loop_then_more() -> None:
    """repetition-loop, loop-then-more: a loop is stopped within 2 s, the rest is spoken."""
    # Request 0 is the probe at start-up.
    async with one("engine.options.fault=loop", "engine.options.fault_requests=1") as (
        started,
        connected,
    ):
        await connected.say("a", f"{SENTENCE} {SENTENCE} {SENTENCE}")
        received = await connected.utterance("a")
        await turns_until(lambda: started.engine.statistics().active == 0)
    assert [x.code for x in received if isinstance(x, m.Warn)] == ["segment_loop"]
    starts = [message.offset for message in received if isinstance(message, m.Segment)]
    assert len(starts) == 3
    # Two good frames, three that will repeat, 2 s of repetition, and what one job decodes ahead.
    assert starts[1] <= (2 + 3 + 23.5 + 8) * 2048
    done = received[-1]
    assert isinstance(done, m.Done)
    assert done.reason == "loop"


async def test_a_long_pause_is_no_loop() -> None:
    """A pause after a sound that came twice is no loop, though it is all the same."""
    silence = [[0] * CODES_PER_FRAME] * 60
    sounds = [[code] * CODES_PER_FRAME for code in (1, 2, 1, 2)]
    async with one() as (started, connected):
        groups = [frame_ids(frame) for frame in (*sounds, *silence, *sounds)]
        received = await utterance_of(groups, started, connected)
    assert not [message for message in received if isinstance(message, m.Warn)]
    assert len(pcm(received)) == (2 * len(sounds) + len(silence)) * 2048 * 2


async def test_bad_ids_cost_frames_not_streams() -> None:
    """Invalid ids are counted, the rest is spoken, and the context ends normally."""
    async with one("engine.options.fault=bad_ids") as (started, connected):
        await connected.say("a", SENTENCE)
        received = await connected.utterance("a")
        assert isinstance(received[-1], m.Done)
        assert pcm(received)
        assert await metric(started, "orpheus_invalid_tokens_total") > 0


async def test_what_ids_cost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Whole frames are heard, and the log has what was not."""
    caplog.set_level(logging.INFO, logger="orpheus_ws")
    whole = [frame_ids([code] * CODES_PER_FRAME) for code in range(1, 5)]
    first, *others = whole
    groups = [[*first[:3], 1234, *first[3:]], *others, first[:5]]
    async with one() as (started, connected):
        received = await utterance_of(groups, started, connected)
        assert await metric(started, "orpheus_invalid_tokens_total") == 1
        assert await metric(started, "orpheus_frames_total") == len(whole)
    assert len(pcm(received)) == len(whole) * 2048 * 2
    (line,) = [vars(record) for record in caplog.records if record.message == "context ended"]
    assert (line["invalid_tokens"], line["dropped_tokens"], line["tokens"]) == (1, 5, 35)


async def test_the_real_time_factor_is_the_engines() -> None:
    """What is generated over what the engine took for it, whoever waits for whom besides."""
    now = 1000.0

    async def generate(_prompt: Prompt) -> AsyncGenerator[list[int], None]:
        nonlocal now
        for code in range(1, 11):
            now += 0.2
            yield frame_ids([code] * CODES_PER_FRAME)
        yield [END_OF_SPEECH]

    async with one() as (started, connected):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(started.engine, "generate", generate)
            patch.setattr("orpheus_ws.synthesis.clock", lambda: now)
            await connected.say("a", f"{SENTENCE} {SENTENCE}")
            done = (await connected.utterance("a"))[-1]
        assert isinstance(done, m.Done)
        assert done.rtf == round(FRAME_SECONDS / 0.2, 2)
        assert await metric(started, "orpheus_real_time_factor_count") == 2
        factors = await metric(started, "orpheus_real_time_factor_sum")
        assert factors == pytest.approx(2 * FRAME_SECONDS / 0.2)


async def test_no_audio_is_tried_twice() -> None:
    """A segment without frames is tried once more, then the context ends with no_audio."""
    async with one("engine.options.fault=empty", "engine.options.fault_requests=1,2") as (
        _,
        connected,
    ):
        await connected.say("a", SENTENCE)
        failed = (await connected.utterance("a"))[-1]
        assert isinstance(failed, m.Error)
        assert (failed.code, failed.retryable, failed.fatal) == ("no_audio", True, False)
        await connected.say("b", SENTENCE)
        assert pcm(await connected.utterance("b"))


async def test_no_audio_once_is_healed() -> None:
    """A segment whose first attempt gives no frame is spoken by the second."""
    async with one("engine.options.fault=empty", "engine.options.fault_requests=1") as (
        _,
        connected,
    ):
        await connected.say("a", SENTENCE)
        received = await connected.utterance("a")
        assert isinstance(received[-1], m.Done)
        assert pcm(received)


async def test_the_second_attempt_has_another_seed() -> None:
    """An engine that has nothing to say for a seed would have nothing for it again."""
    asked: list[Prompt] = []

    async def generate(prompt: Prompt) -> AsyncGenerator[list[int], None]:
        asked.append(prompt)
        if prompt.seed != asked[0].seed:
            yield frame_ids([1] * CODES_PER_FRAME)
        yield [END_OF_SPEECH]

    async with one() as (started, connected):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(started.engine, "generate", generate)
            await connected.say("a", "Hi.")
            received = await connected.utterance("a")
    assert pcm(received)
    assert [prompt.text for prompt in asked] == ["Hi.", "Hi."]


async def test_an_engine_that_is_cancelled_inside() -> None:
    """An engine whose own work is cancelled fails the context; it does not silence the socket."""

    async def generate(_prompt: Prompt) -> AsyncGenerator[list[int], None]:
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        future.cancel()
        yield await future

    async with one() as (started, connected):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(started.engine, "generate", generate)
            await connected.say("a", SENTENCE)
            failed = (await connected.utterance("a"))[-1]
            assert isinstance(failed, m.Error)
            assert failed.code == "engine_failed"
        await connected.say("b", SENTENCE)
        assert isinstance((await connected.utterance("b"))[-1], m.Done)


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\xc1", 1007),
        (b"\x81\xa4type", 1007),
        ("{}", 1003),
        (b"\xa5" + b"x" * 5, None),
        (msgpack.packb({"type": "nonsense"}), None),
        (msgpack.packb({"type": "text", "context": "a"}), None),
        (msgpack.packb({"type": "text", "context": "a", "text": "b", "colour": "red"}), None),
        (msgpack.packb({"type": "text", "context": "a", "text": "x" * 65_536}), 1009),
    ],
)
async def test_bad_messages(frame: bytes | str, code: int | None) -> None:
    """A message that is not ours gets bad_message; the socket closes only where it must."""
    async with one() as (started, connected), peer(started.address.url) as neighbour:
        await neighbour.say("n", SENTENCE)
        await connected.socket.send(frame)
        error = await connected.receive()
        assert isinstance(error, m.Error)
        assert (error.code, error.context) == ("bad_message", None)
        assert error.fatal == (code is not None)
        if code is not None:
            assert await closed(connected) == (code, "bad_message")
        else:
            await connected.say("a", SENTENCE)
            assert pcm(await connected.utterance("a"))
        assert isinstance((await neighbour.utterance("n"))[-1], m.Done)


@pytest.mark.parametrize(
    "unfit", [{"played_ms": -0.5}, {"played_ms": 9e7}, {"played_ms": "x"}, {"playedMs": 700}]
)
@pytest.mark.parametrize("subprotocol", [MSGPACK, JSON])
async def test_a_cancel_is_never_lost(subprotocol: str, unfit: dict[str, object]) -> None:
    """A `cancel` that does not fit stops what is being spoken, after a warning."""
    endless = "engine.options.fault=never_stops"
    async with one(STEPPED, endless, subprotocol=subprotocol) as (started, connected):
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Audio)
        content = {"type": "cancel", "context": "a"} | unfit
        packed = msgpack.packb(content) if subprotocol == MSGPACK else json.dumps(content)
        await connected.socket.send(packed)
        *_, warning, cancelled = await connected.utterance("a")
        assert isinstance(warning, m.Warn)
        assert (warning.code, warning.context) == ("bad_message", "a")
        assert isinstance(cancelled, m.Cancelled)
        assert cancelled.text_spoken is None
        assert await connected.fence() == []
        await turns_until(lambda: started.engine.statistics().active == 0)


async def test_a_message_far_too_big_never_reaches_memory() -> None:
    """Beyond four times the limit the connection is failed with 1009 at once."""
    async with one() as (_, connected):
        await connected.socket.send(b"\xc4" * 300_000)
        assert (await closed(connected))[0] == 1009


@pytest.mark.parametrize(
    ("opening", "code"),
    [
        (m.Open(context="a", voice="nobody"), "unknown_voice"),
        (m.Open(context="a", encoding="mp3"), "unsupported_format"),
        (m.Open(context="a", sample_rate=44_100), "unsupported_format"),
        (m.Open(context="*"), "bad_message"),
        (m.Open(context="a", lead_ms=199), "bad_message"),
        (m.Open(context="a", sampling=m.Sampling(temperature=5)), "bad_message"),
    ],
)
async def test_bad_opens(opening: m.Open, code: str) -> None:
    """An open that cannot be served fails its context with a typed error; the socket lives."""
    async with one() as (_, connected):
        await connected.send(opening, m.Text(context=opening.context, text="Lost."))
        replies = await connected.fence()
        assert isinstance(replies[0], m.Error)
        assert (replies[0].code, replies[0].context) == (code, opening.context)
        assert [x.code for x in replies[1:] if isinstance(x, m.Warn)] == ["closed_context"]
        await connected.say("b", SENTENCE)
        assert pcm(await connected.utterance("b"))


async def test_limits_of_contexts_and_text() -> None:
    """One context or character too many is a typed error for that context alone."""
    async with one("limits.contexts=2", "limits.text_chars=100") as (_, connected):
        for context in ("a", "b", "c"):
            await connected.send(m.Open(context=context))
        (error,) = await connected.fence()
        assert isinstance(error, m.Error)
        assert (error.code, error.context, error.retryable) == ("context_limit", "c", True)
        await connected.send(m.Text(context="a", text="x" * 100))
        assert await connected.fence() == []
        await connected.send(m.Text(context="a", text="x"))
        (error,) = await connected.fence()
        assert isinstance(error, m.Error)
        assert (error.code, error.context) == ("text_too_long", "a")


async def test_text_after_end() -> None:
    """Text after `end` is dropped with one warning; what came before is spoken."""
    async with one() as (_, connected):
        await connected.say("a", SENTENCE)
        await connected.send(m.Text(context="a", text="Too late."), m.End(context="a"))
        received = await connected.utterance("a") + await connected.fence()
    assert [x.code for x in received if isinstance(x, m.Warn)] == ["closed_context"]
    assert [x.text for x in received if isinstance(x, m.Segment)] == [SENTENCE]
