"""The client SDK against a real server."""

import asyncio
import gc
import math
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from orpheus_ws import messages as m
from orpheus_ws.client import Utterance, connect, make_token
from orpheus_ws.errors import ClientError, Disconnected, Refused, Unreachable, UtteranceFailed
from tests.client_peers import refusing
from tests.harness import server, turns_until
from tests.server_peers import metric, socket_of

SENTENCE = "The quick brown fox jumps over the lazy dog."
STEPPED = "engine.options.step_seconds=0.01"
ENDLESS = "engine.options.fault=never_stops"


async def typed(*pieces: str) -> AsyncIterator[str]:
    """Text as a language model writes it."""
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


async def test_speak() -> None:
    """Iterating an utterance yields gapless audio; afterwards `result` says how it ended."""
    async with server() as started, connect(started.address.url) as client:
        utterance = client.speak(SENTENCE, lead_ms=10_000)
        position = 0
        async for chunk in utterance:
            assert chunk.offset == position
            position += len(chunk.pcm) // 2
        assert isinstance(utterance.result, m.Done)
        assert utterance.result.audio_ms == pytest.approx(position / 24)


async def test_many_utterances_on_one_socket() -> None:
    """A socket is used again and again, also by utterances that overlap."""
    async with server() as started, connect(started.address.url) as client:

        async def speak(text: str) -> int:
            utterance = client.speak(text, lead_ms=10_000)
            return sum([len(chunk.pcm) async for chunk in utterance])

        assert await speak(SENTENCE) > 0
        sizes = await asyncio.gather(*(speak(SENTENCE[: 4 * n]) for n in range(2, 8)))
        assert sizes == sorted(sizes)
        assert started.admission.active == 1
        assert client._connection is not None
        assert not client._connection._receivers


async def test_streamed_text() -> None:
    """Text may be an async iterator, and its pieces are joined as they are."""
    async with server() as started, connect(started.address.url) as client:
        utterance = client.speak(
            typed("It costs 2.", "5 mil", "lion. Not ", "more."), lead_ms=10_000
        )
        events = [event async for event in utterance.events()]
    assert [event.text for event in events if isinstance(event, m.Segment)] == [
        "It costs 2.5 million.",
        "Not more.",
    ]
    assert isinstance(events[-1], m.Done)


async def test_options_reach_the_server() -> None:
    """Voice, encoding and the rest are those of the utterance."""
    async with server() as started, connect(started.address.url) as client:
        assert client.ready.voices == started.engine.voices
        plain = client.speak("Hi.", sampling=m.Sampling(seed=1))
        wide = client.speak("Hi.", sampling=m.Sampling(seed=1), encoding="pcm_f32le", voice="leo")
        sizes = [sum([len(chunk.pcm) async for chunk in one]) for one in (plain, wide)]
        assert sizes[1] == 2 * sizes[0]


async def test_cancel() -> None:
    """Cancelling ends the loop quietly, frees the engine and leaves the socket ready."""
    async with server(STEPPED, ENDLESS) as started, connect(started.address.url) as client:
        utterance = client.speak(SENTENCE)
        chunks = 0
        async for _ in utterance:
            chunks += 1
            if chunks == 1:
                await utterance.cancel(played_ms=0)
        assert isinstance(utterance.result, m.Cancelled)
        assert utterance.result.text_remaining == SENTENCE
        await turns_until(lambda: started.engine.statistics().active == 0)
        short = client.speak(SENTENCE, sampling=m.Sampling(max_tokens=70))
        assert [chunk async for chunk in short]


@pytest.mark.parametrize("played_ms", [-1, -0.5, 9e7, math.inf, True, Decimal(700)])
async def test_cancel_with_any_number(played_ms: float) -> None:
    """A number that no listener can have heard is taken for the nearest one that he can."""
    async with server(STEPPED, ENDLESS) as started, connect(started.address.url) as client:
        utterance = client.speak(SENTENCE)
        async for chunk in utterance:
            if chunk.offset > 24_000:
                await utterance.cancel(played_ms=played_ms)
        assert isinstance(utterance.result, m.Cancelled)
        assert utterance.result.text_spoken is not None
        assert (utterance.result.text_spoken == "") == (played_ms <= 1)
        assert utterance.warnings == []


@pytest.mark.parametrize("played_ms", [math.nan, "x", 10**400, object()])
async def test_cancel_with_no_number(played_ms: Any) -> None:
    """What is no number is an error of its own, and the utterance is cancelled all the same."""
    async with server(STEPPED, ENDLESS) as started, connect(started.address.url) as client:
        utterance = client.speak(SENTENCE)
        async for _ in utterance:
            with pytest.raises(ClientError, match="played_ms must be a number"):
                await utterance.cancel(played_ms=played_ms)
        assert isinstance(utterance.result, m.Cancelled)
        early = client.speak(SENTENCE)
        with pytest.raises(ClientError, match="played_ms must be a number"):
            await early.cancel(played_ms=played_ms)
        assert [chunk async for chunk in early] == []


