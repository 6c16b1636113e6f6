"""The server over HTTP, with real sockets: speech as a response, and everything that can go wrong."""

import asyncio
import base64
import contextlib
import io
import json
import wave

import pytest

from orpheus_ws import messages as m
from orpheus_ws.config import load
from orpheus_ws.errors import StartupError
from orpheus_ws.server import running
from orpheus_ws.server.http_peer import BUFFER_BYTES, HttpPeer
from orpheus_ws.surfaces import HTTP_LEAD_MS
from tests.harness import pcm, peer, turns_until
from tests.http_peers import (
    LONG,
    PATHS,
    SHORT,
    SPEECH,
    CutOff,
    ask,
    body,
    calling,
    every_surface,
    http_server,
    one_call,
    speech,
)
from tests.server_peers import SENTENCE, STEPPED, http, metric, stepped_by_hand

SEGMENT_SECONDS = 3.5
"""More than `SENTENCE` takes."""
BYTES_PER_SECOND = 48_000


# Speech -------------------------------------------------------------------------------------------


@every_surface
async def test_all_that_is_written_is_heard(surface: str) -> None:
    """There is as much audio as the native protocol delivers for the same text, and it is counted."""
    async with one_call() as (started, caller):
        async with peer(started.address.url) as connected:
            await connected.say("a", SHORT)
            expected = len(pcm(await connected.utterance("a")))
        assert await ask(caller, surface, SHORT) == 200
        assert caller.headers["content-type"] == "audio/pcm"
        assert caller.headers["x-accel-buffering"] == "no"
        assert len(await caller.rest()) == expected
        assert await metric(started, "orpheus_contexts_total", outcome="done", surface=surface) == 1


@every_surface
async def test_speech_is_heard_while_it_is_spoken(surface: str) -> None:
    """The first audio comes while the engine still speaks the first sentence."""
    async with one_call() as (started, caller):
        engine = stepped_by_hand(started)
        asking = asyncio.create_task(ask(caller, surface, SENTENCE))
        await turns_until(lambda: bool(engine._running))
        engine._step(tuple(engine._running))
        assert await asking == 200
        assert await caller.hear()
        assert engine.statistics().active == 1
        while engine._running:
            engine._step(tuple(engine._running))
        assert await caller.rest()


@every_surface
async def test_one_request_after_the_other(surface: str) -> None:
    """A response that has ended has freed its slot, for the next one on the same connection."""
    async with one_call("engine.capacity=1") as (_, caller):
        for _ in range(20):
            assert await ask(caller, surface, "Hello.") == 200
            assert await caller.rest()


@every_surface
@pytest.mark.parametrize("text", [" … 🙂", " ", "\n\t\u3000", "\u200b", "\x00"])
async def test_a_text_without_words(surface: str, text: str) -> None:
    """It is a little silence: clients take a response without audio for a failure."""
    async with one_call() as (_, caller):
        assert await ask(caller, surface, text) == 200
        assert await caller.rest() == bytes(4800)


@pytest.mark.parametrize("form", ["wav", "sse"])
async def test_white_space_in_other_forms(form: str) -> None:
    """Also a WAV, and events, have audio in them."""
    asked = {"stream_format": "sse"} if form == "sse" else {"response_format": form}
    async with one_call() as (_, caller):
        assert await caller.post(SPEECH, speech(" ", **asked)) == 200
        answer = await caller.rest()
        assert (base64.b64encode(bytes(4800)) if form == "sse" else bytes(4800)) in answer


async def test_wav() -> None:
    """A WAV of unknown length, with the same samples as the raw ones."""
    async with one_call() as (_, caller):
        assert await caller.post(SPEECH, speech(SHORT)) == 200
        expected = len(await caller.rest())
        for form in ("wav", "mp3"):
            assert await caller.post(SPEECH, speech(SHORT, response_format=form)) == 200
            assert caller.headers["content-type"] == "audio/wav"
            with wave.open(io.BytesIO(await caller.rest())) as file:
                assert file.getparams()[:3] == (1, 2, 24_000)
                assert len(file.readframes(file.getnframes())) == expected


