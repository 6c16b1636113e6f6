"""The server over HTTP, with real sockets: speech as a response, and everything that can go wrong."""

import asyncio
import base64
import contextlib
import io
import json
import wave
from typing import Any

import pytest

from orpheus_ws import messages as m
from orpheus_ws.config import load
from orpheus_ws.errors import StartupError
from orpheus_ws.server import running
from orpheus_ws.server.http_peer import BUFFER_BYTES, HttpPeer
from orpheus_ws.surfaces import HTTP_LEAD_MS, http_surfaces
from tests.harness import pcm, peer, turns_until
from tests.http_peers import (
    PREDICT,
    SPEECH,
    Caller,
    CutOff,
    calling,
    http_server,
    one_call,
)
from tests.server_peers import SENTENCE, STEPPED, http, metric

SHORT = "Good morning. Nice day."
LONG = f"{SENTENCE} " * 20
SEGMENT_SECONDS = 3.5
"""More than `SENTENCE` takes."""
BYTES_PER_SECOND = 48_000
PATHS = {surface.name: surface.paths[0] for surface in http_surfaces()}


@pytest.fixture(params=PATHS)
def surface(request: pytest.FixtureRequest) -> str:
    """One after the other."""
    name: str = request.param
    return name


def speech(text: str, **options: Any) -> dict[str, Any]:
    """What OpenAI's clients send."""
    return {"model": "tts-1", "input": text, "voice": "alloy", "response_format": "pcm"} | options


def body(surface: str, text: str) -> dict[str, Any]:
    """A request for raw PCM."""
    return {"openai": speech(text), "baseten_http": {"prompt": text, "voice": "tara"}}[surface]


async def ask(caller: Caller, surface: str, text: str, **headers: str) -> int:
    """Ask for a text's speech, and wait for the status."""
    return await caller.post(PATHS[surface], body(surface, text), headers)


# Speech -------------------------------------------------------------------------------------------


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


async def test_speech_is_heard_while_it_is_spoken(surface: str) -> None:
    """The first audio comes while the engine still speaks the first sentence."""
    async with one_call(STEPPED) as (started, caller):
        assert await ask(caller, surface, SENTENCE) == 200
        assert await caller.hear()
        assert started.engine.statistics().active == 1
        assert await caller.rest()


async def test_one_request_after_the_other(surface: str) -> None:
    """A response that has ended has freed its slot, for the next one on the same connection."""
    async with one_call("engine.capacity=1") as (_, caller):
        for _ in range(20):
            assert await ask(caller, surface, "Hello.") == 200
            assert await caller.rest()


async def test_a_text_without_words(surface: str) -> None:
    """It is a little silence: clients take a response without audio for a failure."""
    async with one_call() as (_, caller):
        assert await ask(caller, surface, " … 🙂") == 200
        assert await caller.rest() == bytes(4800)


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


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "parameter"),
    [
        ({"input": ""}, "bad_message", None),
        ({"input": 3}, "bad_message", None),
        ({"speed": 1.5}, "bad_message", None),
        ({"stream_format": "morse"}, "bad_message", None),
        ({"voice": "nobody"}, "unknown_voice", "voice"),
        ({"response_format": "opus"}, "unsupported_format", "response_format"),
        ({"input": "a" * 101}, "text_too_long", "input"),
    ],
)
async def test_what_does_not_fit(options: dict[str, Any], code: str, parameter: str | None) -> None:
    """400 in OpenAI's shape, and the connection goes on."""
    async with one_call("limits.text_chars=100") as (started, caller):
        assert await caller.post(SPEECH, speech(SHORT) | options) == 400
        assert caller.headers["content-type"] == "application/json"
        error = (await caller.json())["error"]
        assert error.pop("message")
        assert error == {"type": "invalid_request_error", "param": parameter, "code": code}
        assert await caller.post(SPEECH, speech(SHORT)) == 200
        assert await caller.rest()
        assert started.admission.active <= 1


async def test_what_does_not_fit_at_basetens() -> None:
    """400 with a message."""
    async with one_call() as (_, caller):
        assert await caller.post(PREDICT, {"text": "Hello."}) == 400
        assert (await caller.json())["error"] == "bad_message"


