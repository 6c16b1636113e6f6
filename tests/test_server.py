"""The server over real sockets: utterances, cancelling."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgpack
import pytest
from msgspec import UNSET
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.pcm import Chunk
from orpheus_ws.trace import clock
from tests.harness import JSON, MSGPACK, audio, pcm, peer, server, turns_until
from tests.server_peers import AT_ONCE, SENTENCE, STEPPED, metric, one, socket_of

# Speaking -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("subprotocol", [MSGPACK, JSON])
async def test_an_utterance(subprotocol: str) -> None:
    """Text gives started, segment, gapless audio and done, in msgpack and in JSON alike."""
    async with one(subprotocol=subprotocol) as (_, connected):
        await connected.say("a", SENTENCE)
        received = await connected.utterance("a")
    kinds = [type(message).__name__ for message in received if not isinstance(message, m.Audio)]
    assert kinds == ["Started", "Segment", "Done"]
    done = received[-1]
    assert isinstance(done, m.Done)
    assert done.reason == "end"
    assert done.chars == len(SENTENCE)
    assert done.audio_ms == pytest.approx(len(pcm(received)) / 2 / 24)
    assert done.ttfa_ms is not None
    assert done.rtf is not None


async def test_no_subprotocol_is_json() -> None:
    """A client that offers no subprotocol is answered in JSON."""
    async with server() as started, connect(started.address.url, compression=None) as socket:
        ready = json.loads(await socket.recv())
        assert ready["type"] == "ready"
        await socket.send(json.dumps({"type": "end", "context": "x"}))
        assert json.loads(await socket.recv()) == {
            "type": "done",
            "context": "x",
            "reason": "empty",
            "audio_ms": 0.0,
            "chars": 0,
        }


async def test_plain_msgpack_client() -> None:
    """A client written with nothing but the `msgpack` package speaks the protocol."""
    async with (
        server() as started,
        connect(
            started.address.url, subprotocols=[Subprotocol(MSGPACK)], compression=None
        ) as socket,
    ):
        ready = msgpack.unpackb(await socket.recv())
        assert ready["type"] == "ready"
        assert "tara" in ready["voices"]
        await socket.send(msgpack.packb({"type": "text", "context": "a", "text": "Hi."}))
        await socket.send(msgpack.packb({"type": "end", "context": "a"}))
        kinds = []
        while "done" not in kinds:
            message = msgpack.unpackb(await socket.recv())
            kinds.append(message["type"])
            if message["type"] == "audio":
                assert set(message) == {"type", "context", "seq", "offset", "pcm"}
        assert kinds[0] == "started"
        assert "audio" in kinds


async def test_words_come_out_whatever_the_messages() -> None:
    """join-fragments, tag-split: the segments say what was meant, however it was cut."""
    async with one() as (_, connected):
        for piece in ("That is so fun", "ny <lau", "gh> I can not stop.", "How are you?"):
            await connected.send(m.Text(context="a", text=piece))
        await connected.send(m.End(context="a"))
        received = await connected.utterance("a")
    assert [message.text for message in received if isinstance(message, m.Segment)] == [
        "That is so funny <laugh> I can not stop.",
        "How are you?",
    ]


async def test_held_sentence_is_spoken_without_more_text() -> None:
    """held-sentence: a finished sentence is spoken though no more text and no end comes."""
    async with one() as (_, connected):
        await connected.send(
            m.Open(context="a", segment=m.Segmentation(max_delay_ms=20)),
            m.Text(context="a", text="The first sentence is complete. "),
        )
        segment = await connected.wait_for(m.Segment)
        assert segment.text == "The first sentence is complete."


@pytest.mark.parametrize("text", ["!!! ... ???", "   \n\t ", ""])
async def test_nothing_to_say(text: str) -> None:
    """blank, only-punctuation: done with reason empty, no audio, and the socket goes on."""
    async with one() as (_, connected):
        await connected.say("a", text)
        received = await connected.utterance("a")
        assert [type(message) for message in received] == [m.Done]
        assert isinstance(received[0], m.Done)
        assert received[0].reason == "empty"
        await connected.say("b", SENTENCE)
        assert pcm(await connected.utterance("b"))


async def test_one_word_has_audio() -> None:
    """one-word: the shortest text is not silent."""
    async with one() as (_, connected):
        await connected.say("a", "Hi")
        assert len(pcm(await connected.utterance("a"))) >= 4 * 2048


async def test_contexts_in_order_one_engine_slot() -> None:
    """Contexts of a socket are spoken in the order they were opened, one at a time."""
    async with one(STEPPED) as (started, connected):
        await connected.say("first", SENTENCE)
        await connected.say("second", SENTENCE)
        received: list[m.ServerMessage] = []
        while not (
            received and isinstance(received[-1], m.Done) and received[-1].context == "second"
        ):
            received.append(await connected.receive())
            assert started.engine.statistics().active <= 1
    order = [message.context for message in audio(received)]
    assert order == sorted(order)
    assert set(order) == {"first", "second"}
    assert any(isinstance(x, m.Done) and x.context == "first" for x in received)


async def test_flushed_follows_its_audio() -> None:
    """`flushed` comes after the last audio of the text before the flush and before the rest."""
    async with one() as (_, connected):
        await connected.send(
            m.Text(context="a", text="One thing"),
            m.Flush(context="a", id="f1"),
            m.Text(context="a", text="another thing"),
            m.End(context="a"),
        )
        received = await connected.utterance("a")
    marks = [
        message.index if isinstance(message, m.Segment) else "flushed"
        for message in received
        if isinstance(message, m.Segment | m.Flushed)
    ]
    assert marks == [0, "flushed", 1]
    at = next(i for i, message in enumerate(received) if isinstance(message, m.Flushed))
    before = len(audio(received[:at]))
    assert before > 0
    assert len(audio(received[at:])) > 0


async def test_words_are_estimated_on_request() -> None:
    """With `words`, each segment is followed by times for its words within the segment."""
    async with one() as (_, connected):
        await connected.send(m.Open(context="a", words=True))
        await connected.say("a", SENTENCE)
        received = await connected.utterance("a")
    words = next(message for message in received if isinstance(message, m.Words))
    assert [word.text for word in words.words] == SENTENCE.split()
    assert words.approx
    assert words.words[-1].end_ms == pytest.approx(len(pcm(received)) / 48, abs=0.2)


async def test_no_seed_is_another_each_time() -> None:
    """Two contexts that name no seed do not sound the same; two that name the same one do."""
    async with one() as (_, connected):
        sound: list[bytes] = []
        for seed in (UNSET, UNSET, 5, 5):
            context = f"c{len(sound)}"
            await connected.send(m.Open(context=context, sampling=m.Sampling(seed=seed)))
            await connected.say(context, "Hi there.")
            sound.append(pcm(await connected.utterance(context)))
    assert sound[0] != sound[1]
    assert sound[2] == sound[3]


async def test_float_samples() -> None:
    """`pcm_f32le` is the same audio with four bytes a sample."""
    async with one() as (_, connected):
        await connected.send(m.Config(sampling=m.Sampling(seed=1)))
        await connected.say("a", "Hi there.")
        integers = pcm(await connected.utterance("a"))
        await connected.send(m.Open(context="b", encoding="pcm_f32le"))
        await connected.say("b", "Hi there.")
        floats = b"".join(message.pcm for message in audio(await connected.utterance("b")))
    assert len(floats) == 2 * len(integers)


# Cancelling ---------------------------------------------------------------------------------------


async def test_cancel_in_the_middle() -> None:
    """late-audio-after-cancel: nothing after `cancelled`; the slot is free within two steps."""
    async with one(STEPPED, "engine.options.fault=never_stops") as (started, connected):
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Audio)
        await connected.send(m.Cancel(context="a"))
        await connected.wait_for(m.Cancelled)
        turns = await turns_until(lambda: started.engine.statistics().active == 0)
        assert turns <= AT_ONCE
        await connected.send(
            m.Open(context="b", sampling=m.Sampling(max_tokens=70)),
            m.Text(context="b", text=SENTENCE),
            m.End(context="b"),
        )
        received = await connected.utterance("b")
        assert audio(received, "a") == []
        assert len(pcm(received, "b")) == 10 * 2048 * 2


async def test_cancel_while_the_engine_says_nothing() -> None:
    """A cancel frees the slot at once, whatever is waited for and whoever reads."""
    stalled = ("engine.options.fault=stalls", "engine.options.fault_requests=1")
    async with one(*stalled) as (started, connected):
        (connection,) = started._connections
        await connected.say("a", SENTENCE)
        # The engine stalls after two frames: from the second on, the next is waited for.
        await connected.wait_for(m.Audio)
        await connected.wait_for(m.Audio)
        # The client has read nothing for a while, so that the answer to its `cancel` has to wait.
        socket_of(connection).pause_writing()
        await connected.send(m.Cancel(context="a"))
        await turns_until(lambda: started.engine.statistics().active == 0)
        assert started.codec.statistics().streams == 0
        socket_of(connection).resume_writing()
        await connected.wait_for(m.Cancelled)
        await connected.say("b", SENTENCE)
        received = await connected.utterance("b")
        assert audio(received, "a") == []
        assert isinstance(received[-1], m.Done)


@pytest.mark.parametrize("chunks", [0, 1])
async def test_a_cancel_in_the_turn_of_a_chunk(chunks: int) -> None:
    """A chunk that is there before the speaker is interrupted is not sent."""
    async with one() as (started, connected):
        (connection,) = started._connections
        speak = started.synthesis.speak

        async def overtaken(*arguments: Any) -> AsyncGenerator[Chunk, None]:
            left = chunks
            async with aclosing(speak(*arguments)) as spoken:
                async for chunk in spoken:
                    if left == 0:
                        cancel = m.Cancel(context="a")
                        await connection._send_all(connection._session.receive(cancel, clock()))
                    left -= 1
                    yield chunk

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(started.synthesis, "speak", overtaken)
            await connected.send(m.Config(words=True))
            await connected.say("a", SENTENCE)
            received = await connected.utterance("a")
            assert isinstance(received[-1], m.Cancelled)
            assert len(audio(received)) == chunks
            assert await connected.fence() == []
        await connected.say("b", SENTENCE)
        assert isinstance((await connected.utterance("b"))[-1], m.Done)


async def test_messages_while_a_cancel_unwinds() -> None:
    """Whatever arrives while the speaker is still being stopped, the socket lives."""
    async with one(STEPPED, "engine.options.fault=never_stops") as (_, connected):
        for number in range(20):
            await connected.say(f"c{number}", SENTENCE)
            await connected.wait_for(m.Audio)
            await connected.send(m.Cancel(context=f"c{number}"))
            for turn in range(10):
                await connected.send(m.Ping(id=turn))
                await asyncio.sleep(0)
            await connected.wait_for(m.Cancelled)
        await connected.send(m.Open(context="last", sampling=m.Sampling(max_tokens=70)))
        await connected.say("last", SENTENCE)
        assert pcm(await connected.utterance("last"), "last")


async def test_rapid_barge_in() -> None:
    """rapid-barge-in: 20 contexts opened and cancelled at once leak nothing; the next one speaks."""
    async with one(STEPPED) as (started, connected):
        for number in range(20):
            await connected.send(
                m.Text(context=f"c{number}", text=SENTENCE), m.Cancel(context=f"c{number}")
            )
        await connected.say("last", SENTENCE)
        received = await connected.utterance("last")
        assert not any(isinstance(message, m.Error) for message in received)
        assert sum(isinstance(message, m.Cancelled) for message in received) == 20
        assert pcm(received, "last")
        await turns_until(lambda: started.engine.statistics().active == 0)
        assert started.codec.statistics().streams == 0


async def test_cancel_is_idempotent() -> None:
    """cancel-after-end: cancelling what is ended, done or unknown is neither error nor answer."""
    async with one() as (_, connected):
        await connected.say("a", SENTENCE)
        await connected.utterance("a")
        await connected.send(m.Cancel(context="a"), m.Cancel(context="b"), m.Cancel(context="*"))
        assert await connected.fence() == []


async def test_cancel_after_end_stops_speech() -> None:
    """cancel-after-end: a context whose text has ended can still be cancelled."""
    async with one(STEPPED, "engine.options.fault=never_stops") as (_, connected):
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Audio)
        await connected.send(m.Cancel(context="a", played_ms=0))
        cancelled = await connected.wait_for(m.Cancelled)
        assert cancelled.text_spoken == ""
        assert cancelled.text_remaining == SENTENCE


async def test_ghost_context() -> None:
    """ghost-context: text after the end is dropped with one warning until an explicit open."""
    async with one() as (_, connected):
        await connected.say("a", SENTENCE)
        await connected.utterance("a")
        for _ in range(3):
            await connected.send(m.Text(context="a", text="ghost"))
        assert [getattr(x, "code", None) for x in await connected.fence()] == ["closed_context"]
        await connected.send(m.Open(context="a"))
        await connected.say("a", SENTENCE)
        assert pcm(await connected.utterance("a"))


async def test_disconnect_in_the_middle() -> None:
    """disconnect-mid-speech: within two steps of the loss being seen the engine is idle."""
    async with server(STEPPED, "engine.options.fault=never_stops") as started:
        async with peer(started.address.url) as connected:
            await connected.say("a", SENTENCE)
            await connected.wait_for(m.Audio)
            connected.socket.transport.abort()
            await turns_until(lambda: started.admission.active == 0)
            turns = await turns_until(lambda: started.engine.statistics().active == 0)
            assert turns <= AT_ONCE
            tokens = started.engine.statistics().tokens
        await turns_until(lambda: not started._connections)
        assert started.codec.statistics().streams == 0
        assert started.engine.statistics().tokens == tokens
        assert await metric(started, "orpheus_contexts_total", outcome="disconnected") == 1
        assert await metric(started, "orpheus_orphaned_audio_seconds_total") > 0