async def test_events() -> None:
    """Deltas that are together the raw samples, and at the end what was used."""
    async with one_call() as (_, caller):
        assert await caller.post(SPEECH, speech(SHORT)) == 200
        expected = len(await caller.rest())
        assert await caller.post(SPEECH, speech(SHORT, stream_format="sse")) == 200
        assert caller.headers["content-type"] == "text/event-stream"
        *lines, last = (await caller.rest()).split(b"\n\n")
        assert last == b""
        *deltas, done = [json.loads(line.removeprefix(b"data: ")) for line in lines]
        assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
        assert sum(len(base64.b64decode(delta["audio"])) for delta in deltas) == expected
        spoken = done["usage"].pop("output_tokens")
        assert abs(spoken - expected / 4096 * 7) < 1
        assert done == {
            "type": "speech.audio.done",
            "usage": {"input_tokens": len(SHORT) - 1, "total_tokens": len(SHORT) - 1 + spoken},
        }


async def test_lists() -> None:
    """The model and the voices, for those who ask."""
    async with one_call() as (_, caller):
        assert await caller.ask("GET", "/v1/models") == 200
        assert [model["id"] for model in (await caller.json())["data"]] == ["orpheus"]
        assert await caller.ask("GET", "/v1/audio/voices") == 200
        assert {"id": "tara", "name": "tara"} in (await caller.json())["voices"]


async def test_health() -> None:
    """The pages of the other port are here too, under more names."""
    async with one_call() as (started, caller):
        for path in ("/healthz", "/health", "/v1/health/live", "/readyz", "/v1/health/ready"):
            assert await caller.ask("GET", path) == 200
            assert await caller.json() == json.loads((await http(started, path))[1])
        assert await caller.ask("GET", "/capacity") == 200
        assert (await caller.json())["max"] == started.admission.capacity


# Failures -----------------------------------------------------------------------------------------


@every_surface
async def test_a_failure_before_any_audio(surface: str) -> None:
    """It has a status of its own, and the next request is answered."""
    faulty = ("engine.options.fault=empty", "engine.options.fault_requests=1,2")
    async with one_call(*faulty) as (started, caller):
        assert await ask(caller, surface, SHORT) == 500
        assert "no_audio" in str(await caller.json())
        assert await ask(caller, surface, SHORT) == 200
        assert await caller.rest()
        assert await metric(started, "orpheus_contexts_total", outcome="failed", surface=surface)


@every_surface
async def test_a_failure_after_some_audio(surface: str) -> None:
    """The response has no end, so that nobody takes it for the whole."""
    faulty = ("engine.options.fault=raises", "engine.options.fault_requests=2")
    async with one_call(*faulty) as (started, caller):
        assert await ask(caller, surface, SHORT) == 200
        with pytest.raises(CutOff):
            await caller.rest()
        await turns_until(lambda: not started._connections)
        assert started.admission.active == 0


async def test_a_failure_among_events() -> None:
    """It is told as an event, and then there is no end."""
    faulty = ("engine.options.fault=raises", "engine.options.fault_requests=2")
    async with one_call(*faulty) as (_, caller):
        assert await caller.post(SPEECH, speech(SHORT, stream_format="sse")) == 200
        with pytest.raises(CutOff) as cut:
            await caller.rest()
        last = json.loads(cut.value.heard.strip().rpartition(b"data: ")[2])
        assert last["type"] == "speech.audio.error"
        assert last["error"]["code"] == "engine_failed"


@every_surface
async def test_the_engine_dies(surface: str) -> None:
    """Whoever has heard nothing is told, whoever hears something is cut off, and nobody comes in."""
    deadly = ("engine.options.fault=dies", "engine.options.fault_requests=1")
    async with one_call(*deadly) as (started, caller):
        if await ask(caller, surface, LONG) == 200:
            with pytest.raises(CutOff):
                await caller.rest()
        else:
            assert caller.status == 500
            assert "engine_failed" in str(await caller.json())
        await started.wait_dead()
        async with calling(started) as other:
            assert await ask(other, surface, SHORT) == 503
            assert "dead" in str(await other.json())