async def test_full(surface: str) -> None:
    """A full server refuses, says when to come again, and holds no slot for whoever it refused."""
    async with one_call("engine.capacity=1") as (started, caller):
        async with peer(started.address.url):
            for _ in range(2):
                assert await ask(caller, surface, SHORT) == 503
                assert caller.headers["retry-after"] == "1"
                assert "full" in str(await caller.json())
        await turns_until(lambda: started.admission.active == 0)
        assert await ask(caller, surface, SHORT) == 200
        assert await caller.rest()
        assert await metric(started, "orpheus_handshakes_refused_total", reason="full") == 2


async def test_a_request_takes_a_socket_s_place() -> None:
    """While a request is answered, a socket is refused, and the reverse."""
    async with one_call("engine.capacity=1", STEPPED) as (started, caller):
        assert await caller.post(SPEECH, speech(LONG)) == 200
        assert json.loads((await http(started, "/capacity"))[1])["active"] == 1
        async with calling(started) as other:
            assert await other.post(SPEECH, speech(SHORT)) == 503


async def test_no_slot_in_time(surface: str) -> None:
    """Who was admitted and has no turn in time is told 503, and when to come again."""
    crowded = ("engine.capacity=1", "server.oversubscription=2", "server.max_queue_ms=1")
    async with one_call(*crowded, STEPPED) as (started, caller), calling(started) as other:
        assert await other.post(SPEECH, speech(LONG)) == 200
        assert await ask(caller, surface, SHORT) == 503
        assert caller.headers["retry-after"] == "1"
        assert "overloaded" in str(await caller.json())


async def test_keys(surface: str) -> None:
    """Where there are keys, nobody gets in without one; health needs none."""
    async with one_call("auth.keys.a=secret") as (_, caller):
        assert await ask(caller, surface, SHORT) == 401
        assert caller.headers["www-authenticate"] == "Bearer"
        assert await caller.rest()
        assert await caller.ask("GET", "/v1/models") == 401
        assert (await caller.json())["error"]["code"] == "auth"
        assert await caller.ask("GET", "/readyz") == 200
        await caller.rest()
        for scheme in ("Bearer", "Api-Key"):
            assert await ask(caller, surface, SHORT, Authorization=f"{scheme} secret") == 200
            assert await caller.rest()


async def test_pages_of_other_hosts() -> None:
    """Those that are listed may ask, and their browsers are told so; others are refused."""
    async with one_call("auth.origins=https://app.example") as (_, caller):
        assert await ask(caller, "openai", SHORT, Origin="https://app.example") == 200
        assert caller.headers["access-control-allow-origin"] == "https://app.example"
        assert await caller.rest()
        assert await ask(caller, "openai", SHORT, Origin="https://evil.example") == 403
        assert "access-control-allow-origin" not in caller.headers
        await caller.rest()
        preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        assert await caller.ask("OPTIONS", SPEECH, headers=preflight) == 200
        assert "POST" in caller.headers["access-control-allow-methods"]


async def test_pages_of_anybody() -> None:
    """Without keys and without a list only pages of the same host may ask."""
    async with one_call() as (_, caller):
        assert await ask(caller, "openai", SHORT, Origin="https://evil.example") == 403
        await caller.rest()
        assert await ask(caller, "openai", SHORT, Origin="http://test") == 200


async def test_other_paths_and_methods() -> None:
    """404 and 405, with a word on what there is."""
    async with one_call() as (_, caller):
        for method, path, status in (
            ("GET", "/v1/audio/transcriptions", 404),
            ("POST", "/v1/audio/transcriptions", 404),
            ("GET", SPEECH, 405),
            ("DELETE", SPEECH, 405),
        ):
            assert await caller.ask(method, path) == status
            assert SPEECH in (await caller.json())["message"]


# Limits -------------------------------------------------------------------------------------------


