"""Cartesia's speech socket: its translator, and the socket as its clients use it."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage
from orpheus_ws.server import Server
from orpheus_ws.surfaces import Opening, Translator
from orpheus_ws.surfaces.cartesia import PATH, SURFACES
from tests.harness import server, turns_until
from tests.server_peers import SENTENCE, STEPPED, metric
from tests.surface_clients import BYTES_PER_SECOND, LEAD_SECONDS, SEGMENT_SECONDS, JsonClient
from tests.translators import receive, send

VOICES = ("tara", "leo")
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}


def translator() -> Translator:
    """A fresh one."""
    opening = Opening(parameters={}, query={}, headers={}, subprotocol=None, voices=VOICES)
    return SURFACES[0].open(opening)


def request(context: str = "a", transcript: Any = "Hi.", **fields: Any) -> dict[str, Any]:
    """What clients send of a turn; its last part, unless it says that it continues."""
    voice = {"mode": "id", "id": "f786b574-daa5-4673-aa0c-cbe3e8534c02"}
    usual = {"model_id": "sonic-3", "language": "en", "voice": voice, "output_format": RAW}
    return usual | {"context_id": context, "transcript": transcript} | fields


def part(context: str = "a", transcript: Any = "Hi.", **fields: Any) -> dict[str, Any]:
    """The same of a turn that goes on."""
    return request(context, transcript, **fields) | {"continue": True}


def spoken(messages: Sequence[m.ClientMessage]) -> str:
    """The text of a context, as it is spoken: what is flushed is apart."""
    return "".join(
        message.text if isinstance(message, m.Text) else "|" * isinstance(message, m.Flush)
        for message in messages
    )


def refused(translated: Translator, frame: str | bytes | dict[str, Any]) -> BadMessage:
    """The error that a frame gives."""
    with pytest.raises(BadMessage) as refusal:
        translated.receive(json.dumps(frame) if isinstance(frame, dict) else frame)
    assert refusal.value.close_code is None
    return refusal.value


# The translator -----------------------------------------------------------------------------------


def test_a_turn() -> None:
    """The first transcript opens the context, and what does not continue it ends it."""
    translated = translator()
    opened = m.Open(
        context="a",
        voice="tara",
        encoding="pcm_s16le",
        sample_rate=24000,
        segment=m.Segmentation(),
        words=True,
    )
    assert receive(translated, part(transcript="Hi ", add_timestamps=True)) == [
        opened,
        m.Text(context="a", text="Hi "),
    ]
    assert receive(translated, request(transcript="")) == [m.End(context="a")]
    assert send(translated, m.Done(context="a", reason="end", audio_ms=1, chars=1)) == [
        {"type": "done", "context_id": "a", "status_code": 200, "done": True}
    ]
    assert isinstance(receive(translated, request())[0], m.Open)


@pytest.mark.parametrize(
    ("voice", "ours"),
    [("Leo", "leo"), ({"mode": "id", "id": "leo"}, "leo"), ({"mode": "id", "id": "x"}, "tara"),
     ({"mode": "embedding", "embedding": [0.1]}, "tara"), (None, "tara")],
)  # fmt: skip
def test_voices(voice: Any, ours: str) -> None:
    """Names that are ours are found in either form; a number of Cartesia's is the default."""
    opened = receive(translator(), request(voice=voice))[0]
    assert isinstance(opened, m.Open)
    assert opened.voice == ours


@pytest.mark.parametrize("rate", [8000, 16000, 24000, 48000])
@pytest.mark.parametrize("name", ["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"])
def test_formats(name: str, rate: int) -> None:
    """All encodings of theirs are had at all rates of ours."""
    output = {"container": "raw", "encoding": name, "sample_rate": rate}
    opened = receive(translator(), request(output_format=output))[0]
    assert isinstance(opened, m.Open)
    assert (f"pcm_{opened.encoding}".replace("pcm_pcm", "pcm"), opened.sample_rate) == (name, rate)


