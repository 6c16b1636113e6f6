"""The server over real sockets, with the simulated engine and codec."""

import asyncio
import contextlib
import json
import logging
import urllib.request
from collections.abc import AsyncIterator

import msgpack
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.audio import Player
from orpheus_ws.errors import StartupError
from orpheus_ws.server import Server
from orpheus_ws.server.auth import make_token
from tests.harness import JSON, MSGPACK, Peer, audio, pcm, peer, server, turns_until

SENTENCE = "The quick brown fox jumps over the lazy dog."
STEPPED = "engine.options.step_seconds=0.01"
"""The engine takes time, so that something can happen in the middle of a segment."""


async def http(started: Server, path: str, *, port: int | None = None) -> tuple[int, str]:
    """GET a path with an HTTP client that knows nothing of websockets."""

    def get() -> tuple[int, str]:
        url = f"http://127.0.0.1:{port or started.address.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def metric(started: Server, name: str, **labels: str) -> float:
    """A metric as a scraper reads it."""
    _, text = await http(started, "/metrics", port=started.address.metrics_port)
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def closed(connected: Peer) -> tuple[int, str]:
    """Wait for the server to close and return its code and reason."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await connected.receive()
    close = connected.socket.protocol.close_rcvd
    assert close is not None
    return close.code, close.reason


@contextlib.asynccontextmanager
async def one(*settings: str, subprotocol: str = MSGPACK) -> AsyncIterator[tuple[Server, Peer]]:
    """A server and one socket to it."""
    async with (
        server(*settings) as started,
        peer(started.address.url, subprotocol) as connected,
    ):
        yield started, connected


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
        received = await connected.utterance("second")
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
        steps = started.engine.statistics().steps
        await turns_until(lambda: started.engine.statistics().active == 0)
        assert started.engine.statistics().steps - steps <= 2
        await connected.send(
            m.Open(context="b", sampling=m.Sampling(max_tokens=70)),
            m.Text(context="b", text=SENTENCE),
            m.End(context="b"),
        )
        received = await connected.utterance("b")
        assert audio(received, "a") == []
        assert len(pcm(received, "b")) == 10 * 2048 * 2


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
            steps = started.engine.statistics().steps
            await turns_until(lambda: started.engine.statistics().active == 0)
            assert started.engine.statistics().steps - steps <= 2
            tokens = started.engine.statistics().tokens
        await turns_until(lambda: started.codec.statistics().streams == 0)
        assert started.engine.statistics().tokens == tokens
        assert await metric(started, "orpheus_contexts_total", outcome="disconnected") == 1
        assert await metric(started, "orpheus_orphaned_audio_seconds_total") > 0


# Engines that misbehave ---------------------------------------------------------------------------


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


async def test_bad_ids_cost_frames_not_streams() -> None:
    """Invalid ids are counted, the rest is spoken, and the context ends normally."""
    async with one("engine.options.fault=bad_ids") as (started, connected):
        await connected.say("a", SENTENCE)
        received = await connected.utterance("a")
        assert isinstance(received[-1], m.Done)
        assert pcm(received)
        assert await metric(started, "orpheus_invalid_tokens_total") > 0


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


async def test_engine_failure_is_one_contexts() -> None:
    """A request that fails ends its context with engine_failed; socket and neighbours go on."""
    async with (
        one("engine.options.fault=raises", "engine.options.fault_requests=1") as (
            started,
            connected,
        ),
        peer(started.address.url) as neighbour,
    ):
        await connected.say("a", SENTENCE)
        failed = (await connected.utterance("a"))[-1]
        assert isinstance(failed, m.Error)
        assert failed.code == "engine_failed"
        await neighbour.say("a", SENTENCE)
        assert isinstance((await neighbour.utterance("a"))[-1], m.Done)
        await connected.say("b", SENTENCE)
        assert isinstance((await connected.utterance("b"))[-1], m.Done)


async def test_engine_death() -> None:
    """When the engine dies every open context fails once and the server is not ready."""
    async with one("engine.options.fault=dies", "engine.options.fault_requests=1") as (
        started,
        connected,
    ):
        assert (await http(started, "/readyz"))[0] == 200
        await connected.say("a", SENTENCE)
        received = await connected.utterance("a")
        assert sum(isinstance(message, m.Error) for message in received) == 1
        assert (await http(started, "/readyz"))[0] == 503
        assert (await http(started, "/healthz"))[0] == 200


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
        (msgpack.packb({"type": "open", "context": "a", "lead_ms": 199}), None),
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


# Sockets ------------------------------------------------------------------------------------------


async def test_full_server() -> None:
    """full-server: one socket too many gets 503 with Retry-After, and a free slot admits again."""
    async with server("engine.capacity=2") as started, peer(started.address.url):
        async with peer(started.address.url):
            with pytest.raises(InvalidStatus) as refusal:
                await connect(started.address.url)
            assert refusal.value.response.status_code == 503
            assert refusal.value.response.headers["Retry-After"] == "1"
            assert json.loads((await http(started, "/capacity"))[1]) == {
                "max": 2,
                "active": 2,
                "draining": False,
            }
            assert (await http(started, "/readyz"))[0] == 200
        await turns_until(lambda: started.admission.active == 1)
        async with peer(started.address.url) as admitted:
            await admitted.say("a", SENTENCE)
            assert pcm(await admitted.utterance("a"))
        assert await metric(started, "orpheus_handshakes_refused_total", reason="full") == 1


async def test_refused_upgrades_hold_no_slot() -> None:
    """A handshake that fails for another reason never takes a slot."""
    async with server("engine.capacity=1") as started:
        for _ in range(3):
            with pytest.raises(InvalidStatus):
                await connect(started.address.url, subprotocols=[Subprotocol("tts.v9.morse")])
            assert (await http(started, "/v1/tts"))[0] == 426
        async with peer(started.address.url):
            assert started.admission.active == 1


async def test_keys() -> None:
    """With keys configured only their holders get in, by header or by token."""
    async with server("auth.keys.alice=secret-a") as started:
        url = started.address.url
        for headers in (
            {"Authorization": "Bearer secret-a"},
            {"Authorization": "Api-Key secret-a"},
            {"Authorization": "Token secret-a"},
            {"X-API-Key": "secret-a"},
            {"xi-api-key": "secret-a"},
        ):
            async with peer(url, headers=headers):
                pass
        token = make_token("alice", "secret-a", expires=4_000_000_000)
        async with peer(f"{url}?token={token}"):
            pass
        for wrong in ({}, {"Authorization": "Bearer secret-b"}, {"X-API-Key": ""}):
            with pytest.raises(InvalidStatus) as refusal:
                await connect(url, additional_headers=wrong)
            assert refusal.value.response.status_code == 401
        with pytest.raises(InvalidStatus):
            await connect(f"{url}?token={token}x")
        assert (await http(started, "/healthz"))[0] == 200


async def test_origins() -> None:
    """With an allow-list of origins other browsers' pages are refused with 403."""
    async with server("auth.origins=https://app.example") as started:
        with pytest.raises(InvalidStatus) as refusal:
            await connect(started.address.url, origin="https://evil.example")  # type: ignore[arg-type]
        assert refusal.value.response.status_code == 403
        async with peer(started.address.url, headers={"Origin": "https://app.example"}):
            pass


