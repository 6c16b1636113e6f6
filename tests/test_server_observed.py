"""The server over real sockets: what metrics and logs tell, and what is left behind."""

import json
import logging

import msgpack
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from orpheus_ws import messages as m
from orpheus_ws.audio import AUDIBLE, Player
from orpheus_ws.context import Context
from orpheus_ws.errors import StartupError
from orpheus_ws.logs import Formatter
from orpheus_ws.server.spoken_context import SpokenContext
from orpheus_ws.session import Action, Session
from orpheus_ws.tokens import FRAME_SECONDS
from orpheus_ws.trace import clock
from tests.harness import pcm, peer, server, turns_until
from tests.server_peers import (
    SENTENCE,
    STEPPED,
    at_rest,
    closed,
    held,
    http,
    metric,
    one,
    stepped_by_hand,
)

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


@pytest.mark.parametrize("rate", [8000, 24_000])
async def test_leading_silence(rate: int, caplog: pytest.LogCaptureFixture) -> None:
    """Of 0.6 s of silence 50 ms are heard, the rest is logged, and the first sound is what is timed."""
    caplog.set_level(logging.INFO, logger="orpheus_ws")
    async with one("engine.options.silent_frames=7") as (started, connected):
        await connected.send(m.Config(sample_rate=rate))
        await connected.say("a", SENTENCE)
        received = await connected.utterance("a")
        assert await metric(started, "orpheus_time_to_first_audio_seconds_count") == 1
    heard = np.abs(np.frombuffer(pcm(received), "<i2"))
    onset = np.flatnonzero(heard >= AUDIBLE * 32_767)[0] * 1000 / rate
    assert onset == pytest.approx(50, abs=2)
    (record,) = [record for record in caplog.records if record.message == "context ended"]
    line = json.loads(Formatter().format(record))
    silence = 7 * FRAME_SECONDS * 1000
    assert line["trimmed_ms"] == pytest.approx(silence - 50, abs=2)
    done = received[-1]
    assert isinstance(done, m.Done)
    whole = line["frames"] * FRAME_SECONDS * 1000
    assert done.audio_ms == pytest.approx(whole - line["trimmed_ms"], abs=1)
    assert line["ttfa_ms"] == pytest.approx(done.ttfa_ms, abs=0.1)
    assert line["ttfa_ms"] >= line["ttfb_ms"]


async def test_underruns_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that comes after the listener has run dry is an underrun, with the seconds of silence."""
    ahead = 0.0
    for module in ("connection", "spoken_context"):
        monkeypatch.setattr(f"orpheus_ws.server.{module}.clock", lambda: clock() + ahead)
    async with one("server.group_lead_ms=0") as (started, connected):
        engine = stepped_by_hand(started)
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Started)
        for gap in (0.0, 100.0, 200.0):
            ahead += gap
            engine._step(tuple(engine._running))
            await connected.wait_for(m.Audio)
        assert await metric(started, "orpheus_underruns_total") == 2
        seconds = await metric(started, "orpheus_underrun_seconds_total")
        (connection,) = started._connections
        assert connection._spoken is not None
        # Of the two gaps, less what was in hand; the machine may add to it.
        assert seconds == pytest.approx(connection._spoken.player.starved_seconds)
        assert seconds >= 299.5


def test_the_first_sound_is_heard_once_it_is_delivered() -> None:
    """A resampler may still hold the sample that the shaper has let pass."""
    settings = m.Settings(voice="tara", sample_rate=8000)
    context = Context("a", 1, settings, lambda *_: None, 0.0)
    spoken = SpokenContext(context, Player(), 0.0)
    context.delivered = 400
    assert not spoken.sounds()
    spoken.shaper.first_sound = 1200
    assert not spoken.sounds()
    context.delivered = 401
    assert spoken.sounds()


async def test_time_to_first_audio_is_to_the_first_sound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Chunks in which nothing can be heard yet are no first audio, only first bytes."""
    caplog.set_level(logging.INFO, logger="orpheus_ws")
    silent = iter((False, False))
    monkeypatch.setattr(SpokenContext, "sounds", lambda _spoken: next(silent, True))
    async with one(STEPPED, "server.group_lead_ms=0") as (_, connected):
        await connected.say("a", SENTENCE)
        done = (await connected.utterance("a"))[-1]
    (record,) = [record for record in caplog.records if record.message == "context ended"]
    line = json.loads(Formatter().format(record))
    assert isinstance(done, m.Done)
    assert done.ttfa_ms is not None
    assert line["ttfa_ms"] == pytest.approx(done.ttfa_ms, abs=0.1)
    assert line["ttfa_ms"] > line["ttfb_ms"]


