"""The server over real sockets: what single surfaces do beside what all promise."""

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws import surfaces
from orpheus_ws.errors import UnknownVoice
from orpheus_ws.server import Server
from orpheus_ws.surfaces import HangUp, Opening, Surface
from tests.conformance.speakers import speaking
from tests.harness import server, turns_until
from tests.server_peers import SENTENCE, STEPPED, metric


def url(started: Server, path: str) -> str:
    """A path of the server's."""
    return f"ws://127.0.0.1:{started.address.port}{path}"


async def frames(socket: ClientConnection) -> list[str | bytes]:
    """Everything until the close."""
    received: list[str | bytes] = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            received.append(await socket.recv())
    return received


# The seam -----------------------------------------------------------------------------------------


class Echo:
    """A translator with every liberty: several messages a frame, several frames a message, a hang-up."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening

    def receive(self, frame: str | bytes) -> Sequence[m.ClientMessage]:
        """A frame is a whole turn."""
        return (m.Text(context="a", text=str(frame)), m.End(context="a"))

    def send(self, message: m.ServerMessage) -> Sequence[str | bytes | HangUp]:
        """Say what it knows, then what is heard."""
        match message:
            case m.Ready():
                return (json.dumps([*self.opening[:4]]), b"ready")
            case m.Done():
                return ("done", b"done", HangUp(4000, "enough"))
            case _:
                return ()


def picky(opening: Opening) -> Echo:
    """Opens for one voice only."""
    if opening.parameters["voice"] != "tära":
        raise UnknownVoice("ask for another voice")
    return Echo(opening)


PICKY = Surface(
    "picky",
    ("/picky/{voice}/speak",),
    picky,
    refusal=lambda status, reason, advice: json.dumps([status, reason, advice]).encode(),
)


@pytest.fixture
def _with_picky(monkeypatch: pytest.MonkeyPatch) -> None:
    found = surfaces.surfaces()
    monkeypatch.setattr("orpheus_ws.server.surfaces", lambda: (*found, PICKY))


@pytest.mark.usefixtures("_with_picky")
async def test_a_surface_is_told_of_its_opening() -> None:
    """Path, query and headers reach the translator, but neither key nor token does."""
    async with (
        server("auth.keys.me=secret") as started,
        connect(
            url(started, "/picky/t%C3%A4ra/speak?token=abc&Encoding=mulaw&encoding=x&empty="),
            additional_headers={"X-API-Key": "secret", "X-Version": "7"},
        ) as socket,
    ):
        parameters, query, headers, subprotocol = json.loads(await socket.recv())
    assert (parameters, subprotocol) == ({"voice": "tära"}, None)
    assert query == {"encoding": "mulaw", "empty": ""}
    assert headers["x-version"] == "7"
    assert "secret" not in str(headers)


@pytest.mark.usefixtures("_with_picky")
async def test_frames_leave_in_order_and_the_hang_up_comes_last() -> None:
    """A message may be several frames; a hang-up closes the socket after them."""
    async with server() as started, connect(url(started, "/picky/t%C3%A4ra/speak")) as socket:
        await socket.send("Hi.")
        received = await frames(socket)
    assert received[1:] == [b"ready", "done", b"done"]
    assert (socket.close_code, socket.close_reason) == (4000, "enough")


@pytest.mark.usefixtures("_with_picky")
async def test_a_surface_refuses_in_its_own_words() -> None:
    """What is wrong with an opening is a 400 before the upgrade; a slot is not taken for it."""
    async with server("engine.capacity=1") as started:
        with pytest.raises(InvalidStatus) as refusal:
            await connect(url(started, "/picky/other/speak"))
        assert json.loads(refusal.value.response.body) == [400, "request", "ask for another voice"]
        assert started.admission.active == 0
        assert await metric(started, "orpheus_handshakes_refused_total", reason="request") == 1
        async with connect(url(started, "/picky/t%C3%A4ra/speak")):
            with pytest.raises(InvalidStatus) as refusal:
                await connect(url(started, "/picky/t%C3%A4ra/speak"))
        status, reason, _ = json.loads(refusal.value.response.body)
        assert (status, reason) == (503, "full")


async def test_unknown_paths_and_unneeded_subprotocols() -> None:
    """A 404 says where to look; who offers a subprotocol where none is spoken gets in."""
    async with server() as started:
        with pytest.raises(InvalidStatus) as refusal:
            await connect(url(started, "/v1/nothing"))
        assert refusal.value.response.status_code == 404
        assert "docs/surfaces.md" in json.loads(refusal.value.response.body)["message"]
        offering = connect(
            url(started, "/v1/audio/speech/stream"), subprotocols=[Subprotocol("tts.v1.json")]
        )
        async with offering as socket:
            assert socket.subprotocol is None


# Baseten ------------------------------------------------------------------------------------------


async def test_baseten_failure_before_the_end_closes_at_once() -> None:
    """Nobody waits for `__END__` when the first sentence has failed: clients try again."""
    async with (
        server("engine.options.fault=empty", "engine.options.fault_requests=1,2") as started,
        speaking(started, "baseten") as speaker,
    ):
        await speaker.write(f"{SENTENCE} {SENTENCE}", complete=False)
        await speaker.fails()
        assert (speaker.socket.close_code, speaker.socket.close_reason) == (1011, "no_audio")


async def test_baseten_failure_noticed_while_reading() -> None:
    """So it is when the failure is in what the client has sent."""
    async with (
        server(STEPPED, "limits.text_chars=100") as started,
        speaking(started, "baseten") as speaker,
    ):
        # In one frame: what a client that stands still has sent by then would be spoken.
        await speaker.socket.send("and so on " * 20)
        await speaker.fails()
        assert (speaker.socket.close_code, speaker.socket.close_reason) == (1008, "text_too_long")


# vLLM-Omni ----------------------------------------------------------------------------------------


async def test_omni_keep_alive_makes_no_contexts() -> None:
    """An idle socket that is kept alive is answered each time, and nothing is counted as spoken."""
    async with server() as started, speaking(started, "vllm_omni") as speaker:
        for number in range(3):
            await speaker.socket.send('{"type":"input.done"}')
            assert json.loads(await speaker.socket.recv()) == {
                "type": "session.done",
                "utterance_index": number,
                "total_sentences": 0,
            }
        assert await speaker.turn("Hi.")
        assert await metric(started, "orpheus_contexts_total", surface="vllm_omni") == 1


async def test_omni_bad_configuration_closes() -> None:
    """An error, then the close; what the client has sent meanwhile keeps nobody."""
    async with server() as started:
        async with connect(url(started, "/v1/audio/speech/stream")) as socket:
            await socket.send('{"type":"session.config","voice":"Vivian"}')
            for _ in range(40):  # more than the server takes before it is read
                await socket.send('{"type":"input.text","text":"Hi."}')
            event: dict[str, Any] = json.loads(await socket.recv())
            assert event["type"] == "error"
            assert "tara" in event["message"]
            with pytest.raises(ConnectionClosed):
                await socket.recv()
            assert socket.close_code == 1008
        await turns_until(lambda: started.admission.active == 0)


async def test_omni_turns_may_be_sent_ahead() -> None:
    """Utterances are spoken in their order, and each is answered once."""
    async with server() as started, speaking(started, "vllm_omni") as speaker:
        for _ in range(3):
            await speaker.write("Hi.", complete=True)
        await speaker.socket.send('{"type":"session.close"}')
        events = [json.loads(f) for f in await frames(speaker.socket) if isinstance(f, str)]
    done = [event for event in events if event["type"] == "session.done"]
    assert [event["utterance_index"] for event in done] == [0, 1, 2]
    assert [event["total_sentences"] for event in done] == [1, 1, 1]
    assert speaker.socket.close_code == 1000