async def test_open_to_the_network_by_oversight() -> None:
    """Listening beyond loopback without keys is a start-up error that says what to set."""
    with pytest.raises(StartupError, match=r"auth\.keys"):
        async with server("server.host=0.0.0.0"):
            pass


async def test_port_in_use() -> None:
    """A taken port is a start-up error that names the setting."""
    async with server() as started:
        with pytest.raises(StartupError, match=r"server\.port"):
            async with server(f"server.port={started.address.port}"):
                pass


async def test_idle_socket_survives_unanswered_pings() -> None:
    """idle-socket: a client that answers no ping is kept, and is served when it speaks."""
    async with one("server.ping_seconds=0.01") as (started, connected):
        connected.socket.transport.pause_reading()
        (connection,) = started._connections
        pings = connection._socket.pending_pings
        await turns_until(lambda: len(pings) >= 20, limit=10_000_000)
        connected.socket.transport.resume_reading()
        await connected.say("a", SENTENCE)
        assert pcm(await connected.utterance("a"))


async def test_idle_and_session_limits() -> None:
    """A socket without an open context is closed when its idle or session time is over."""
    async with one("limits.idle_seconds=0.05") as (_, connected):
        assert await closed(connected) == (1001, "idle")
    async with one("limits.session_seconds=0.05") as (_, connected):
        assert await closed(connected) == (1001, "session_expired")