@given(st.lists(st.text(alphabet="aB .,", min_size=1, max_size=6), min_size=1, max_size=30))
def test_transcripts_are_one_text(pieces: list[str]) -> None:
    """But for spaces where sentences meet, it is what the transcripts are together."""
    parts = [part(transcript=piece) for piece in pieces]
    text = spoken(receive(translator(), *parts))
    assert text.replace(" ", "") == "".join(pieces).replace(" ", "")
    assert ".B" not in text or ".B" in "|".join(pieces)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["Well, friend.", "How are you?"], "Well, friend. How are you?"),
        (["In 2024.", "Then"], "In 2024. Then"),
        (['He said "Hi!"', "“Oh.”"], 'He said "Hi!" “Oh.”'),
        (["Hi.", "", "Oh"], "Hi. Oh"),
        (["It is 3.", "14"], "It is 3.14"),
        (["www.", "example.com"], "www.example.com"),
        (["Hi. ", "Oh"], "Hi. Oh"),
        (["Hel", "lo"], "Hello"),
    ],
)
def test_sentences_without_a_space_between(pieces: list[str], text: str) -> None:
    """Two sentences are kept apart, and nothing else."""
    parts = [part(transcript=piece) for piece in pieces]
    assert spoken(receive(translator(), *parts)) == text


def test_whole_transcripts() -> None:
    """Without a delay every transcript is spoken for itself; with one they are buffered so long."""
    parts = [part(transcript=each, max_buffer_delay_ms=0) for each in ("Yes, 2.", "No")]
    translated = translator()
    assert spoken(receive(translated, *parts)) == "Yes, 2.| No|"
    flushes = [message for message in receive(translated, *parts) if isinstance(message, m.Flush)]
    assert [flush.id for flush in flushes] == [3, 4]
    opened = receive(translator(), part(max_buffer_delay_ms=3000))[0]
    assert isinstance(opened, m.Open)
    assert opened.segment == m.Segmentation(max_delay_ms=3000)


def test_a_flush() -> None:
    """It is answered under its number, and nothing is over."""
    translated = translator()
    messages = receive(translated, part(flush=True))
    assert messages[1:] == [m.Text(context="a", text="Hi."), m.Flush(context="a", id=1)]
    assert send(translated, m.Flushed(context="a", id=1)) == [
        {"type": "flush_done", "context_id": "a", "status_code": 206, "done": False,
         "flush_id": 1, "flush_done": True}
    ]  # fmt: skip


def test_what_is_heard() -> None:
    """Audio is base64, and times of words are seconds of the context."""
    translated = translator()
    receive(translated, request())
    words = (m.Word(text="Hi.", start_ms=1500, end_ms=1750.5),)
    chunk, times = send(
        translated,
        m.Started(context="a", handle=1, queue_ms=1),
        m.Segment(context="a", index=0, text="Hi.", offset=0),
        m.Audio(context="a", seq=0, offset=0, pcm=b"1234"),
        m.Words(context="a", words=words),
    )
    assert (chunk["type"], chunk["context_id"], chunk["done"]) == ("chunk", "a", False)
    assert base64.b64decode(chunk["data"]) == b"1234"
    assert times["type"] == "timestamps"
    assert times["word_timestamps"] == {"words": ["Hi."], "start": [1.5], "end": [1.7505]}


def test_a_cancelled_context() -> None:
    """It is not heard of again, and its id is free."""
    translated = translator()
    receive(translated, part())
    assert receive(translated, {"context_id": "a", "cancel": True}) == [m.Cancel(context="a")]
    assert send(translated, m.Cancelled(context="a", sent_ms=0)) == []
    assert isinstance(receive(translated, request())[0], m.Open)


