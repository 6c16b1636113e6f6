"""The listener of one turn, without sockets: what it hears depends on what comes and when, on nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws import messages as m
from orpheus_ws.loadtest import Plan
from orpheus_ws.loadtest.corpus import SIZES, TURNS, Script, script
from orpheus_ws.loadtest.listener import Listener
from orpheus_ws.loadtest.tally import Batch, Tally
from orpheus_ws.text import Segmenter

RATE = 24_000
T0 = 100.0


def make_listener(chars: int = 10, now: float = T0, **options: float) -> Listener:
    """One for a text of so many characters."""
    plan = Plan(url="ws://127.0.0.1:1/", **options)  # type: ignore[arg-type]
    text = Script("short", ("x",), 0, chars)
    return Listener(
        plan, text, T0, now=now, over=lambda: None, gap=_pass, late=lambda: None, first=_pass
    )


def _pass(_: float) -> None:
    """Nobody wants to know."""


def noise(samples: int, seed: int = 0) -> bytes:
    """Something to hear."""
    values = np.random.default_rng(seed).integers(-9000, 9000, samples)
    return values.astype("<i2").tobytes()


def audio(seq: int, offset: int, pcm: bytes) -> m.Audio:
    """A chunk."""
    return m.Audio(context="c", seq=seq, offset=offset, pcm=pcm)


def done(samples: int, chars: int = 10) -> m.Done:
    """The end of so much audio."""
    return m.Done(context="c", reason="end", audio_ms=samples / RATE * 1000, chars=chars)


@given(
    sizes=st.lists(st.integers(1, 20_000), min_size=1, max_size=30),
    waits=st.lists(st.floats(0, 0.2), min_size=30, max_size=30),
)
def test_whole_speech_has_no_fault(sizes: list[int], waits: list[float]) -> None:
    """However speech is cut and whenever it comes: numbered rightly, it is whole."""
    pcm = noise(sum(sizes))
    listener, offset, now = make_listener(chars=1), 0, T0
    for seq, (size, wait) in enumerate(zip(sizes, waits, strict=False)):
        now += wait
        listener.receive(audio(seq, offset, pcm[2 * offset : 2 * (offset + size)]), now)
        offset += size
    listener.receive(done(offset, chars=1), now)
    turn = listener.turn(0, T0, now, T0)
    # A text of one character is said in no time, but not in less.
    expected = ("early_end",) if offset < RATE / 40 else ()
    assert turn.faults == expected
    assert turn.audio_seconds == pytest.approx(sum(sizes) / RATE)


def test_latencies() -> None:
    """Each counts from the same moment: first byte, first audible sample, first sentence, the whole."""
    listener = make_listener(chars=20)
    listener.receive(m.Started(context="c", handle=0, queue_ms=7), T0 + 0.05)
    listener.receive(m.Segment(context="c", index=0, text="x", offset=0), T0 + 0.06)
    listener.receive(audio(0, 0, bytes(2 * 2400)), T0 + 0.1)
    listener.receive(audio(1, 2400, noise(2400)), T0 + 0.3)
    listener.receive(m.Segment(context="c", index=1, text="x", offset=4800), T0 + 0.35)
    listener.receive(audio(2, 4800, noise(RATE, 1)), T0 + 0.38)
    listener.receive(done(4800 + RATE, chars=20), T0 + 0.39)
    turn = listener.turn(3, T0, T0 + 0.5, T0 - 10)
    assert turn.queue_ms == 7
    latencies = (turn.first_byte_ms, turn.first_audio_ms, turn.first_sentence_ms, turn.whole_ms)
    assert latencies == pytest.approx((100, 300, 300, 390))
    assert (turn.stream, turn.begun) == (3, 10)
    assert turn.ended == pytest.approx(10.39)
    # It is heard a buffer after its first chunk, for 1.2 s; the second came too late by 20 ms.
    assert turn.underruns == 1
    assert turn.starved_ms == pytest.approx(20)
    assert turn.heard == pytest.approx(10 + 0.1 + 0.08 + 0.02 + 1.2)
    assert turn.longest_gap_ms == pytest.approx(200)


def test_real_time_factor() -> None:
    """It counts until the server may wait for the listener, and again when the listener's lead melts."""
    listener = make_listener(chars=100)
    for n in range(10):  # twice as fast as it is heard, for 1 s
        listener.receive(audio(n, n * 4800, noise(4800, n)), T0 + 0.1 * (n + 1))
    turn = listener.turn(0, T0, T0 + 1, T0)
    assert turn.real_time_factor == pytest.approx(2.0)
    # Then more at once, a lead of 2 s: no faster engine, only less waiting.
    listener.receive(audio(10, 48_000, noise(RATE, 11)), T0 + 1.0)
    assert listener.turn(0, T0, T0 + 1, T0).real_time_factor == pytest.approx(2.0)
    # And then nothing until nearly all is heard.
    listener.receive(audio(11, 72_000, noise(4800, 12)), T0 + 3.0)
    turn = listener.turn(0, T0, T0 + 3, T0)
    assert turn.real_time_factor == pytest.approx(3.2 / 3.0)
    # What came after the first chunk flowed in the time since.
    assert (turn.flowed_seconds, turn.flow_seconds) == pytest.approx((3.0, 2.9))