async def test_session_limit_waits_for_open_contexts() -> None:
    """An utterance that is under way when the session's time is over is spoken to its end."""
    async with one("limits.session_seconds=0.05", STEPPED) as (_, connected):
        await connected.say("a", SENTENCE)
        assert isinstance((await connected.utterance("a"))[-1], m.Done)
        assert await closed(connected) == (1001, "session_expired")


async def test_close_speaks_what_is_open() -> None:
    """`close` ends every context, speaks it, and closes with 1000."""
    async with one() as (_, connected):
        await connected.send(
            m.Text(context="a", text=SENTENCE), m.Text(context="b", text=SENTENCE), m.Close()
        )
        received = await connected.utterance("b")
        assert {x.context for x in received if isinstance(x, m.Done)} == {"a", "b"}
        assert await closed(connected) == (1000, "closed")


async def test_drain() -> None:
    """Draining refuses new sockets, closes idle ones with 1012 and lets the others finish."""
    async with one(STEPPED) as (started, connected), peer(started.address.url) as idle:
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Audio)
        draining = asyncio.create_task(started.drain())
        assert await closed(idle) == (1012, "restart")
        with pytest.raises(InvalidStatus) as refusal:
            await connect(started.address.url)
        assert refusal.value.response.status_code == 503
        assert (await http(started, "/readyz"))[0] == 503
        received = await connected.utterance("a")
        assert any(isinstance(message, m.Draining) for message in received)
        assert isinstance(received[-1], m.Done)
        assert await closed(connected) == (1012, "restart")
        await draining


async def test_slow_consumer_is_closed_and_harms_nobody() -> None:
    """A peer that reads nothing while audio is due is dropped; its neighbour hears everything."""
    settings = ("server.write_seconds=0.2", "engine.options.fault=never_stops")
    async with one(*settings) as (started, slow), peer(started.address.url) as neighbour:
        slow.socket.transport.pause_reading()
        big = m.Sampling(max_tokens=4096)
        for number in range(30):
            await slow.send(m.Open(context=f"{number}", sampling=big))
            await slow.say(f"{number}", SENTENCE)
        await turns_until(lambda: started.admission.active == 1, limit=10_000_000)
        await neighbour.send(m.Open(context="n", sampling=m.Sampling(max_tokens=70)))
        await neighbour.say("n", SENTENCE)
        assert isinstance((await neighbour.utterance("n"))[-1], m.Done)
        await turns_until(lambda: started.engine.statistics().active == 0)
        assert await metric(started, "orpheus_socket_closes_total", code="1008") == 1
        slow.socket.transport.abort()


