"""Deepgram's speech socket: its translator, and the socket as its clients use it."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, OrpheusError
from orpheus_ws.server import Server
from orpheus_ws.surfaces import Opening, Translator
from orpheus_ws.surfaces.deepgram import PATH, SURFACES
from tests.harness import server, turns_until
from tests.server_peers import SENTENCE, metric
from tests.surface_clients import BYTES_PER_SECOND, LEAD_SECONDS, SEGMENT_SECONDS, JsonClient
from tests.translators import receive, send

VOICES = ("tara", "leo")
FLUSH, CLEAR, CLOSE = ({"type": kind} for kind in ("Flush", "Clear", "Close"))


def translator(**query: str) -> Translator:
    """A fresh one."""
    opening = Opening(parameters={}, query=query, headers={}, subprotocol=None, voices=VOICES)
    return SURFACES[0].open(opening)


def speak(text: str) -> dict[str, str]:
    """What says a text."""
    return {"type": "Speak", "text": text}


def done(context: str) -> m.Done:
    """The end of a context."""
    return m.Done(context=context, reason="end", audio_ms=1, chars=1)


def failed(context: str | None, *, fatal: bool = False) -> m.Error:
    """A failure as the session tells it."""
    return m.Error(context=context, code="no_audio", message="m", retryable=True, fatal=fatal)


def opened(context: str) -> m.Open:
    """How a context is opened without any options."""
    return m.Open(context=context, voice="tara", encoding="pcm_s16le", sample_rate=24000)


# The translator -----------------------------------------------------------------------------------


def test_a_flush_ends_a_context() -> None:
    """What is said up to it is one, and the next text opens another."""
    translated = translator()
    assert receive(translated, speak("Hi "), speak("there."), FLUSH) == [
        opened("1"),
        m.Text(context="1", text="Hi "),
        m.Text(context="1", text="there."),
        m.End(context="1"),
    ]
    assert receive(translated, speak("Oh.")) == [opened("2"), m.Text(context="2", text="Oh.")]
    assert send(translated, m.Audio(context="1", seq=0, offset=0, pcm=b"12"), done("1")) == [
        b"12",
        {"type": "Flushed", "sequence_id": 0},
    ]


def test_every_flush_is_answered_in_order() -> None:
    """Also those with nothing to say, which wait for what was said before."""
    translated = translator()
    messages = receive(translated, FLUSH, speak(""), FLUSH, speak("Hi."), FLUSH)
    assert [message for message in messages if isinstance(message, m.Open)] == [
        opened(context) for context in "123"
    ]
    assert [message for message in messages if isinstance(message, m.End)] == [
        m.End(context=context) for context in "123"
    ]
    frames = send(translated, done("1"), done("2"), done("3"))
    assert frames == [{"type": "Flushed", "sequence_id": number} for number in range(3)]


def test_clear() -> None:
    """It cancels all, is answered, and the flushes before it are not."""
    translated = translator()
    receive(translated, speak("Hi."), FLUSH, speak("Oh."))
    assert receive(translated, CLEAR) == [m.Cancel(context="*"), m.Ping(id="clear")]
    cancelled = (m.Cancelled(context=context, sent_ms=0) for context in "12")
    assert send(translated, *cancelled, m.Pong(id="clear")) == [
        {"type": "Cleared", "sequence_id": 0}
    ]
    assert receive(translated, speak("So."))[0] == opened("3")


def test_close() -> None:
    """What is open is spoken, but nobody asked to hear of its end."""
    translated = translator()
    assert receive(translated, speak("Hi."), CLOSE)[-1] == m.Close()
    assert send(translated, done("1")) == []


def test_a_failure() -> None:
    """It is an error, and the flush is answered, whether that has come already or comes later."""
    flushed = {"type": "Flushed", "sequence_id": 0}
    translated = translator()
    receive(translated, speak("Hi."), FLUSH)
    error, answer = send(translated, failed("1"))
    assert (error["type"], error["err_code"], error["err_msg"]) == ("Error", "no_audio", "m")
    assert answer == flushed
    translated = translator()
    receive(translated, speak("Hi."))
    assert [frame["type"] for frame in send(translated, failed("1"))] == ["Error"]
    assert receive(translated, FLUSH) == [opened("2"), m.End(context="2")]
    assert send(translated, done("2")) == [flushed]


def test_warnings() -> None:
    """What ends nothing is a warning, under all names that clients look for."""
    warning = {"type": "Warning", "code": "no_audio", "description": "m"}
    warning |= {"warn_code": "no_audio", "warn_msg": "m"}
    told = m.Warn(code="no_audio", message="m")
    assert send(translator(), told, failed(None)) == [warning, warning]
    assert send(translator(), failed(None, fatal=True))[0]["type"] == "Error"


def test_the_address() -> None:
    """Voice and format are in it; a model of Deepgram's is the default voice."""
    query = {"model": "Leo", "encoding": "mulaw", "sample_rate": "8000", "mip_opt_out": "true"}
    assert receive(translator(**query), speak("Hi."))[0] == m.Open(
        context="1", voice="leo", encoding="mulaw", sample_rate=8000
    )
    assert receive(translator(model="aura-2-thalia-en"), speak("Hi."))[0] == opened("1")


@pytest.mark.parametrize(
    "query",
    [
        {"encoding": "mp3"},
        {"encoding": ""},
        {"sample_rate": "44100"},
        {"sample_rate": "9" * 5000},
        {"sample_rate": "24000.0"},
        {"container": "wav"},
        {"speed": "1.2"},
    ],
)
def test_what_the_address_cannot_have(query: dict[str, str]) -> None:
    """It refuses the socket."""
    with pytest.raises(OrpheusError, match=r"the only|use one of"):
        translator(**query)