@every_surface
async def test_leaving_frees_the_slot(surface: str) -> None:
    """Whoever leaves stops the engine, and only then somebody else gets in; what nobody heard is counted."""
    async with one_call(STEPPED, "engine.options.fault=never_stops") as (started, caller):
        assert await ask(caller, surface, LONG) == 200
        assert await caller.hear()
        caller.leave()
        await turns_until(lambda: started.admission.active == 0)
        assert started.engine.statistics().active == 0
        assert started.codec.statistics().streams == 0
        assert started.turns.taken == 0
        lost = await metric(
            started, "orpheus_contexts_total", outcome="disconnected", surface=surface
        )
        assert lost == 1
        assert await metric(started, "orpheus_orphaned_audio_seconds_total") > 0


@every_surface
async def test_leaving_before_any_audio(surface: str) -> None:
    """Nothing is spoken on for somebody who did not wait."""
    async with one_call("engine.options.step_seconds=0.2") as (started, caller):
        asking = asyncio.create_task(ask(caller, surface, LONG))
        await turns_until(lambda: started.engine.statistics().active == 1)
        caller.leave()
        with pytest.raises(CutOff):
            await asking
        await turns_until(lambda: started.admission.active == 0)
        await turns_until(lambda: started.engine.statistics().active == 0)


@pytest.mark.parametrize("heard", [False, True])
@every_surface
async def test_who_sends_no_more_hears_all(surface: str, heard: bool) -> None:
    """The end of what a client sends is not the end of what it gets; after that the connection ends."""
    text = f"{SENTENCE} {SENTENCE}"
    async with one_call() as (_, whole):
        assert await ask(whole, surface, text) == 200
        expected = len(await whole.rest())
    async with one_call("engine.capacity=1", STEPPED) as (started, caller):
        asking = asyncio.create_task(ask(caller, surface, text))
        await turns_until(lambda: started.admission.active == 1)
        if not heard:
            caller.end()
        assert await asking == 200
        length = len(await caller.hear())
        if heard:
            caller.end()
        assert length + len(await caller.rest()) == expected
        assert await caller.reader.read() == b""
        assert started.admission.active == 0


async def test_pages_for_who_sends_no_more() -> None:
    """Whatever was asked for is answered, also requests that came together."""
    get = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
    async with one_call() as (_, caller):
        caller.writer.write(get * 3)
        caller.end()
        assert (await caller.reader.read()).count(b'"data":[') == 3


@every_surface
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_who_has_quite_gone(surface: str, version: str) -> None:
    """He looks like somebody who listens, and does not keep his place though nothing is ever said to him."""
    asked = json.dumps(body(surface, SHORT)).encode()
    head = (
        f"POST {PATHS[surface]} HTTP/{version}\r\nHost: a\r\nContent-Length: {len(asked)}\r\n\r\n"
    )
    endless = ("engine.options.fault=never_stops", "engine.capacity=1", "server.oversubscription=2")
    async with one_call(*endless) as (started, speaking), calling(started) as caller:
        assert await ask(speaking, surface, LONG) == 200
        caller.writer.write(head.encode() + asked)
        await turns_until(lambda: started.turns.waiting == 1)
        caller.writer.close()
        await turns_until(lambda: started.turns.waiting == 0)
        await turns_until(lambda: started.admission.active == 1)
        ends = {"outcome": "disconnected", "surface": surface}
        assert await metric(started, "orpheus_contexts_total", **ends) == 1


@every_surface
async def test_what_an_interruption_wastes(surface: str) -> None:
    """Of a long text that is left in the middle, at most the lead and one segment were for nobody."""
    async with one_call() as (started, caller):
        before = started.engine.statistics().tokens
        assert await ask(caller, surface, LONG) == 200
        heard = 0
        while heard < HTTP_LEAD_MS / 1000 * BYTES_PER_SECOND:
            heard += len(await caller.hear())
        caller.leave()
        await turns_until(lambda: not started._connections)
        wasted = await metric(started, "orpheus_orphaned_audio_seconds_total")
        assert 0 < wasted <= HTTP_LEAD_MS / 1000 + SEGMENT_SECONDS
        generated = (started.engine.statistics().tokens - before) / 7 * 2048 / 24_000
        assert generated <= heard / BYTES_PER_SECOND + SEGMENT_SECONDS + 2


