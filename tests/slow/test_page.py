"""The page in a browser: what is heard, what is said when something is wrong, and who can use it."""

import contextlib
import itertools
import json
import re
import signal
import subprocess
import sys
import urllib.request
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from numpy.typing import NDArray
from playwright.sync_api import Browser
from scipy.signal import resample_poly
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from docs import screenshots
from orpheus_ws.access_tokens import make_token
from tests.slow.browser import ELSEWHERE, Visit, chromium, until, visiting
from tests.test_cli import run as run_command
from tests.test_cli import serving
from tests.voice.recogniser import Recogniser, matched, words_of

pytestmark = pytest.mark.slow

QUIET = ("--set", "log.level=error")
POCKET = ("--engine", "pocket", "--set", "codec.name=streaming", *QUIET)
SLOW_SPEECH = ("--set", "engine.options.step_seconds=0.05")
SENTENCES = (
    "The next train to the city leaves in twenty minutes. "
    "The doctor will call you back this afternoon."
)
LONG = "This sentence is one of very many that follow each other without an end. " * 12


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all."""
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def voice() -> Iterator[dict[str, str]]:
    """A server with the embedded voice."""
    with serving(*POCKET) as (_, announced):
        yield announced


@pytest.fixture(scope="module")
def tones() -> Iterator[dict[str, str]]:
    """A server with test tones, a little faster than real time."""
    with serving(*QUIET, *SLOW_SPEECH) as (_, announced):
        yield announced


def at_24_khz(visit: Visit) -> NDArray[np.int16]:
    """What was heard, as the recogniser takes it."""
    heard: NDArray[np.float64] = resample_poly(visit.heard.astype(np.float64), 24_000, visit.rate)
    return np.clip(np.rint(heard * 32767), -32768, 32767).astype(np.int16)


def understood(visit: Visit, text: str) -> bool:
    """Whether at least half of the words were heard: what the recogniser gets of this voice."""
    said = words_of(text)
    return matched(said, Recogniser().words(at_24_khz(visit))) >= len(said) // 2


def scrape(announced: dict[str, str], name: str) -> float:
    """A sample of the server's metrics, as it is written."""
    with urllib.request.urlopen(announced["metrics"], timeout=10) as response:
        found = re.search(rf"^{re.escape(name)} (\S+)$", response.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


@contextlib.contextmanager
def serving_page(
    browser: Browser, *arguments: str, ear: bool = True
) -> Iterator[tuple["subprocess.Popen[str]", Visit]]:
    """A server with test tones of its own, and a page that has not gone there yet."""
    with (
        serving(*QUIET, *arguments) as (process, announced),
        visiting(browser, announced["url"], ear=ear) as visit,
    ):
        yield process, visit


# What is heard ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [None, 44_100, 48_000])
def test_a_sentence_is_heard(browser: Browser, voice: dict[str, str], rate: int | None) -> None:
    """What is written is heard, at the server's rate or resampled to the device's, and shown."""
    with visiting(browser, voice["url"], rate=rate) as visit:
        visit.open()
        visit.page.fill("#text", SENTENCES)
        visit.page.click("#speak")
        visit.shows("#message", "Said")
        assert visit.rate == (rate or 24_000)
        assert understood(visit, SENTENCES)
        if rate is None:  # sample for sample, but for pauses on a busy machine
            heard = np.rint(visit.heard * 32768).astype(np.int16)
            assert np.array_equal(heard[heard != 0], visit.pcm[visit.pcm != 0])
        assert re.fullmatch(r"[\d.]+ ms", visit.page.inner_text("#first"))
        assert re.fullmatch(r"[\d.]+×", visit.page.inner_text("#speed"))
        assert re.fullmatch(r"\d+ of \d+", visit.page.inner_text("#streams"))
        for stage in ("queue", "first token", "codec", "buffer"):
            visit.shows("#beginning", stage)
        chunks = len([frame for frame in visit.received if isinstance(frame, bytes)])
        assert visit.page.locator("#chunks .tick").count() == chunks
        assert (visit.complaints, visit.outside) == ([], [])


def test_stopping(browser: Browser, tones: dict[str, str]) -> None:
    """Stop empties the player before it returns, tells the server what was heard, and it is silent."""
    cancelled = 'orpheus_contexts_total{outcome="cancelled",surface="native"}'
    before = scrape(tones, cancelled)
    with visiting(browser, tones["url"]) as visit:
        visit.open()
        visit.page.fill("#text", LONG)
        visit.page.click("#speak")
        visit.begins()
        until(lambda: visit.page.evaluate("() => ear.blocks.length") > 200, "a second of sound")
        at_once = visit.page.evaluate(
            "() => { ear.log.length = 0; document.getElementById('stop').click(); return [...ear.log] }"
        )
        assert at_once[0] == "clear"
        assert at_once[1]["type"] == "cancel"
        assert at_once[1]["played_ms"] > 100
        visit.shows("#message", "Not heard")
        blocks = visit.page.evaluate("() => ear.blocks.length")
        until(
            lambda: visit.page.evaluate("() => ear.blocks.length") > blocks + 100, "half a second"
        )
        assert np.abs(visit.heard).max() > 0.05
        assert not visit.heard[(blocks + 1) * 128 :].any()
        (told,) = visit.messages("cancelled")
        assert LONG.startswith(told["text_spoken"].strip())
        assert (visit.complaints, visit.outside) == ([], [])
    until(lambda: scrape(tones, cancelled) == before + 1, "the server has cancelled")


def test_speaking_again_interrupts(browser: Browser, tones: dict[str, str]) -> None:
    """Speak while something is spoken stops that and begins anew, on the same socket."""
    with visiting(browser, tones["url"]) as visit:
        visit.open()
        visit.page.fill("#text", LONG)
        visit.page.click("#speak")
        visit.begins()
        visit.page.fill("#text", "Something else.")
        visit.page.click("#speak")
        visit.shows("#message", "Said")
        kinds = [message["type"] for message in visit.sent]
        assert kinds == ["open", "text", "end", "cancel", "open", "text", "end"]
        assert sum(url.startswith("ws:") for url in visit.asked) == 1
        assert (visit.complaints, visit.outside) == ([], [])


def test_nothing_of_the_last_utterance(browser: Browser, tones: dict[str, str]) -> None:
    """While something is spoken, no figure of what was spoken before stands there as its own."""
    with visiting(browser, tones["url"]) as visit:
        visit.open()
        visit.page.fill("#text", "Something.")
        visit.page.click("#speak")
        visit.shows("#message", "Said")
        visit.shows("#first-note", "server")
        visit.page.fill("#text", LONG)
        visit.page.click("#speak")
        assert visit.page.inner_text("#first-note") == "from your click to your ear"
        assert visit.page.get_attribute("#beginning", "class") == "timeline last"
        visit.begins()
        visit.page.click("#stop")
        visit.shows("#first-note", "server")
        assert visit.page.get_attribute("#beginning", "class") == "timeline"
        assert visit.page.inner_text("#speed") == "–"
        assert (visit.complaints, visit.outside) == ([], [])


def test_a_text_without_words(browser: Browser, tones: dict[str, str]) -> None:
    """A text in which there is nothing to say is told of, and leaves nothing that seems to go on."""
    with visiting(browser, tones["url"]) as visit:
        visit.open()
        visit.page.fill("#text", "...")
        visit.page.click("#speak")
        visit.shows("#message", "nothing in this text to say")
        assert visit.page.is_disabled("#stop")
        assert [visit.page.inner_text(each) for each in ("#first", "#speed")] == ["–", "–"]
        assert (visit.complaints, visit.outside) == ([], [])


def test_words_are_spoken_as_they_are_typed(browser: Browser, voice: dict[str, str]) -> None:
    """Each word is sent when it is complete, sound comes before the text ends, and none is lost."""
    with visiting(browser, voice["url"]) as visit:
        visit.open()
        visit.page.check("#typing")
        visit.page.keyboard.press("Control+Enter")  # nothing was typed: nothing is to be said
        first, second = SENTENCES.split(". ")
        visit.page.keyboard.type(f"{first}. ", delay=20)
        visit.begins()
        assert not [message for message in visit.sent if message["type"] == "end"]
        visit.page.keyboard.type(second, delay=20)
        visit.page.keyboard.press("Control+Enter")
        visit.shows("#message", "Said")
        pieces = [message["text"] for message in visit.sent if message["type"] == "text"]
        assert "".join(pieces) == SENTENCES
        assert len(pieces) == len(SENTENCES.split())
        assert understood(visit, SENTENCES)
        assert (visit.complaints, visit.outside) == ([], [])


def test_programs_run_as_they_are(browser: Browser, tones: dict[str, str], tmp_path: Path) -> None:
    """The Python and the JavaScript on the screen say what is on the screen."""
    text = 'It says "hello" — twice:\n\\ and ☃.'
    with visiting(browser, tones["url"]) as visit:
        visit.open()
        visit.page.fill("#text", text)
        (tmp_path / "say.py").write_text(visit.page.inner_text("#code"), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "say.py"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(Path.cwd())},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        with wave.open(str(tmp_path / "speech.wav")) as file:
            frames = file.getnframes()
        assert frames > 24_000
        visit.page.check("input[value=javascript]")
        program = visit.page.inner_text("#code")
        visit.page.evaluate(
            "() => { const { start } = AudioBufferSourceNode.prototype; ear.played = 0;"
            "AudioBufferSourceNode.prototype.start = function (at) {"
            " ear.played += this.buffer.length; return start.call(this, at) } }"
        )
        visit.page.evaluate(f"() => {{ {program} }}")
        until(lambda: visit.page.evaluate("() => ear.played") >= frames, "all was played")
        assert visit.sent[-2]["text"] == text


# What is wrong ------------------------------------------------------------------------------------


def port_of(announced: dict[str, str]) -> str:
    """Where it listens."""
    return announced["url"].split(":")[2].partition("/")[0]


def test_no_server(browser: Browser) -> None:
    """A server that is gone is told of, with what to do; when it is back, so is the page."""
    with contextlib.ExitStack() as stack:
        process, announced = stack.enter_context(serving(*QUIET))
        visit = stack.enter_context(visiting(browser, announced["url"]))
        visit.open()
        process.kill()
        process.wait()
        visit.shows("#alert", "does not answer")
        visit.shows("#alert", "orpheus-ws serve")
        visit.page.click("#speak")
        visit.shows("#alert", "does not answer")
        stack.enter_context(serving(*QUIET, "--port", port_of(announced)))
        visit.shows("#state", "connected")
        visit.shows("#alert", "")
        assert visit.page.inner_text("#alert") == ""
        assert visit.complaints == visit.network_complaints
        assert visit.outside == []


def test_a_full_server(browser: Browser) -> None:
    """Without a place for it the page says so, and takes the next one that comes free."""
    with serving_page(browser, "--capacity", "1") as (_, visit):
        with connect(visit.url, subprotocols=[Subprotocol("tts.v1.json")]) as held:
            held.recv()
            visit.page.goto(visit.home)
            visit.shows("#alert", "in use")
            visit.shows("#streams", "1 of 1")
        visit.shows("#state", "connected")
        assert visit.page.inner_text("#alert") == ""
        assert visit.complaints == visit.network_complaints
        assert visit.outside == []


def test_a_lost_socket(browser: Browser) -> None:
    """A server that dies in the middle of a sentence: what came is heard, and the page says what happened."""
    with serving_page(browser, *SLOW_SPEECH) as (process, visit):
        visit.open()
        visit.page.fill("#text", LONG)
        visit.page.click("#speak")
        visit.begins()
        process.kill()
        process.wait()
        visit.shows("#alert", "lost in the middle")
        until(lambda: visit.page.is_disabled("#stop"), "what had come is heard")
        heard = np.rint(visit.heard * 32768).astype(np.int16)
        assert np.array_equal(heard[heard != 0], visit.pcm[visit.pcm != 0])
        assert visit.complaints == visit.network_complaints


def test_reloading(browser: Browser, tones: dict[str, str]) -> None:
    """A page that is reloaded in the middle of a sentence says so; text and voice are still there."""
    with visiting(browser, tones["url"]) as visit:
        visit.open()
        visit.page.fill("#text", LONG)
        visit.page.click("#speak")
        visit.begins()
        visit.page.reload()
        visit.shows("#message", "reloaded")
        visit.shows("#state", "connected")
        assert visit.page.input_value("#text") == LONG
        visit.page.reload()
        visit.shows("#state", "connected")
        assert visit.page.inner_text("#message") == ""
        assert (visit.complaints, visit.outside) == ([], [])


def test_a_key(browser: Browser) -> None:
    """A server with keys asks for one; a wrong one is told of, the right one is in no address."""
    with serving_page(browser, "--set", "auth.keys.alice=open-sesame", ear=False) as (_, visit):
        visit.page.goto(visit.home)
        visit.shows("#alert", "asks for a key")
        visit.page.fill("#key", "wrong")
        visit.page.keyboard.press("Enter")
        visit.shows("#alert", "does not know this key")
        visit.page.fill("#key", "open-sesame")
        visit.page.keyboard.press("Enter")
        visit.shows("#state", "connected")
        assert visit.page.is_hidden("#lock")
        assert visit.page.inner_text("#alert") == ""
        visit.page.click("#speak")
        visit.shows("#message", "Said")
        assert "ORPHEUS_API_KEY" in visit.page.inner_text("#code")
        visit.page.reload()
        visit.shows("#state", "connected")
        kept: dict[str, Any] = visit.page.evaluate("() => ({ ...localStorage })")
        assert (kept, visit.page.context.cookies()) == ({}, [])
        assert not [url for url in visit.asked if "sesame" in url]
        assert visit.complaints == visit.network_complaints
        assert visit.outside == []


def test_a_token(browser: Browser) -> None:
    """A token of `orpheus-ws token` is as good as a key, until it has expired."""
    with serving_page(browser, "--set", "auth.keys.alice=secret", ear=False) as (_, visit):
        visit.page.goto(visit.home)
        visit.page.fill("#key", make_token("alice", "secret", expires=1))
        visit.page.keyboard.press("Enter")
        visit.shows("#alert", "has expired")
        visit.page.fill("#key", make_token("alice", "secret", expires=2**31))
        visit.page.keyboard.press("Enter")
        visit.shows("#state", "connected")


def test_a_long_text(browser: Browser) -> None:
    """As much as the server lets wait is sent in pieces that make the whole; more is not taken."""
    with serving_page(browser, "--set", "limits.message_bytes=20000") as (_, visit):
        visit.open()
        visit.page.fill("#text", "☃ and 𝄞 again. " * 2000)
        assert visit.page.get_attribute("#text", "maxlength") == "20000"
        visit.page.fill("#text", ("☃ and 𝄞 again. " * 2000)[:19_000])
        visit.page.click("#speak")
        visit.begins()
        pieces = [message["text"] for message in visit.sent if message["type"] == "text"]
        assert "".join(pieces) == visit.page.input_value("#text")
        assert len(pieces) == 5
        assert visit.complaints == []


def test_where_a_browser_plays_nothing(browser: Browser, tones: dict[str, str]) -> None:
    """By plain http from another machine browsers have no audio thread: the page says what helps."""
    home = f"http://{ELSEWHERE}:{port_of(tones)}/"
    with visiting(browser, tones["url"], ear=False) as visit:
        visit.page.goto(home)
        visit.shows("#state", "connected")
        visit.page.click("#speak")
        visit.shows("#alert", "AudioWorklet")
        until(lambda: visit.page.is_disabled("#stop"), "it is over")
        visit.page.click("#copy")
        visit.shows("#copied", "Selected")
        assert visit.complaints == []


def test_an_error_of_the_engine(browser: Browser) -> None:
    """An utterance that fails is told of in the server's words, and the next one is spoken."""
    faults = ("engine.options.fault=raises", "engine.options.fault_requests=1")
    with serving_page(browser, "--set", faults[0], "--set", faults[1]) as (_, visit):
        visit.open()
        visit.page.click("#speak")
        visit.shows("#alert", "Speak tries again")
        until(lambda: visit.page.is_disabled("#stop"), "it is over")
        visit.page.click("#speak")
        visit.shows("#message", "Said")
        assert visit.page.inner_text("#alert") == ""
        assert (visit.complaints, visit.outside) == ([], [])


# Who can use it -----------------------------------------------------------------------------------


def test_with_the_keyboard_alone(browser: Browser, tones: dict[str, str]) -> None:
    """Everything is reached with Tab, seen when it is, and works; focus is nowhere lost."""
    with visiting(browser, tones["url"]) as visit:
        visit.open()
        reached: list[str] = []
        seen = "() => { const { outlineStyle, boxShadow } = getComputedStyle(document.activeElement.id === 'text'"
        seen += " ? document.activeElement.form : document.activeElement);"
        seen += (
            " return [document.activeElement.id, outlineStyle !== 'none' || boxShadow !== 'none'] }"
        )
        for _ in range(12):
            visit.page.keyboard.press("Tab")
            name, visible = visit.page.evaluate(seen)
            if not name and reached:
                name = "language"
            reached.append(name)
            assert visible, name
            if name == "code":
                break
        assert reached == ["text", "speak", "voice", "typing", "language", "copy", "code"]
        visit.page.focus("#text")
        visit.page.keyboard.press("Control+A")
        visit.page.keyboard.type(LONG)
        visit.page.keyboard.press("Tab")
        visit.page.keyboard.press("Enter")
        visit.begins()
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("() => document.activeElement.id") == "stop"
        visit.page.keyboard.press("Enter")
        visit.shows("#message", "Stopped")
        assert visit.page.evaluate("() => document.activeElement.id") == "speak"
        visit.page.keyboard.press("Enter")
        visit.begins()
        visit.page.keyboard.press("Escape")
        visit.shows("#message", "Stopped")
        assert (visit.complaints, visit.outside) == ([], [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_accessible(browser: Browser, tones: dict[str, str], scheme: str, width: int) -> None:
    """axe finds nothing serious or critical before and after an utterance; nothing is wider than a phone."""
    viewport = {"width": width, "height": 800}
    with visiting(
        browser, tones["url"], ear=False, color_scheme=scheme, viewport=viewport
    ) as visit:
        visit.open()
        check_accessible(visit)
        visit.page.click("#speak")
        visit.shows("#message", "Said")
        check_accessible(visit)
        visit.page.evaluate("() => { for (const e of document.querySelectorAll('[hidden]')) e.hidden = false;"
                            " document.getElementById('alert').textContent = 'Something is wrong.' }")  # fmt: skip
        check_accessible(visit)
        assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= width
        assert visit.outside == []


def check_accessible(visit: Visit) -> None:
    """No violation of weight."""
    found = Axe().run(visit.page).response["violations"]
    grave = [each for each in found if each["impact"] in ("serious", "critical")]
    assert not grave, json.dumps(grave, indent=1)


def test_nothing_moves_for_who_wants_it_still(browser: Browser, tones: dict[str, str]) -> None:
    """With reduced motion there is no animation and no transition, even while it speaks."""
    with visiting(browser, tones["url"], ear=False, reduced_motion="reduce") as visit:
        visit.open()
        visit.page.fill("#text", LONG)
        visit.page.click("#speak")
        visit.begins()
        assert visit.page.evaluate("() => document.getAnimations().length") == 0


def test_the_load_report_is_drawn(browser: Browser, tones: dict[str, str], tmp_path: Path) -> None:
    """The report's timelines are drawn by the page's program, and it asks nobody for anything."""
    report = tmp_path / "load.html"
    load = ("load", tones["url"], "--streams", "3", "--ramp", "0", "--utterances", "6", "--sizes",
            "1", "0", "0", "--traffic", "steady", "--report", str(report))  # fmt: skip
    run_command(*load)
    with visiting(browser, tones["url"]) as visit:
        visit.page.goto(report.as_uri())
        rows = visit.page.locator("#streams svg text.end")
        assert rows.all_text_contents() == ["0", "1", "2"]
        assert visit.page.locator("#streams svg .speech").count() >= 6
        assert visit.page.locator("#slowest svg .engine").count() >= 3
        assert visit.complaints == []
        assert [url for url in visit.asked if not url.startswith("file:")] == []
        check_accessible(visit)


# Programs of the page, by themselves --------------------------------------------------------------

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


def test_signals_end_the_server(tones: dict[str, str], browser: Browser) -> None:
    """A server that is told to stop says goodbye to a page that speaks and to one that does not."""
    with serving(*QUIET) as (process, announced), visiting(browser, announced["url"]) as visit:
        visit.open()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        visit.shows("#alert", "does not answer")
        assert visit.complaints == visit.network_complaints