def test_a_failed_context() -> None:
    """The error says whose it is and is no success; what continues it opens it again."""
    translated = translator()
    receive(translated, part())
    failure = m.Error(context="a", code="overloaded", message="m", retryable=True, fatal=False)
    assert send(translated, failure) == [
        {"type": "error", "context_id": "a", "status_code": 503, "done": False,
         "title": "Overloaded", "message": "m", "error_code": "overloaded"}
    ]  # fmt: skip
    assert isinstance(receive(translated, request())[0], m.Open)


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"transcript": None}, "send a transcript"),
        ({"transcript": 1}, "does not fit"),
        ({"voice": 1}, "does not fit"),
        ({"max_buffer_delay_ms": 5001}, "does not fit"),
        ({"output_format": RAW | {"encoding": "mp3"}}, "pcm_s16le, pcm_f32le, pcm_mulaw, pcm_al"),
        ({"output_format": RAW | {"container": "wav"}}, "the only container is raw"),
        ({"generation_config": {"speed": 1.5}}, "the only speed"),
        ({"cancel": "yes"}, "does not fit"),
    ],
)
def test_what_does_not_fit_ends_its_context(fields: dict[str, Any], advice: str) -> None:
    """Clients take an error for the end, so nothing is left open behind it."""
    refusal = refused(translator(), request(**fields))
    assert advice in str(refusal)
    assert (refusal.context, refusal.cancels) == ("a", True)


@pytest.mark.parametrize(
    "frame",
    ["", "Hi.", "[]", "{}", b"{}", '{"context_id": 1}', '{"context_id": "*", "cancel": true}',
     json.dumps(request("x" * 129)), json.dumps(request("")), "[" * 100_000],
)  # fmt: skip
def test_what_names_no_context(frame: str | bytes) -> None:
    """It ends the context that its error names, the last one, and above all `*` cancels no other."""
    translated = translator()
    assert refused(translated, frame).context is None
    receive(translated, part("other"), part("latest"))
    refusal = refused(translated, frame)
    assert (refusal.context, refusal.cancels) == ("latest", True)
    told = m.Error(code="message_too_big", message="m", retryable=False, fatal=True)
    assert send(translated, told)[0]["context_id"] == "latest"


def test_more_for_a_complete_context() -> None:
    """It is an error, and so the context's end; to complete it once more means nothing."""
    translated = translator()
    receive(translated, request())
    for nothing in (request(transcript=""), request(transcript=" ")):
        assert receive(translated, nothing) == []
    for more in (request(), part(transcript="Oh."), part(transcript="", flush=True)):
        refusal = refused(translated, more)
        assert (refusal.context, refusal.cancels) == ("a", True)


def test_more_for_an_idle_context() -> None:
    """What the server has completed, because another context waited, is no different."""
    translated = translator()
    receive(translated, part())
    assert send(translated, m.Warn(context="a", code="context_idle", message="m")) == []
    assert refused(translated, part()).context == "a"


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.fixed_dictionaries({"id": st.one_of(st.none(), st.text(max_size=3))}),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(sorted(request(continues=1, cancel=1, flush=1))), VALUES))
def test_garbage(fields: dict[str, Any]) -> None:
    """Any fields give messages for one context, or a `BadMessage` for it."""
    frame = json.dumps(request() | fields)
    named: set[str | None] = set()
    try:
        for message in translator().receive(frame):
            assert not isinstance(message, m.Config | m.Ping | m.Close)
            named.add(message.context)
    except BadMessage as error:
        named = {error.context} - {None}
    assert all(each == fields.get("context_id", "a") for each in named)


# The socket ---------------------------------------------------------------------------------------


class Client(JsonClient):
    """A client's end."""

    @staticmethod
    def audio(frame: str | bytes) -> bytes:
        """See `JsonClient`."""
        return base64.b64decode(json.loads(frame).get("data", ""))

    async def event(self) -> dict[str, Any]:
        """The next event."""
        event: dict[str, Any] = json.loads(await self.socket.recv())
        return event

    async def until(self, *kinds: str) -> tuple[bytes, dict[str, Any]]:
        """The audio up to an event of these types, and the event."""
        heard = b""
        while (event := await self.event())["type"] not in kinds:
            assert event["type"] in ("chunk", "flush_done", "timestamps")
            heard += base64.b64decode(event.get("data", ""))
        return heard, event