@given(
    st.lists(
        st.one_of(
            st.sampled_from([FLUSH, CLEAR, speak("Hi."), {"type": "Speak"}, {"type": 1}]),
            st.fixed_dictionaries(
                {"type": st.sampled_from(["Speak", "Flush", "Sing"])},
                optional={"text": st.one_of(st.none(), st.integers(), st.text(max_size=5))},
            ),
        ),
        max_size=12,
    )
)
def test_any_order(requests: list[dict[str, Any]]) -> None:
    """Whatever comes, contexts are opened once, ended once, and each flush since the last clear answered."""
    translated = translator()
    live: list[str] = []
    awaited = 0
    for request in requests:
        messages: list[m.ClientMessage] = []
        with contextlib.suppress(BadMessage):
            messages = receive(translated, request)
        awaited = (
            0 if request == CLEAR else awaited + any(isinstance(each, m.End) for each in messages)
        )
        for message in messages:
            match message:
                case m.Open(context=context):
                    assert context not in live
                    live.append(context)
                case m.Text(context=context) | m.End(context=context):
                    assert context == live[-1]
                case m.Cancel():
                    send(translated, *(m.Cancelled(context=each, sent_ms=0) for each in live))
                    live.clear()
                case _:
                    assert isinstance(message, m.Ping)
    answers = send(translated, *map(done, live))
    assert [answer["type"] for answer in answers] == ["Flushed"] * awaited


# The socket ---------------------------------------------------------------------------------------


class Client(JsonClient):
    """A client's end."""

    @staticmethod
    def audio(frame: str | bytes) -> bytes:
        """See `JsonClient`."""
        return frame if isinstance(frame, bytes) else b""

    async def until(self, kind: str) -> bytes:
        """The audio up to an event of this type."""
        heard = b""
        while isinstance(frame := await self.socket.recv(), bytes):
            heard += frame
        assert json.loads(frame)["type"] == kind
        return heard


def client(started: Server, query: str = "model=aura-2-helena-en", key: str = "none") -> connect:
    """Connect as Pipecat does."""
    return connect(
        f"ws://127.0.0.1:{started.address.port}{PATH}?{query}",
        additional_headers={"Authorization": f"Token {key}"},
        compression=None,
        ping_interval=None,
    )


async def test_the_handshake() -> None:
    """A key is a token, and whatever refuses does so before the upgrade, in their shape."""
    async with server("auth.keys.a=secret") as started:
        for query, key, status, code in (
            ("encoding=mp3", "secret", 400, "request"),
            ("encoding=linear16", "other", 401, "auth"),
        ):
            with pytest.raises(InvalidStatus) as refusal:
                async with client(started, query, key):
                    pass
            assert refusal.value.response.status_code == status
            assert json.loads(refusal.value.response.body)["err_code"] == code
        async with client(started, "encoding=alaw&sample_rate=8000", "secret") as socket:
            assert json.loads(await socket.recv())["type"] == "Metadata"


async def test_a_flush_without_text() -> None:
    """It is answered, before and after a turn and twice in a row."""
    async with server() as started, client(started) as socket:
        caller = Client(socket)
        await caller.until("Metadata")
        await caller.send(FLUSH, speak("Hi."), FLUSH, FLUSH)
        heard = [await caller.until("Flushed") for _ in range(3)]
        assert [bool(each) for each in heard] == [False, True, False]


async def test_barge_in() -> None:
    """After `Cleared` only the next turn is heard, and what was in hand is counted."""
    async with server() as started, client(started) as socket:
        caller = Client(socket)
        await caller.until("Metadata")
        await caller.send(speak(f"{SENTENCE} " * 20), FLUSH)
        await caller.hear(1.5)
        await caller.send(CLEAR, speak("Hi."), FLUSH)
        await caller.until("Cleared")
        assert 0 < len(await caller.until("Flushed")) < 2 * BYTES_PER_SECOND
        wasted = await metric(started, "orpheus_orphaned_audio_seconds_total")
        assert 0 < wasted <= LEAD_SECONDS + SEGMENT_SECONDS
        assert await metric(started, "orpheus_contexts_total", outcome="cancelled") == 1


async def test_barge_in_that_nobody_tells_of() -> None:
    """LiveKit leaves the turn, and ends the socket at the next one: flush, close, and gone."""
    async with server() as started:
        before = started.engine.statistics().tokens
        async with client(started) as socket:
            caller = Client(socket)
            await caller.until("Metadata")
            await caller.send(speak(f"{SENTENCE} " * 20), FLUSH)
            heard = await caller.hear(1.5)
            await caller.send(FLUSH, CLOSE)
            heard += len(await socket.recv())
        await turns_until(lambda: not started._connections)
        wasted = await metric(started, "orpheus_orphaned_audio_seconds_total")
        assert 0 < wasted <= LEAD_SECONDS + SEGMENT_SECONDS
        made = (started.engine.statistics().tokens - before) / 7 * 2048 / 24_000
        assert made <= heard / BYTES_PER_SECOND + LEAD_SECONDS + SEGMENT_SECONDS


async def test_an_idle_socket_holds_up_no_drain() -> None:
    """After its turn nothing is open on a socket, so a server that goes away waits for nobody."""
    async with server() as started, client(started) as socket:
        caller = Client(socket)
        await caller.until("Metadata")
        await caller.send(speak("Hi."), FLUSH)
        await caller.until("Flushed")
        draining = asyncio.create_task(started.drain(lambda _low, _high: 0.0))
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1012
        assert await draining == 0