async def test_too_long_a_body() -> None:
    """It is refused with 413 when it is too long, not when it has come."""
    async with one_call("limits.message_bytes=1000") as (_, caller):
        assert await caller.post(SPEECH, speech("a" * 2000)) == 413
        assert (await caller.json())["error"]["type"] == "invalid_request_error"


async def test_too_long_a_head() -> None:
    """It is refused with 400 before it has come to its end."""
    async with one_call() as (_, caller):
        caller.writer.write(b"GET /healthz HTTP/1.1\r\nX-Long: " + b"a" * 20_000)
        assert (await caller.reader.read()).startswith(b"HTTP/1.1 400")


async def test_a_body_that_never_ends() -> None:
    """After a while it is refused with 408, and no slot was held for it."""
    async with one_call("server.handshake_seconds=0.05") as (started, caller):
        caller.writer.write(
            b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
        )
        assert await caller.reader.readuntil(b"\r\n") == b"HTTP/1.1 408 Request Timeout\r\n"
        assert started.admission.active == 0


@pytest.mark.parametrize("sent", [b"GET /heal", b"POST /none HTTP/1.1\r\nHost: x\r\n"])
@pytest.mark.parametrize("answered", [False, True])
async def test_a_head_that_never_ends(sent: bytes, answered: bool) -> None:
    """Whoever owes the rest of a request, or a first one, is cut off after a while."""
    async with one_call("server.handshake_seconds=0.2") as (_, caller):
        if answered:
            assert await caller.ask("GET", "/healthz") == 200
            await caller.rest()
        caller.writer.write(sent)
        while await caller.reader.read(1000):
            pass


async def test_nothing_at_all() -> None:
    """Nor does a connection stay that never asks."""
    async with one_call("server.handshake_seconds=0.05") as (_, caller):
        assert await caller.reader.read() == b""


async def test_a_body_for_nobody_that_never_ends() -> None:
    """The rest of what was refused already is not waited for either."""
    async with one_call("server.handshake_seconds=0.05") as (_, caller):
        caller.writer.write(b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        assert await caller.reader.readuntil(b"\r\n") == b"HTTP/1.1 404 Not Found\r\n"
        caller.writer.write(b"{")
        while await caller.reader.read(1000):
            pass


async def test_not_http_at_all() -> None:
    """It is answered with 400 and closed."""
    async with one_call() as (_, caller):
        caller.writer.write(b"\x16\x03\x01 what is this?\r\n\r\n")
        assert (await caller.reader.read()).startswith(b"HTTP/1.1 400")


async def test_a_socket_at_the_wrong_port() -> None:
    """An upgrade is no more than a request, and there is none at that path."""
    async with one_call() as (_, caller):
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
        assert await caller.ask("GET", "/v1/tts", headers=upgrade) == 404


# Failures -----------------------------------------------------------------------------------------


async def test_a_failure_before_any_audio(surface: str) -> None:
    """It has a status of its own, and the next request is answered."""
    faulty = ("engine.options.fault=empty", "engine.options.fault_requests=1,2")
    async with one_call(*faulty) as (started, caller):
        assert await ask(caller, surface, SHORT) == 500
        assert "no_audio" in str(await caller.json())
        assert await ask(caller, surface, SHORT) == 200
        assert await caller.rest()
        assert await metric(started, "orpheus_contexts_total", outcome="failed", surface=surface)


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


async def test_leaving_frees_the_slot(surface: str) -> None:
    """Within two steps of the loss being seen the engine is idle; what nobody heard is counted."""
    async with one_call(STEPPED, "engine.options.fault=never_stops") as (started, caller):
        assert await ask(caller, surface, LONG) == 200
        assert await caller.hear()
        caller.leave()
        await turns_until(lambda: started.admission.active == 0)
        steps = started.engine.statistics().steps
        await turns_until(lambda: started.engine.statistics().active == 0)
        assert started.engine.statistics().steps - steps <= 2
        assert started.codec.statistics().streams == 0
        assert started.turns.taken == 0
        lost = await metric(
            started, "orpheus_contexts_total", outcome="disconnected", surface=surface
        )
        assert lost == 1
        assert await metric(started, "orpheus_orphaned_audio_seconds_total") > 0


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
