"""Audio: segments are trimmed, joined and faded as a listener would want."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orpheus_ws.audio import AUDIBLE, Shaper
from orpheus_ws.pcm import Samples

FADE = 240
LARGEST_STEP = 0.02


def ms(milliseconds: float) -> int:
    """Samples of so many milliseconds at the codec's rate."""
    return round(milliseconds * 24)


def tone(samples: int, amplitude: float = 0.4) -> Samples:
    """A slow sine that starts at 0; its own steps are below 0.01 of full scale."""
    return np.asarray(amplitude * np.sin(np.arange(samples) * 0.009), np.float32)


def level(samples: int, amplitude: float = 0.4) -> Samples:
    """A constant: every step in what becomes of it was introduced."""
    return np.full(samples, amplitude, np.float32)


def hush(samples: int, amplitude: float = 0.004, seed: int = 0) -> Samples:
    """Near-silence, as the model leaves it before and after speech."""
    noise = np.random.default_rng(seed).uniform(-amplitude, amplitude, samples)
    return noise.astype(np.float32)


def joined(*parts: Samples) -> Samples:
    """Parts one after the other."""
    return np.concatenate([np.zeros(0, np.float32), *parts])


def shape(shaper: Shaper, *segments: Samples, chunk: int = 2048) -> list[Samples]:
    """What comes out of each segment when it is fed in chunks of this length."""
    result = []
    for segment in segments:
        chunks = [segment[start : start + chunk] for start in range(0, len(segment), chunk)]
        result.append(joined(*map(shaper.feed, chunks), shaper.finish()))
    return result


def steps(samples: Samples) -> Samples:
    """The sizes of all sample-to-sample steps of a stream, from and back to silence included."""
    return np.abs(np.diff(np.pad(samples.astype(np.float64), 1)))


