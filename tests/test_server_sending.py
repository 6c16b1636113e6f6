"""How audio leaves: in order, together, and in larger pieces once a listener has a lead."""

import asyncio

import pytest
from websockets.frames import Frame, Opcode

from orpheus_ws import messages as m
from orpheus_ws.context import Context, Reason
from orpheus_ws.server.outbox import TURN_BYTES, Outbox
from orpheus_ws.tokens import SAMPLES_PER_FRAME
from orpheus_ws.trace import clock
from orpheus_ws.wire.native import MsgpackWire
from tests.harness import audio, pcm, turns_until
from tests.server_peers import SENTENCE, metric, one, socket_of, stepped_by_hand

LONG = " ".join([SENTENCE] * 3)


class _Transport:
    def __init__(self) -> None:
        self.aborted = False
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.aborted = True


class _Connection:
    """As much of a connection as an outbox sees."""

    def __init__(self, sent: list[str], name: str, error: Exception | None = None) -> None:
        self.transport = _Transport()
        self._sent = sent
        self._name = name
        self._error = error

    def send_data(self) -> None:
        if self._error is not None:
            raise self._error
        self._sent.append(self._name)


@pytest.mark.parametrize("error", [BrokenPipeError(), RuntimeError("the handler is closed")])
async def test_a_broken_connection_keeps_nobody_from_theirs(error: Exception) -> None:
    """What is posted in one turn is sent in order; a connection that fails is dropped alone."""
    sent: list[str] = []
    outbox = Outbox()
    broken, gone = _Connection(sent, "broken", error), _Connection(sent, "gone")
    gone.transport.closing = True
    for connection in (_Connection(sent, "first"), broken, gone, _Connection(sent, "last")):
        outbox.post(connection, 1)  # type: ignore[arg-type]
    assert sent == []
    await asyncio.sleep(0)
    assert sent == ["first", "last"]
    assert broken.transport.aborted
    assert not gone.transport.aborted
    outbox.post(_Connection(sent, "again"), 1)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert sent == ["first", "last", "again"]


async def test_one_turn_does_not_fill_the_memory() -> None:
    """However much there is to say at once, it waits for the peer to read, and all of it arrives."""
    chars, contexts = 19_000, 32
    async with one() as (started, peer):
        (connection,) = started._connections
        await peer.send(m.Config(segment=m.Segmentation(mode="flush")))
        for context in range(contexts):
            await peer.send(m.Text(context=str(context), text="語" * chars))
        await peer.fence()
        transport = socket_of(connection).transport
        peer.socket.transport.pause_reading()
        await peer.send(m.Cancel(context="*", played_ms=0.0))
        await turns_until(lambda: socket_of(connection).paused)
        assert transport.get_write_buffer_size() < 2 * TURN_BYTES + 3 * chars
        peer.socket.transport.resume_reading()
        endings = [await peer.wait_for(m.Cancelled) for _ in range(contexts)]
    assert [len(ending.text_remaining or "") for ending in endings] == [chars] * contexts


async def test_nothing_of_a_context_follows_its_end() -> None:
    """Cancelled while its last messages wait for a slow peer, a context sends no more of them."""
    async with one() as (started, peer):
        (connection,) = started._connections
        socket = socket_of(connection)
        await peer.send(m.Config(words=True, sampling=m.Sampling(max_tokens=21)))
        await peer.say("a", SENTENCE)
        end_segment = Context.end_segment

        def paused(context: Context, text: str, reason: Reason) -> list[m.ServerMessage]:
            socket.pause_writing()
            return end_segment(context, text, reason)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Context, "end_segment", paused)
            await turns_until(lambda: bool(socket.drain_waiters))
        # In one turn the peer says that it has heard enough, and reads what there was.
        cancel = MsgpackWire().encode_request(m.Cancel(context="a"))
        socket.data_received(Frame(Opcode.BINARY, cancel).serialize(mask=True))
        socket.resume_writing()
        received = await peer.utterance("a")
        assert isinstance(received[-2], m.Warn)
        assert isinstance(received[-1], m.Cancelled)
        assert await peer.fence() == []


async def test_each_frame_leaves_by_itself_without_a_lead() -> None:
    """With grouping off, every step of the engine is a message of one frame, however much is ahead."""
    async with one("server.group_lead_ms=0") as (started, peer):
        engine = stepped_by_hand(started)
        await peer.say("a", SENTENCE)
        await peer.wait_for(m.Started)
        for _ in range(30):
            engine._step(tuple(engine._running))
            chunk = await peer.wait_for(m.Audio)
            assert len(chunk.pcm) // 2 <= SAMPLES_PER_FRAME


async def test_a_listener_with_a_lead_gets_several_frames_at_once() -> None:
    """The first frame comes alone; with a lead, messages grow and the audio stays the same."""
    whole: list[bytes] = []
    for group_lead in (0, 300):
        async with one(
            f"server.group_lead_ms={group_lead}", "engine.options.step_seconds=0.002"
        ) as (_, peer):
            await peer.send(m.Config(sampling=m.Sampling(seed=1)))
            await peer.say("a", LONG)
            received = await peer.utterance("a")
        whole.append(pcm(received))
    assert whole[0] == whole[1]
    assert len(audio(received)) < len(whole[1]) // 2 // SAMPLES_PER_FRAME / 2


async def test_a_segment_that_hangs_shows_while_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that stops in the middle of a segment is in a gauge until it goes on or is left."""
    ahead = 0.0
    monkeypatch.setattr("orpheus_ws.metrics.clock", lambda: clock() + ahead)
    async with one("engine.options.fault=stalls", "engine.options.fault_requests=1") as (
        started,
        peer,
    ):
        await peer.say("a", SENTENCE)
        await peer.wait_for(m.Audio)
        assert await metric(started, "orpheus_segments_stalled_over_1s") == 0
        ahead = 2.0
        assert await metric(started, "orpheus_segments_stalled_over_1s") == 1
        assert await metric(started, "orpheus_contexts_waiting_over_1s") == 0
        await peer.send(m.Cancel(context="a"))
        await peer.utterance("a")
        # It is told at once, and the engine is left in the turns after that.
        while await metric(started, "orpheus_segments_stalled_over_1s"):
            pass
