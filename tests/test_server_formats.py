"""Every encoding at every rate over real sockets: gapless, of the right length, cancellable."""

import json
from fractions import Fraction

import pytest
from websockets.asyncio.client import connect

from orpheus_ws import messages as m
from orpheus_ws.audio import Player
from orpheus_ws.pcm import ENCODINGS, SAMPLE_RATES
from tests.harness import JSON, MSGPACK, Peer, audio, server
from tests.server_peers import SENTENCE, STEPPED, metric, one

WIDTHS = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}
TEXT = "It is so. And so on."
"""Two segments; five times it is within `lead_ms`, so that nothing is held back."""


def samples(received: list[m.ServerMessage], encoding: str) -> int:
    """The samples of a context, checked to be whole and without a gap; segments start in place."""
    count = seq = 0
    for message in received:
        if isinstance(message, m.Segment):
            assert message.offset == count
        if isinstance(message, m.Audio):
            assert (message.seq, message.offset) == (seq, count)
            assert message.pcm
            assert len(message.pcm) % WIDTHS[encoding] == 0
            seq += 1
            count += len(message.pcm) // WIDTHS[encoding]
    return count


async def speak(connected: Peer, encoding: str, rate: int) -> list[m.ServerMessage]:
    """Speak the text in a format, from a seed."""
    context = f"{encoding} {rate}"
    opening = m.Open(
        context=context,
        encoding=encoding,
        sample_rate=rate,
        sampling=m.Sampling(seed=7),
        words=True,
    )
    await connected.send(opening)
    await connected.say(context, TEXT)
    return await connected.utterance(context)


async def test_ready_lists_the_formats() -> None:
    """A client learns of encodings and rates before it opens a context."""
    async with server() as started, connect(started.address.url, compression=None) as socket:
        ready = json.loads(await socket.recv())
    assert ready["encodings"] == ["pcm_s16le", "pcm_f32le", "mulaw", "alaw"]
    assert ready["sample_rates"] == [8000, 16_000, 24_000, 48_000]


@pytest.mark.parametrize("subprotocol", [MSGPACK, JSON])
@pytest.mark.parametrize("rate", SAMPLE_RATES)
async def test_every_format_is_gapless(rate: int, subprotocol: str) -> None:
    """In each encoding all samples arrive, count at the negotiated rate, and last what is said."""
    async with one(subprotocol=subprotocol) as (_, connected):
        native = samples(await speak(connected, "pcm_s16le", 24_000), "pcm_s16le")
        for encoding in ENCODINGS:
            received = await speak(connected, encoding, rate)
            count = samples(received, encoding)
            done = received[-1]
            assert isinstance(done, m.Done)
            assert done.reason == "end"
            assert done.audio_ms == round(count * 1000 / rate, 3)
            # Two segments, each rounded to the nearest sample.
            assert abs(count - Fraction(native * rate, 24_000)) < 1
            words = [message for message in received if isinstance(message, m.Words)]
            assert len(words) == 2
            assert words[-1].words[-1].end_ms == round(done.audio_ms, 1)


@pytest.mark.parametrize("rate", SAMPLE_RATES)
async def test_a_second_is_a_second_at_every_rate(
    rate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the listener is taken to have, which sets the pace, and what is counted are in real time."""
    taken: list[float] = []

    class RecordingPlayer(Player):
        def receive(self, seconds: float, now: float) -> None:
            taken.append(seconds)
            super().receive(seconds, now)

    monkeypatch.setattr("orpheus_ws.server.spoken_context.Player", RecordingPlayer)
    async with one() as (started, connected):
        count = samples(await speak(connected, "pcm_s16le", rate), "pcm_s16le")
        sent = await metric(started, "orpheus_audio_seconds_total")
    assert sent == pytest.approx(count / rate)
    assert sum(taken) == pytest.approx(count / rate)


async def test_cancel_on_the_telephone() -> None:
    """At 8 kHz µ-law a cancelled context ends at once, and tells what was sent and heard."""
    async with one(STEPPED) as (_, connected):
        phone = m.Config(encoding="mulaw", sample_rate=8000)
        await connected.send(phone)
        await connected.say("a", SENTENCE * 4)
        received: list[m.ServerMessage] = []
        while samples(received, "mulaw") < 8000:
            received.append(await connected.receive())
        await connected.send(m.Cancel(context="a", played_ms=500))
        received += await connected.utterance("a")
        assert audio(await connected.fence()) == []
        cancelled = received[-1]
        assert isinstance(cancelled, m.Cancelled)
        assert cancelled.sent_ms == samples(received, "mulaw") / 8
        # 500 ms are some eight characters.
        assert cancelled.text_spoken is not None
        assert cancelled.text_spoken in ("The", "The quick")
        await connected.say("b", SENTENCE)
        received = await connected.utterance("b")
        assert isinstance(received[-1], m.Done)
        assert samples(received, "mulaw") == received[-1].audio_ms * 8