async def test_audio_runs_at_most_lead_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is taken from the codec only when the listener has no more than `lead_ms` in hand."""
    ahead: list[float] = []

    class RecordingPlayer(Player):
        def receive(self, seconds: float, now: float) -> None:
            ahead.append(self.in_hand(now))
            super().receive(seconds, now)

    monkeypatch.setattr("orpheus_ws.server.connection.Player", RecordingPlayer)
    async with one("engine.options.fault=never_stops") as (_, connected):
        await connected.send(m.Open(context="a", lead_ms=300, sampling=m.Sampling(max_tokens=140)))
        await connected.say("a", SENTENCE)
        received = await connected.utterance("a")
    assert len(pcm(received)) == 20 * 2048 * 2
    # The very last samples are held for the fade, and follow the chunk before at once.
    assert max(ahead[:-1]) <= 0.3
    assert max(ahead) > 0.1


# Observability ------------------------------------------------------------------------------------


async def test_metrics_tell_what_happened() -> None:
    """A scrape shows sockets, latencies and counts of what was spoken, and no user text."""
    async with one() as (started, connected):
        await connected.say("a", SENTENCE)
        received = await connected.utterance("a")
        seconds = len(pcm(received)) / 48_000
        assert await metric(started, "orpheus_sockets") == 1
        assert await metric(started, "orpheus_capacity") == started.engine.capacity
        assert await metric(started, "orpheus_time_to_first_byte_seconds_count") == 1
        assert await metric(started, "orpheus_time_to_first_audio_seconds_count") == 1
        assert await metric(started, "orpheus_time_to_first_sentence_seconds_count") == 1
        assert await metric(started, "orpheus_audio_seconds_total") == pytest.approx(seconds)
        assert await metric(started, "orpheus_contexts_total", outcome="done") == 1
        assert await metric(started, "orpheus_engine_tokens") > 0
        _, text = await http(started, "/metrics", port=started.address.metrics_port)
        assert "fox" not in text


async def test_a_stuck_context_shows_while_it_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context whose engine says nothing is counted as waiting until it is cancelled."""
    monkeypatch.setattr("orpheus_ws.metrics.WAITING_SECONDS", 0.0)
    async with one("engine.options.fault=stalls", "engine.options.fault_requests=1") as (
        started,
        connected,
    ):
        # The stall comes after two frames, which this codec would decode at once.
        await connected.send(m.Open(context="a"))
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Started)
        assert await metric(started, "orpheus_live_contexts", state="speaking") == 1
        await connected.send(m.Cancel(context="a"))
        await connected.wait_for(m.Cancelled)
        await turns_until(lambda: started.engine.statistics().active == 0)
        assert await metric(started, "orpheus_live_contexts", state="speaking") == 0
        assert await metric(started, "orpheus_contexts_waiting_over_1s") == 0


async def test_a_stalled_engine_is_given_up() -> None:
    """An engine that says nothing for too long fails the context instead of hanging it."""
    async with one("engine.options.fault=stalls", "engine.options.fault_requests=1") as (
        started,
        connected,
    ):
        started.synthesis._stall_seconds = 0.05
        await connected.say("a", SENTENCE)
        failed = (await connected.utterance("a"))[-1]
        assert isinstance(failed, m.Error)
        assert failed.code == "engine_failed"


async def test_logs_hold_no_user_text(caplog: pytest.LogCaptureFixture) -> None:
    """Neither words nor keys nor context names are logged, in good times and in bad."""
    caplog.set_level(logging.DEBUG, logger="orpheus_ws")
    async with one("auth.anonymous=true", "engine.options.fault=raises") as (_, connected):
        await connected.say("marked-context", "Marked words here.")
        await connected.utterance("marked-context")
        await connected.socket.send(msgpack.packb({"type": "marked-type", "marked-key": 1}))
        await connected.fence()
    assert caplog.records
    for record in caplog.records:
        assert "marked" not in str(vars(record)).lower()


async def test_nothing_is_left_behind() -> None:
    """After sockets have come and gone, slots, streams, contexts and tasks are as at the start."""
    async with server(STEPPED) as started:
        before = len(asyncio.all_tasks())
        for _ in range(5):
            async with peer(started.address.url) as connected:
                await connected.say("a", SENTENCE)
                await connected.wait_for(m.Audio)
        await turns_until(lambda: started.admission.active == 0)
        await turns_until(lambda: len(asyncio.all_tasks()) == before)
        assert started.engine.statistics().active == 0
        assert started.codec.statistics().streams == 0
        assert not started._connections
        for state in ("open", "queued", "speaking", "starved"):
            assert await metric(started, "orpheus_live_contexts", state=state) == 0