def client(started: Server, **headers: str) -> connect:
    """Connect as Pipecat does, whose version is in a header."""
    return connect(
        f"ws://127.0.0.1:{started.address.port}{PATH}",
        additional_headers={"Cartesia-Version": "2026-03-01", **headers},
        compression=None,
        ping_interval=None,
    )


async def test_contexts_are_told_apart() -> None:
    """Two contexts at once, in formats of their own, each with its own end."""
    async with server() as started, client(started) as socket:
        caller = Client(socket)
        await caller.send(
            request("a", SENTENCE),
            request("b", SENTENCE, output_format=RAW | {"encoding": "pcm_f32le"}),
        )
        narrow, first = await caller.until("done")
        wide, second = await caller.until("done")
        assert (first["context_id"], second["context_id"]) == ("a", "b")
        assert len(wide) == 2 * len(narrow) > 0


async def test_the_key() -> None:
    """It is in `X-API-Key`; without it the refusal is in their shape."""
    async with server("auth.keys.a=secret") as started:
        with pytest.raises(InvalidStatus) as refusal:
            async with client(started):
                pass
        told = json.loads(refusal.value.response.body)
        assert (told["status_code"], told["error_code"]) == (401, "auth")
        async with client(started, **{"X-API-Key": "secret"}) as socket:
            await Client(socket).send(request())
            await Client(socket).until("done")


async def test_a_rate_that_we_lack() -> None:
    """It is an error of its context, and the next one is heard."""
    async with server() as started, client(started) as socket:
        caller = Client(socket)
        await caller.send(request("a", output_format=RAW | {"sample_rate": 44100}), request("b"))
        _, event = await caller.until("error")
        assert (event["context_id"], event["error_code"]) == ("a", "unsupported_format")
        assert "8000, 16000, 24000, 48000" in event["message"]
        _, event = await caller.until("done")
        assert event["context_id"] == "b"


async def test_what_does_not_fit_in_the_middle() -> None:
    """The context is over at its error, and does not keep the next one waiting."""
    async with server(STEPPED) as started, client(started) as socket:
        caller = Client(socket)
        await caller.send(part("a", SENTENCE))
        await caller.hear(0.1)
        await caller.send(request("a", transcript=7), request("b"))
        _, event = await caller.until("error")
        assert (event["context_id"], event["status_code"]) == ("a", 400)
        _, event = await caller.until("done")
        assert event["context_id"] == "b"


async def test_barge_in() -> None:
    """After `cancel` nothing is heard of the context, the next is, and what was in hand is counted."""
    async with server() as started, client(started) as socket:
        caller = Client(socket)
        await caller.send(request("a", f"{SENTENCE} " * 20))
        await caller.hear(1.5)
        await caller.send({"context_id": "a", "cancel": True}, request("b"))
        while (event := await caller.event())["context_id"] == "a":
            assert event["type"] == "chunk"
        heard, event = await caller.until("done")
        assert (heard > b"", event["context_id"]) == (True, "b")
        wasted = await metric(started, "orpheus_orphaned_audio_seconds_total")
        assert 0 < wasted <= LEAD_SECONDS + SEGMENT_SECONDS
        assert await metric(started, "orpheus_contexts_total", outcome="cancelled") == 1


async def test_barge_in_that_nobody_tells_of() -> None:
    """LiveKit leaves the turn, says the next one on another socket, and closes the first one then."""
    async with server() as started:
        before = started.engine.statistics().tokens
        async with client(started) as socket:
            await Client(socket).send(request("a", f"{SENTENCE} " * 20))
            heard = await Client(socket).hear(1.5)
            async with client(started) as another:
                await another.send(json.dumps(request("b", "Hi.")))
                await socket.close()
                await Client(another).until("done")
        await turns_until(lambda: not started._connections)
        wasted = await metric(started, "orpheus_orphaned_audio_seconds_total")
        assert 0 < wasted <= LEAD_SECONDS + SEGMENT_SECONDS
        made = (started.engine.statistics().tokens - before) / 7 * 2048 / 24_000
        most = heard / BYTES_PER_SECOND + LEAD_SECONDS + SEGMENT_SECONDS
        assert made <= most + 1.0  # the other turn