def test_a_stream_that_loses_ground() -> None:
    """Every chunk a little late, each by too little for an underrun: the stream's pace tells."""
    tally, late = Tally(), 0.1 / 0.92
    for stream, every in ((0, 0.1), (1, late)):
        listener = make_listener(chars=100)
        for n in range(60):
            listener.receive(audio(n, n * 2400, noise(2400, n)), T0 + every * (n + 1))
        turn = listener.turn(stream, T0, T0 + 60 * every, T0)
        tally.add(Batch(turns=[turn]))
        assert turn.underruns == 0
    assert tally.figures().slowest_stream == pytest.approx(0.92, abs=1e-4)


def test_a_pace_takes_some_listening() -> None:
    """Of streams that were heard for a moment only there is no pace."""
    tally, listener = Tally(), make_listener(chars=100)
    for n in range(5):
        listener.receive(audio(n, n * 2400, noise(2400, n)), T0 + 0.2 * n)
    tally.add(Batch(turns=[listener.turn(0, T0, T0 + 1, T0)]))
    assert tally.figures().slowest_stream is None


def test_an_interrupted_turn() -> None:
    """What comes after the listener spoke is not played, but it must still be accounted for."""
    listener = make_listener(chars=100)
    listener.receive(audio(0, 0, noise(4800)), T0 + 0.1)
    assert listener.played_ms(T0 + 0.28) == pytest.approx(100)
    listener.interrupt(T0 + 0.28)
    assert listener.closed
    listener.receive(audio(1, 4800, noise(4800, 1)), T0 + 5)
    listener.receive(m.Cancelled(context="c", sent_ms=400), T0 + 5.1)
    turn = listener.turn(0, T0, T0 + 6, T0)
    assert (turn.outcome, turn.underruns, turn.faults) == ("cancelled", 0, ())
    assert turn.cancel_ms == pytest.approx(4820)
    assert turn.heard == turn.ended


def test_what_was_sent_before_a_cancel_must_come() -> None:
    """`cancelled` counts what was sent; less than that is a fault."""
    listener = make_listener(chars=100)
    listener.receive(audio(0, 0, noise(4800)), T0 + 0.1)
    listener.interrupt(T0 + 0.2)
    listener.receive(m.Cancelled(context="c", sent_ms=300), T0 + 0.3)
    assert listener.turn(0, T0, T0 + 1, T0).faults == ("early_end",)


def test_stall() -> None:
    """Silence from the server is a stall only when nothing is left to play, for so long."""
    listener = make_listener(stall_seconds=2)
    listener.receive(audio(0, 0, noise(5 * RATE)), T0)
    assert not listener.stalls(T0 + 5)
    assert listener.stalls(T0 + 5.2)
    assert not listener.stalls(T0 + 6)
    turn = listener.turn(0, T0, T0 + 6, T0)
    assert (turn.outcome, turn.failure, turn.faults) == ("failed", "stall", ("stall",))


def test_waiting_for_a_socket_is_no_stall() -> None:
    """A turn that had to wait for a socket may be silent for as long as any other after that."""
    listener = make_listener(now=T0 + 30, stall_seconds=2)
    assert not listener.stalls(T0 + 31)
    assert listener.stalls(T0 + 32.1)


def test_a_tone_repeats_itself() -> None:
    """A simulated codec's tone is the same in every chunk, which says nothing."""
    tone = (9000 * np.sin(np.arange(2048) * 2 * np.pi * 20 / 2048)).round().astype("<i2").tobytes()
    listener = make_listener(chars=1)
    for n in range(4):
        listener.receive(audio(n, n * 2048, tone), T0)
    listener.receive(done(4 * 2048, chars=1), T0)
    assert listener.turn(0, T0, T0, T0).faults == ()


def test_a_text_cut_once_more() -> None:
    """Text that came late is cut once more than foreseen; no word is missing for that."""
    listener = make_listener(chars=21)
    for index in range(3):
        listener.receive(m.Segment(context="c", index=index, text="x", offset=0), T0)
    listener.receive(audio(0, 0, noise(RATE)), T0)
    listener.receive(done(RATE, chars=19), T0)
    assert listener.turn(0, T0, T0, T0).faults == ()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("words", [True, False])
def test_corpus(size: str, *, words: bool) -> None:
    """Turns differ, are as long as they are called, and are known to the segmenter."""
    assert len(set(TURNS[size])) == len(TURNS[size]) >= 8
    low, high = {"short": (1, 4), "medium": (5, 12), "long": (15, 40)}[size]
    for text in TURNS[size]:
        turn = script(size, text, words=words)
        assert low <= turn.seconds <= high
        assert "".join(turn.pieces).split() == text.split()
        segmenter = Segmenter()
        for piece in turn.pieces[: turn.completing]:
            assert not segmenter.feed(piece)