async def test_a_stuck_context_shows_while_it_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context whose engine says nothing is counted as waiting until it is cancelled."""
    monkeypatch.setattr("orpheus_ws.metrics.WAITING_SECONDS", 0.0)
    async with one() as (started, connected):
        stepped_by_hand(started)
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Started)
        assert await metric(started, "orpheus_live_contexts", state="speaking") == 1
        assert await metric(started, "orpheus_contexts_waiting_over_1s") == 1
        await connected.send(m.Cancel(context="a"))
        await connected.wait_for(m.Cancelled)
        await turns_until(lambda: started.engine.statistics().active == 0)
        assert await metric(started, "orpheus_live_contexts", state="speaking") == 0
        assert await metric(started, "orpheus_contexts_waiting_over_1s") == 0


@pytest.mark.parametrize("rate", [8000, 24_000])
async def test_unheard_audio_is_counted(rate: int) -> None:
    """What was sent or generated and not heard counts as orphaned when its context is cancelled."""
    async with one("engine.options.fault=never_stops") as (started, connected):
        # As long as may be, and no more than `lead_ms` of it ahead: it has not ended when it is cancelled.
        sampling = m.Sampling(max_tokens=2030)
        await connected.send(m.Open(context="a", sample_rate=rate, sampling=sampling))
        await connected.say("a", SENTENCE)
        seconds = 0.0
        while seconds < 3.0:
            seconds += len((await connected.wait_for(m.Audio)).pcm) / 2 / rate
        await connected.send(m.Cancel(context="a"))
        await connected.wait_for(m.Cancelled)
        # It is told at once, and what it took is known when engine and codec are free.
        while not await metric(started, "orpheus_cancel_seconds_count"):
            pass
        # 290 frames at most were generated; what has been played since the first chunk is little.
        orphaned = await metric(started, "orpheus_orphaned_audio_seconds_total")
        assert 0 < orphaned <= 290 * 2048 / 24_000 + 1e-6
        assert await metric(started, "orpheus_cancel_seconds_count") == 1
    async with one("engine.options.fault=raises") as (started, connected):
        await connected.say("a", SENTENCE)
        await connected.utterance("a")
        assert await metric(started, "orpheus_orphaned_audio_seconds_total") == 0
        assert await metric(started, "orpheus_cancel_seconds_count") == 0


async def test_a_bug_is_logged_and_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody foresaw closes the socket with 1011, and is logged with its type."""

    def broken(_session: Session, _now: float, _may_speak: object) -> Action:
        raise LookupError("marked words")

    async with one() as (_, connected):
        monkeypatch.setattr(Session, "next", broken)
        await connected.say("a", SENTENCE)
        assert await closed(connected) == (1011, "internal")
    (record,) = [record for record in caplog.records if record.message == "socket failed"]
    line = Formatter().format(record)
    assert "LookupError" in line
    assert "marked" not in line