def sounds(samples: Samples) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Where samples are audible."""
    return np.flatnonzero(np.abs(samples) >= AUDIBLE)


def pause_between(first: Samples, second: Samples) -> int:
    """Inaudible samples between the last sound of one segment and the first of the next."""
    return len(first) - 1 - int(sounds(first)[-1]) + int(sounds(second)[0])


# Field cases of area audio ------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 100, 2048, 100_000])
def test_leading_silence(chunk: int) -> None:
    """leading-silence: 0.6 s of near-silence becomes 50 ms; the rest is reported as trimmed."""
    shaper = Shaper()
    (result,) = shape(shaper, joined(hush(ms(600)), level(ms(300))), chunk=chunk)
    assert len(result) == ms(50) + ms(300)
    assert shaper.trimmed == ms(550)
    assert shaper.first_sound == ms(50)
    assert not len(sounds(result[: ms(50)]))


def test_first_sound_is_known_with_its_first_sample() -> None:
    """leading-silence: silence alone is never reported as first sound, the sound is, at once."""
    shaper = Shaper()
    assert not len(shaper.feed(hush(ms(600))))
    assert shaper.first_sound is None
    sent = shaper.feed(level(ms(20)))
    assert len(sent)
    assert shaper.first_sound == sounds(sent)[0]


def test_short_leading_silence_stays() -> None:
    """leading-silence: up to 50 ms of it is kept, so that a soft onset survives."""
    shaper = Shaper()
    (result,) = shape(shaper, joined(hush(ms(40)), level(ms(100))))
    assert len(result) == ms(140)
    assert (shaper.trimmed, shaper.first_sound) == (0, ms(40))


@pytest.mark.parametrize("chunk", [7, 2048])
def test_end_pop(chunk: int) -> None:
    """end-pop: a segment that stops at 0.4 of full scale is faded, and so are its start and a join.

    The input is constant, so every step was introduced.
    """
    result = joined(*shape(Shaper(), level(4096), level(4096, -0.4), chunk=chunk))
    assert steps(result).max() <= LARGEST_STEP
    assert np.abs(result).max() == pytest.approx(0.4)


@pytest.mark.parametrize("pause", [0, 50, 99, 100, 200, 350, 500])
def test_end_pop_at_a_join(pause: int) -> None:
    """end-pop: a segment that starts at 0.4 after a pause of the one before does not click."""
    shaper = Shaper()
    shaper.feed(tone(4096))
    shaper.feed(np.zeros(ms(pause), np.float32))
    shaper.finish()
    (second,) = shape(shaper, level(4096))
    assert steps(second).max() <= LARGEST_STEP


def test_end_pop_of_a_short_sound() -> None:
    """end-pop: a segment that barely begins to sound before it is over does not click either."""
    pause = hush(ms(400), amplitude=0.0)
    shaped = shape(Shaper(), joined(level(4096), pause), joined(pause, level(120)))
    # The sound itself begins with a step of 0.4; the shaper may soften it but not add to it.
    assert steps(shaped[1]).max() <= 0.4


@pytest.mark.parametrize("chunk", [7, 2048])
def test_glued_sentences(chunk: int) -> None:
    """glued-sentences: sentences that bring no silence of their own get a natural pause."""
    first, second = shape(Shaper(), level(ms(500)), level(ms(500)), chunk=chunk)
    assert ms(100) <= pause_between(first, second) <= ms(350)


@pytest.mark.parametrize("tail", [0, 60, 200, 349, 350, 351, 900])
@pytest.mark.parametrize("head", [0, 60, 200, 349, 350, 351, 900])
def test_pause_between_segments(tail: int, head: int) -> None:
    """glued-sentences: tail and head together are between 100 and 350 ms, and kept if they are.

    A fade of at most 10 ms may make a sound inaudible on either side.
    """
    first, second = shape(
        Shaper(),
        joined(level(ms(300)), hush(ms(tail))),
        joined(hush(ms(head)), level(ms(300))),
    )
    pause = pause_between(first, second)
    assert ms(100) <= pause <= ms(350)
    assert pause == pytest.approx(min(ms(350), max(ms(100), ms(tail + head))), abs=3 * FADE)


# Properties of the shaper -------------------------------------------------------------------------

# A run of a segment: its loudness and its length.
RUNS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.004, 0.009, 0.011, 0.05, 0.4, 1.0]),
        st.one_of(st.integers(1, 600), st.sampled_from([1200, 2400, 8399, 8401, 9000, 20_000])),
    ),
    max_size=5,
)


def build(runs: Sequence[tuple[float, int]], seed: int) -> Samples:
    """A segment of noise with these loudnesses, reached by each of its samples."""
    source = np.random.default_rng(seed)
    parts = [loud * source.choice([-1.0, 1.0], length) for loud, length in runs]
    return joined(*(part.astype(np.float32) for part in parts))


@given(
    segments=st.lists(RUNS, min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    chunks=st.lists(st.integers(1, 9000), max_size=6),
)
@example(segments=[[(1.0, 600), (0.0, 8400)], [(0.011, 1), (0.0, 20_000)]], seed=0, chunks=[37])
@example(segments=[[(0.4, 5804), (0.0, 1000)], [(0.4, 3000)]], seed=0, chunks=[2048] * 6)
@example(segments=[[(0.4, 5804), (0.0, 9000)], [(0.4, 3000)]], seed=0, chunks=[2048] * 6)
@settings(max_examples=150, deadline=None)
def test_output_does_not_depend_on_chunking(
    segments: list[list[tuple[float, int]]], seed: int, chunks: list[int]
) -> None:
    """However the codec cuts its samples, what is sent and reported is the same."""
    whole, parts = Shaper(), Shaper()
    for number, runs in enumerate(segments):
        segment = build(runs, seed + 10 * number)
        expected = joined(whole.feed(segment), whole.finish())
        sent: list[Samples] = []
        start = 0
        while start < len(segment):
            length = [*chunks, 4096][len(sent) % (len(chunks) + 1)]
            sent.append(parts.feed(segment[start : start + length]))
            start += length
        np.testing.assert_array_equal(joined(*sent, parts.finish()), expected)
        assert (parts.trimmed, parts.first_sound) == (whole.trimmed, whole.first_sound)


@given(runs=RUNS, seed=st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
def test_what_is_between_the_edges_is_untouched(runs: list[tuple[float, int]], seed: int) -> None:
    """From its first sound to its last, a segment comes out sample by sample, pauses included.

    Only the silence around it is cut: to 50 ms before and 320 ms after. Only edges are faded.
    """
    segment = build(runs, seed)
    shaper = Shaper()
    (result,) = shape(shaper, segment)
    loud = sounds(segment)
    assert len(result) + shaper.trimmed == len(segment)
    if not len(loud):
        assert not len(result)
        return
    begin = max(0, int(loud[0]) - ms(50))
    end = min(len(segment), int(loud[-1]) + 1 + ms(320))
    assert len(result) == end - begin
    np.testing.assert_array_equal(result[FADE:-FADE], segment[begin:end][FADE:-FADE])
    assert np.all(np.abs(result) <= np.abs(segment[begin:end]))
    assert shaper.first_sound == next(iter(sounds(result)), None)


@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 12_000), st.integers(480, 5000), st.integers(0, 12_000)),
        min_size=2,
        max_size=5,
    ),
    loud=st.sampled_from([0.05, 0.4, 1.0]),
)
@settings(max_examples=100, deadline=None)
def test_all_pauses_are_bounded(pieces: list[tuple[int, int, int]], loud: float) -> None:
    """Whatever silence segments bring, every pause between two is 100 to 350 ms, plus their fades."""
    shaped = shape(
        Shaper(), *(joined(hush(a), level(b, loud), hush(c)) for a, b, c in pieces), chunk=4096
    )
    for first, second in pairwise(shaped):
        assert ms(100) <= pause_between(first, second) <= ms(350)


@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 9000), st.integers(0, 5000), st.integers(0, 9000)),
        min_size=1,
        max_size=4,
    ),
    amplitude=st.sampled_from([0.02, 0.4, 1.0]),
    chunk=st.sampled_from([50, 2048]),
)
@example(lengths=[(0, 120, 0)], amplitude=1.0, chunk=2048)
@settings(max_examples=100, deadline=None)
def test_no_click_at_edges_and_joins(
    lengths: list[tuple[int, int, int]], amplitude: float, chunk: int
) -> None:
    """end-pop: smooth segments of any length, cut off anywhere, give a stream without a click.

    Each starts softly after its silence and is followed by silence, or by nothing, at once. What is
    not at an edge is the input's own step.
    """
    shaper = Shaper()
    for lead, sounding, rest in lengths:
        # Silence follows a sound softly: only the segment's very end is abrupt.
        sound = tone(sounding, amplitude)
        if rest:
            sound *= np.minimum(1.0, np.arange(sounding, 0, -1) / 2000).astype(np.float32)
        segment = joined(np.zeros(lead, np.float32), sound, np.zeros(rest, np.float32))
        (result,) = shape(shaper, segment, chunk=chunk)
        assert steps(result).max(initial=0.0) <= LARGEST_STEP


@pytest.mark.parametrize("loud", [0.0, 0.009])
@pytest.mark.parametrize("chunk", [1000, 100_000])
def test_a_silent_segment_does_not_disturb(loud: float, chunk: int) -> None:
    """A wholly silent segment sends nothing, and its neighbours come out as if it were not there."""
    first, second = level(3000), joined(hush(500), level(3000, 0.3), hush(500))
    silent = hush(30_000, loud)
    shaper, alone = Shaper(), Shaper()
    before, a, between, b, after = shape(shaper, silent, first, silent, second, silent, chunk=chunk)
    expected_a, expected_b = shape(alone, first, second)
    assert [len(before), len(between), len(after)] == [0, 0, 0]
    np.testing.assert_array_equal(a, expected_a)
    np.testing.assert_array_equal(b, expected_b)
    assert shaper.trimmed == alone.trimmed + 3 * len(silent)
    assert shaper.first_sound == alone.first_sound


def test_an_empty_segment_sends_nothing() -> None:
    """A segment without a sample, or of empty chunks, is as if it were not there."""
    shaper = Shaper()
    assert not len(shaper.finish())
    assert not len(shaper.feed(np.zeros(0, np.float32)))
    assert not len(shaper.finish())
    assert (shaper.trimmed, shaper.first_sound) == (0, None)


def test_a_very_quiet_segment_is_spoken() -> None:
    """A voice that barely reaches the audible level comes out whole."""
    quiet = (0.0105 * np.sin(np.arange(ms(1000)) * 0.05)).astype(np.float32)
    shaper = Shaper()
    (result,) = shape(shaper, quiet)
    assert len(result) == len(quiet)
    np.testing.assert_array_equal(result[FADE:-FADE], quiet[FADE:-FADE])
    assert shaper.trimmed == 0


def test_every_sample_is_accounted_for() -> None:
    """What comes out and what was trimmed is what went in, also where a fade swallows a sound.

    The second segment is three samples barely audible, at once after a pause of 350 ms.
    """
    spoken = joined(level(4096), hush(ms(400), 0.0))
    click = joined(level(3, 0.02), hush(ms(400), 0.0))
    shaper = Shaper()
    shaped = shape(shaper, spoken, click, spoken)
    assert sum(map(len, shaped)) + shaper.trimmed == 2 * len(spoken) + len(click)


def test_long_pause_is_passed_when_speech_goes_on() -> None:
    """A pause of 2 s inside a segment is held back only until the next sound, then sent whole."""
    shaper = Shaper()
    sent = [shaper.feed(level(ms(100))), shaper.feed(hush(ms(2000)))]
    assert ms(400) <= sum(map(len, sent)) <= ms(450)
    sent.append(shaper.feed(level(ms(100))))
    assert sum(map(len, sent)) >= ms(2190)
    assert len(joined(*sent, shaper.finish())) == ms(2200)


def test_the_shaper_leaves_its_input_alone() -> None:
    """Fades are applied to a copy: the codec's buffer is not written to."""
    segment = level(4096)
    segment.flags.writeable = False
    shaper = Shaper()
    shaper.feed(segment)
    shaper.finish()
    assert np.all(segment == np.float32(0.4))