async def test_cancel_at_any_time() -> None:
    """A cancel is never lost: before the loop begins, at once after, or a little later."""
    async with server(STEPPED, ENDLESS) as started, connect(started.address.url) as client:
        early = client.speak(SENTENCE)
        await early.cancel()
        assert [chunk async for chunk in early] == []
        assert isinstance(early.result, m.Cancelled)
        for turns in range(30):
            utterance = client.speak(SENTENCE)

            async def listen(spoken: Utterance) -> None:
                async for _ in spoken:
                    pass

            listening = asyncio.create_task(listen(utterance))
            for _ in range(turns):
                await asyncio.sleep(0)
            await utterance.cancel()
            await listening
            assert isinstance(utterance.result, m.Cancelled)
        await turns_until(lambda: started.engine.statistics().active == 0)


async def test_a_proxy_is_for_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment does not keep the client from a server on this machine."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with server() as started, connect(started.address.url) as client:
        assert [chunk async for chunk in client.speak("Hi.")]


async def test_leaving_the_loop_cancels() -> None:
    """Breaking out of the loop, or cancelling its task, stops the server's engine."""
    async with server(STEPPED, ENDLESS) as started, connect(started.address.url) as client:
        async for _ in client.speak(SENTENCE):
            break
        gc.collect()
        await turns_until(lambda: started.engine.statistics().active == 0)

        async def listen() -> None:
            async for _ in client.speak(SENTENCE):
                heard.set()

        heard = asyncio.Event()
        task = asyncio.create_task(listen())
        await heard.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await turns_until(lambda: started.engine.statistics().active == 0)
        # By the end of its tokens the engine would have stopped as well.
        assert await metric(started, "orpheus_contexts_total", outcome="cancelled") == 2


async def test_errors_of_the_server() -> None:
    """An `error` becomes UtteranceFailed with its code; the client goes on."""
    async with server() as started, connect(started.address.url) as client:
        with pytest.raises(UtteranceFailed, match="unknown_voice") as failed:
            async for _ in client.speak(SENTENCE, voice="nobody"):
                pass
        assert (failed.value.code, failed.value.retryable) == ("unknown_voice", False)
        assert [chunk async for chunk in client.speak("Hi.")]


async def test_errors_of_the_text() -> None:
    """What the text's iterator raises comes out of the loop, and the utterance is cancelled."""

    async def broken() -> AsyncIterator[str]:
        yield "The beginning of a sentence. And more"
        raise LookupError("the model has gone")

    async with server(STEPPED, ENDLESS) as started, connect(started.address.url) as client:
        with pytest.raises(LookupError, match="has gone"):
            async for _ in client.speak(broken()):
                pass
        while not await metric(started, "orpheus_contexts_total", outcome="cancelled"):
            pass
        await turns_until(lambda: started.engine.statistics().active == 0)


async def test_bad_options_fail_the_utterance() -> None:
    """An option out of its range is UtteranceFailed, not silently the default; None is the default."""
    async with server() as started, connect(started.address.url) as client:
        with pytest.raises(UtteranceFailed, match="lead_ms"):
            async for _ in client.speak(SENTENCE, lead_ms=1):
                pass
        assert [chunk async for chunk in client.speak("Hi.", voice=None)]


async def test_pieces_of_all_kinds() -> None:
    """Lists and generators of pieces are spoken too, and None among them is passed over."""

    def generated() -> Iterator[str | None]:
        yield from ("One ", None, "two.")

    async with server() as started, connect(started.address.url) as client:
        for text in (["One ", None, "two."], generated()):
            events = [event async for event in client.speak(text, lead_ms=10_000).events()]
            assert [x.text for x in events if isinstance(x, m.Segment)] == ["One two."]


async def test_what_is_no_text() -> None:
    """What cannot be text is an error at `speak`; a piece that is none, when it is read."""
    async with server() as started, connect(started.address.url) as client:
        for wrong in (123, None, b"bytes", typed):
            with pytest.raises(ClientError, match="must be a str, or an iterator"):
                client.speak(wrong)  # type: ignore[arg-type]
        for pieces in (["One", 2], iter(["One", 2])):
            with pytest.raises(ClientError, match="a piece of the text is no str"):
                await client.speak(pieces).read()  # type: ignore[arg-type]


async def test_an_utterance_is_spoken_once() -> None:
    """Iterating again is an error that says what to do, as is speaking on a client that was left."""
    async with server() as started:
        async with connect(started.address.url) as client:
            utterance = client.speak("Hello <foo>there</foo>.")
            assert [chunk async for chunk in utterance]
            assert [warning.code for warning in utterance.warnings] == ["unknown_tag"]
            with pytest.raises(ClientError, match="speak again"):
                assert [chunk async for chunk in utterance]
        with pytest.raises(Disconnected, match="this client was closed"):
            assert [chunk async for chunk in client.speak("Hi.")]