async def test_a_full_server_that_speaks_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every slot taken and no audio yet, readiness waits for some instead of refusing."""
    settings = ("engine.capacity=1", "engine.options.fault=never_stops", STEPPED)
    async with one(*settings) as (started, connected):
        started.health._worked_at = None
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Started)
        assert (await http(started, "/readyz"))[0] == 200
    async with one("engine.capacity=1") as (started, connected):
        monkeypatch.setattr("orpheus_ws.server.health.PROBE_SECONDS", 0.05)
        stepped_by_hand(started)
        started.health._worked_at = None
        await connected.say("a", SENTENCE)
        await connected.wait_for(m.Started)
        assert (await http(started, "/readyz"))[0] == 503


@pytest.mark.parametrize("fault", ["empty", "raises", "stalls"])
async def test_a_server_that_cannot_speak_is_not_ready(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is there and free and gives no sound makes no server ready, at the start or later."""
    # What raises or stalls does so after two frames, which are silent here.
    mute = (f"engine.options.fault={fault}", "engine.options.silent_frames=2")
    with monkeypatch.context() as hasty:
        hasty.setattr("orpheus_ws.server.health.PROBE_SECONDS", 0.3)
        with pytest.raises(StartupError, match="a test word gave no sound"):
            async with server(*mute):
                pass
    async with server(*mute, "engine.options.fault_requests=1,2") as started:
        # From now on: that it starts may take its time.
        monkeypatch.setattr("orpheus_ws.server.health.PROBE_SECONDS", 0.3)
        started.health._worked_at = None
        assert (await http(started, "/readyz"))[0] == 503
        assert started.engine.statistics().active == 0


async def test_a_simulated_engine_is_marked() -> None:
    """Whoever scrapes a server whose engine is simulated can tell."""
    async with server() as started:
        assert await metric(started, "orpheus_engine_simulated") == 1


async def test_a_probe_is_no_traffic() -> None:
    """What readiness probes speak is counted nowhere."""
    async with server() as started:
        started.health._worked_at = None
        assert (await http(started, "/readyz"))[0] == 200
        assert await metric(started, "orpheus_tokens_total") == 0
        assert await metric(started, "orpheus_frames_total") == 0


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
        marked = {"type": "open", "context": "marked-2", "traceparent": "marked words"}
        await connected.socket.send(msgpack.packb(marked))
        await connected.fence()
    assert caplog.records
    for record in caplog.records:
        assert "marked" not in str(vars(record)).lower()


async def test_logs_say_whose_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """Lines have the session that the client was told and the name of its key, and no secret."""
    caplog.set_level(logging.INFO, logger="orpheus_ws")
    settings = ("auth.keys.alice=hidden", "engine.capacity=1")
    headers = {"X-API-Key": "hidden"}
    async with (
        server(*settings) as started,
        connect(started.address.url, additional_headers=headers, compression=None) as socket,
    ):
        ready = json.loads(await socket.recv())
        await socket.send(json.dumps({"type": "end", "context": "x"}))
        assert json.loads(await socket.recv())["type"] == "done"
        for wrong in (headers, {}):
            with pytest.raises(InvalidStatus):
                await connect(started.address.url, additional_headers=wrong)
    lines = [json.loads(Formatter().format(record)) for record in caplog.records]
    (ended,) = [line for line in lines if line["event"] == "context ended"]
    assert (ended["session"], ended["key"]) == (ready["session"], "alice")
    refused = [line for line in lines if line["event"] == "refused"]
    assert [(line["reason"], line["key"]) for line in refused] == [
        ("full", "alice"),
        ("auth", None),
    ]
    assert "hidden" not in json.dumps(lines)


async def test_nothing_is_left_behind() -> None:
    """After sockets have come and gone, slots, streams, contexts and tasks are as at the start."""
    async with server(STEPPED) as started:
        before = await at_rest(started)
        for _ in range(5):
            async with peer(started.address.url) as connected:
                await connected.say("a", SENTENCE)
                await connected.wait_for(m.Audio)
        await turns_until(lambda: held(started) == before)
        assert before[2:] == (0,) * 5
        assert not started._connections
        for state in ("open", "queued", "speaking", "starved"):
            assert await metric(started, "orpheus_live_contexts", state=state) == 0