@every_surface
async def test_clients_that_read_nothing(surface: str) -> None:
    """One is cut off after a while, and until then little waits for it."""
    slow = ("server.write_seconds=0.3", "engine.options.frames_per_char=10")
    async with http_server(*slow) as started, calling(started, receive_buffer=4096) as caller:
        assert await ask(caller, surface, LONG) == 200
        (answering,) = [connection.peer for connection in started._connections]
        assert isinstance(answering, HttpPeer)
        await turns_until(lambda: not answering.has_room)
        assert sum(len(part) for part in answering._waiting) < 2 * BUFFER_BYTES
        await turns_until(lambda: started.admission.active == 0)
        with pytest.raises(CutOff):
            await caller.rest()


# The end ------------------------------------------------------------------------------------------


@every_surface
async def test_drain(surface: str) -> None:
    """A response under way is heard to its end; new requests are refused."""
    async with one_call(STEPPED) as (started, caller):
        assert await ask(caller, surface, SHORT) == 200
        draining = asyncio.create_task(started.drain(lambda _low, _high: 0.0))
        await turns_until(lambda: started.admission.draining)
        async with calling(started) as other:
            assert await ask(other, surface, SHORT) == 503
            assert "draining" in str(await other.json())
        assert await caller.rest()
        assert await draining == 0


@every_surface
async def test_the_server_stops_in_the_middle(surface: str) -> None:
    """A response under way has no end; a connection without one is closed."""
    async with contextlib.AsyncExitStack() as stack:
        started = await stack.enter_async_context(http_server(STEPPED))
        async with calling(started) as caller, calling(started) as idle:
            assert await ask(caller, surface, LONG) == 200
            assert await idle.ask("GET", "/healthz") == 200
            await idle.rest()
            stopping = asyncio.create_task(stack.aclose())
            with pytest.raises(CutOff):
                await caller.rest()
            assert await idle.reader.read() == b""
            await stopping


@every_surface
async def test_the_server_stops_before_any_audio(surface: str) -> None:
    """Whoever has heard nothing is told 503, and can go elsewhere."""
    async with contextlib.AsyncExitStack() as stack:
        started = await stack.enter_async_context(http_server("engine.options.step_seconds=0.4"))
        async with calling(started) as caller:
            asking = asyncio.create_task(ask(caller, surface, SHORT))
            await turns_until(lambda: started.engine.statistics().active == 1)
            stopping = asyncio.create_task(stack.aclose())
            assert await asking == 503
            assert caller.headers["retry-after"] == "1"
            assert "shutdown" in str(await caller.json())
            await stopping


async def test_the_port_is_taken() -> None:
    """It is an error that names the key."""
    async with http_server() as started:
        with pytest.raises(StartupError, match=r"server\.http_port"):
            async with http_server(f"server.http_port={started.address.http_port}"):
                pass


async def test_there_is_none_unless_it_is_wanted() -> None:
    """Without the key no port is opened, and no metric speaks of it."""
    settings = ("engine.name=simulated", "codec.name=simulated", "server.port=0")
    async with running(load(flags=[*settings, "server.metrics_port=0"])) as started:
        assert started.address.http_port is None
        assert started.address.http_url is None
        _, text = await http(started, "/metrics", port=started.address.metrics_port)
        assert "openai" not in text


async def test_sockets_and_requests_together() -> None:
    """A request is spoken beside a socket that is spoken to."""
    async with one_call(STEPPED) as (started, caller), peer(started.address.url) as connected:
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Audio)
        assert await caller.post(SPEECH, speech(SHORT)) == 200
        assert await caller.rest()
        await connected.utterance("a")