async def test_nothing_to_say() -> None:
    """Text without words is an utterance without audio."""
    async with server() as started, connect(started.address.url) as client:
        utterance = client.speak(" … ")
        assert [chunk async for chunk in utterance] == []
        assert isinstance(utterance.result, m.Done)
        assert utterance.result.reason == "empty"


async def test_long_text() -> None:
    """Text longer than a message may be is sent in pieces."""
    async with (
        server("limits.message_bytes=5000") as started,
        connect(started.address.url) as client,
    ):
        utterance = client.speak(
            "one two three four " * 300, lead_ms=10_000, sampling=m.Sampling(max_tokens=70)
        )
        assert [chunk.seq async for chunk in utterance][:1] == [0]


async def test_refused() -> None:
    """A refused handshake is Refused with its status, and Retry-After when the server is full."""
    async with server("auth.keys.a=right", "engine.capacity=1") as started:
        with pytest.raises(Refused) as wrong_key:
            async with connect(started.address.url, api_key="wrong", patience=0):
                pass
        assert (wrong_key.value.status, wrong_key.value.retry_after) == (401, None)
        assert wrong_key.value.reason == "auth"
        token = make_token("a", "right", expires=1)
        with pytest.raises(Refused, match="the token is wrong or has expired") as expired:
            async with connect(f"{started.address.url}?token={token}", patience=0):
                pass
        assert token not in str(expired.value)
        with pytest.raises(Refused, match="HTTP 404: there is /v1/tts here") as lost:
            async with connect(f"{started.address.url}x", api_key="right", patience=0):
                pass
        assert lost.value.reason == "path"
        async with connect(started.address.url, api_key="right"):
            with pytest.raises(Refused) as full:
                async with connect(started.address.url, api_key="right", patience=0):
                    pass
        assert (full.value.status, full.value.retry_after) == (503, 1.0)
        assert full.value.reason == "full"
        assert str(full.value) == "HTTP 503: all streams are in use; try again shortly"


@pytest.mark.parametrize(
    "body",
    [
        "no",
        "",
        "[]",
        '{"error":503}',
        '{"error":"full","message":"\\u001b[2J"}',
        '{"error":"full","message":"a\\n"}',
        '{"error":"full","message":"%s"}' % ("x" * 201),
    ],
)
async def test_refused_by_something_else(body: str) -> None:
    """A body that is not our server's is not believed, and nothing of it is shown."""
    async with refusing(503, body=body) as (url, _):
        with pytest.raises(Refused) as refused:
            async with connect(url, patience=0):
                pass
    assert refused.value.reason is None
    assert str(refused.value).endswith("in use or the server is going away")


async def test_another_scheme_or_port() -> None:
    """A server of the other scheme, and one of something else, are named as what they may be."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="is it a wss:// server"):
            async with connect(f"ws://127.0.0.1:{port}", patience=0):
                pass
    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="is it a ws:// server"):
            async with connect(f"wss://127.0.0.1:{port}", patience=0, open_timeout=0.2):
                pass
    async with refusing(200) as (url, _):
        with pytest.raises(Refused, match="HTTP 200: what answers is no WebSocket server"):
            async with connect(url, patience=0):
                pass


async def test_unreachable(closed_port: int) -> None:
    """No server, a wrong address and a server of something else are ClientError with advice."""
    with pytest.raises(ClientError, match=rf"nothing listens at 127\.0\.0\.1:{closed_port}"):
        async with connect(f"ws://127.0.0.1:{closed_port}/v1/tts", patience=0):
            pass
    with pytest.raises(ClientError, match="must be like ws://"):
        async with connect("http://127.0.0.1:1"):
            pass

    async def babble(socket: ServerConnection) -> None:
        await socket.send("hello")
        await socket.wait_closed()

    async with serve(babble, "127.0.0.1", 0, subprotocols=None) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(ClientError, match="does not speak this protocol"):
            async with connect(f"ws://127.0.0.1:{port}"):
                pass


async def test_lost_socket() -> None:
    """When the socket is lost, what is being spoken raises Disconnected, retryable and never mute."""
    async with server(STEPPED, ENDLESS) as started, connect(started.address.url) as client:

        async def listen() -> None:
            async for _ in client.speak(SENTENCE):
                for connection in started._connections:
                    socket_of(connection).transport.abort()

        with pytest.raises(Disconnected) as lost:
            await listen()
        assert lost.value.retryable
        assert lost.value.close_code is None
        assert lost.value.code == "disconnected"


def test_the_client_is_light() -> None:
    """Importing the client loads neither torch nor numpy nor anything of the server."""
    program = (
        "import sys, orpheus_ws.client; "
        "print([n for n in sys.modules if n.split('.')[0] in "
        "('torch','numpy','snac','hibari','prometheus_client','uvloop')])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == "[]"
