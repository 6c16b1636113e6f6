"""Parts of the page, run in a browser: resampling and the queue; and its pictures."""

import itertools
import json
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser

from docs import screenshots
from tests.slow.browser import Visit, visiting

pytestmark = pytest.mark.slow

_RESAMPLE = """async ([from, to, samples, cuts]) => {
  const { Resampler } = await import("/page/resampler.js");
  const resampler = new Resampler(from, to);
  const input = Float32Array.from(samples);
  const found = [];
  let at = 0;
  for (const cut of [...cuts, input.length]) {
    found.push(...resampler.push(input.slice(at, cut)));
    at = cut;
  }
  found.push(...resampler.finish());
  return found;
}"""


@pytest.fixture(scope="module")
def idle(browser: Browser, tones: dict[str, str]) -> Iterator[Visit]:
    """A page that does nothing."""
    with visiting(browser, tones["url"]) as visit:
        visit.open()
        yield visit


@pytest.mark.parametrize("to", [8_000, 16_000, 22_050, 44_100, 48_000, 96_000])
def test_resampling_is_exact(idle: Visit, to: int) -> None:
    """However it is cut the same comes out, as many samples as there should be, and a tone is the same tone."""
    chance = np.random.default_rng(to)
    count = 6000
    times = np.arange(count) / 24_000
    samples = 0.5 * np.sin(2 * np.pi * 1000 * times) + 0.2 * np.sin(2 * np.pi * 3100 * times)
    whole = idle.page.evaluate(_RESAMPLE, [24_000, to, samples.tolist(), []])
    for pieces in (2, 40):
        cuts = sorted(chance.integers(0, count, pieces).tolist())
        assert idle.page.evaluate(_RESAMPLE, [24_000, to, samples.tolist(), cuts]) == whole
    assert len(whole) == -(-count * to // 24_000)
    at = np.arange(len(whole)) / to
    expected = 0.5 * np.sin(2 * np.pi * 1000 * at) + 0.2 * np.sin(2 * np.pi * 3100 * at)
    edge = to // 100
    assert np.abs(np.asarray(whole) - expected)[edge:-edge].max() < 0.001


def test_resampling_lets_no_image_through(idle: Visit) -> None:
    """Upwards there is no mirror image above the old Nyquist frequency, downwards nothing folds: −70 dB."""
    times = np.arange(12_000) / 24_000
    for tone, to in ((9_000, 48_000), (9_000, 44_100), (6_000, 8_000)):
        samples = np.sin(2 * np.pi * tone * times).tolist()
        found = np.asarray(idle.page.evaluate(_RESAMPLE, [24_000, to, samples, []]))[500:-500]
        spectrum = np.abs(np.fft.rfft(found * np.blackman(len(found)))) / (0.21 * len(found))
        frequencies = np.fft.rfftfreq(len(found), 1 / to)
        wanted = np.abs(frequencies - tone) < 200
        assert spectrum[~wanted].max() < 10 ** (-70 / 20), (tone, to)


def test_waiting_for_a_typist_is_no_underrun(idle: Visit) -> None:
    """A pause at the join of two segments is the typist's, where somebody types; any other is the server's."""
    counted = idle.page.evaluate(
        """async () => {
          const { Utterance } = await import("/page/utterance.js");
          return [true, false].map((typed) => {
            const utterance = new Utterance(1, { typed });
            utterance.segments = [{ offset: 0 }, { offset: 48000 }];
            utterance.starved = [{ at: 47990, seconds: 1 }, { at: 30000, seconds: 0.1 }];
            utterance.heardAt = 1000;
            return [utterance.underruns.length, utterance.playedAt(24000), utterance.playedAt(48000)];
          });
        }"""
    )
    assert counted == [[1, 2000, 4100], [2, 2000, 4100]]


def test_the_queue(idle: Visit) -> None:
    """It starts after its 80 ms, counts what is missing in the middle and not at the end, and empties at once."""
    events, sound = idle.page.evaluate(
        """async () => {
          const { Playback } = await import("/page/playback.js");
          const events = [];
          const playback = new Playback(1000, ({ what, at, samples }) => events.push([what, at, samples]));
          const sound = [];
          const read = (count) => { const out = new Float32Array(count); playback.read(out); sound.push(...out) };
          read(50);                              // nothing yet
          playback.push(new Float32Array(60).fill(1));
          read(40); read(39);                    // 79 ms of waiting
          read(1); read(59);                     // all of it
          read(30);                              // 30 ms of nothing
          playback.push(new Float32Array(20).fill(1));
          read(20);
          read(5);                               // too short to count
          playback.push(new Float32Array(10).fill(1));
          playback.end();
          read(10); read(10);
          playback.push(new Float32Array(0));
          return [events, sound];
        }"""
    )
    assert events == [["started", None, None], ["starved", 60, 30], ["ended", None, None]]
    expected = [0] * 129 + [1] * 60 + [0] * 30 + [1] * 20 + [0] * 5 + [1] * 10 + [0] * 10
    assert sound == expected


def test_the_queue_is_emptied(idle: Visit) -> None:
    """What is cut off fades within 64 samples, and nothing of it is heard after that."""
    sound = idle.page.evaluate(
        """async () => {
          const { Playback } = await import("/page/playback.js");
          const playback = new Playback(1000, () => {});
          const out = new Float32Array(100);
          playback.push(new Float32Array(10000).fill(1));
          playback.read(out);
          playback.clear();
          playback.read(out);
          return [...out];
        }"""
    )
    assert sound[64:] == [0] * 36
    assert all(0 <= later < earlier <= 1 for earlier, later in itertools.pairwise(sound[:64]))


@pytest.mark.parametrize("picture", screenshots.PICTURES)
def test_screenshots_are_current(picture: str) -> None:
    """Each was taken of what there is now, by the program that takes them, and is small."""
    record = json.loads(screenshots.RECORD.read_text(encoding="utf-8"))
    now = {"sources": screenshots.sources(picture), "picture": screenshots.content(picture)}
    assert record[picture] == now, "run `python -m docs.screenshots`"
    assert (screenshots.FOLDER / picture).stat().st_size < 200_000
