"""The page in a browser: what is heard, what is said when something is wrong, and who can use it."""

import json
import re
import subprocess
import sys
import urllib.request
import wave
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from numpy.typing import NDArray
from playwright.sync_api import Browser
from scipy.signal import resample_poly

from tests.slow.browser import Visit, until, visiting
from tests.slow.conftest import LONG
from tests.test_cli import run as run_command
from tests.voice.recogniser import Recogniser, matched, words_of

pytestmark = pytest.mark.slow

SENTENCES = (
    "The next train to the city leaves in twenty minutes. "
    "The doctor will call you back this afternoon."
)


def at_24_khz(visit: Visit) -> NDArray[np.int16]:
    """What was heard, as the recogniser takes it, but for the pauses of a busy machine: their samples are 0."""
    heard = visit.heard
    sound: NDArray[np.float64] = resample_poly(
        heard[heard != 0].astype(np.float64), 24_000, visit.rate
    )
    return np.clip(np.rint(sound * 32767), -32768, 32767).astype(np.int16)


def understood(visit: Visit, text: str) -> bool:
    """Whether at least half of the words were heard: what the recogniser gets of this voice."""
    said = words_of(text)
    return matched(said, Recogniser().words(at_24_khz(visit))) >= len(said) // 2


def scrape(announced: dict[str, str], name: str) -> float:
    """A sample of the server's metrics, as it is written."""
    with urllib.request.urlopen(announced["metrics"], timeout=10) as response:
        found = re.search(rf"^{re.escape(name)} (\S+)$", response.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


# What is heard ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [None, 44_100, 48_000])
def test_a_sentence_is_heard(browser: Browser, voice: dict[str, str], rate: int | None) -> None:
    """What is written is heard, at the server's rate or resampled to the device's, and shown."""
    with visiting(browser, voice["url"], rate=rate) as visit:
        visit.open()
        visit.speak(SENTENCES)
        visit.shows("#message", "Said")
        assert visit.rate == (rate or 24_000)
        assert understood(visit, SENTENCES)
        if rate is None:
            visit.hears_all()
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
        visit.speak(LONG)
        visit.begins()
        until(lambda: np.count_nonzero(visit.heard) > visit.rate, "a second of sound")
        at_once = visit.page.evaluate(
            "() => { ear.log.length = 0; document.getElementById('stop').click(); return [...ear.log] }"
        )
        assert at_once[0] == "clear"
        assert at_once[1]["type"] == "cancel"
        assert at_once[1]["played_ms"] > 100
        visit.shows("#message", "Not heard")
        until(lambda: visit.cleared is not None, "the audio thread has been told")
        silent = (visit.cleared or 0) + 128  # it fades within a block
        until(lambda: len(visit.heard) > silent + visit.rate // 2, "half a second")
        assert np.abs(visit.heard).max() > 0.05
        assert not visit.heard[silent:].any()
        (told,) = visit.messages("cancelled")
        assert LONG.startswith(told["text_spoken"].strip())
        assert (visit.complaints, visit.outside) == ([], [])
    until(lambda: scrape(tones, cancelled) == before + 1, "the server has cancelled")


def test_speaking_again_interrupts(browser: Browser, tones: dict[str, str]) -> None:
    """Speak while something is spoken stops that and begins anew, on the same socket."""
    with visiting(browser, tones["url"]) as visit:
        visit.open()
        visit.speak(LONG)
        visit.begins()
        visit.speak("Something else.")
        visit.shows("#message", "Said")
        kinds = [message["type"] for message in visit.sent]
        assert kinds == ["open", "text", "end", "cancel", "open", "text", "end"]
        assert sum(url.startswith("ws:") for url in visit.asked) == 1
        assert (visit.complaints, visit.outside) == ([], [])


def test_nothing_of_the_last_utterance(browser: Browser, tones: dict[str, str]) -> None:
    """While something is spoken, no figure of what was spoken before stands there as its own."""
    with visiting(browser, tones["url"]) as visit:
        visit.open()
        visit.speak("Something.")
        visit.shows("#message", "Said")
        visit.shows("#first-note", "server")
        visit.speak(LONG)
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
        visit.speak("...")
        visit.shows("#message", "nothing in this text to say")
        assert visit.page.is_disabled("#stop")
        assert [visit.page.inner_text(each) for each in ("#first", "#speed")] == ["–", "–"]
        assert (visit.complaints, visit.outside) == ([], [])


def test_words_are_spoken_as_they_are_typed(browser: Browser, voice: dict[str, str]) -> None:
    """Each word is sent when it is complete, sound comes before the text ends, and none is lost."""
    with visiting(browser, voice["url"]) as visit:
        visit.open()
        assert visit.page.inner_text("#keys") == "Ctrl Enter speaks, Esc stops"
        visit.page.check("#typing")
        assert visit.page.inner_text("#keys") == "Enter speaks, Ctrl Enter finishes, Esc stops"
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
        visit.speak(LONG)
        visit.begins()
        assert visit.page.evaluate("() => document.getAnimations().length") == 0


def test_the_load_report_is_drawn(browser: Browser, tones: dict[str, str], tmp_path: Path) -> None:
    """The report's timelines are drawn by the page's program, it asks nobody for anything, and on a
    telephone nothing is beyond the edge."""
    report = tmp_path / "load.html"
    load = ("load", tones["url"], "--streams", "3", "--ramp", "0", "--utterances", "6", "--sizes",
            "1", "0", "0", "--traffic", "steady", "--report", str(report))  # fmt: skip
    run_command(*load)
    with visiting(browser, tones["url"], viewport={"width": 360, "height": 800}) as visit:
        visit.page.goto(report.as_uri())
        beyond = "() => [...document.querySelectorAll('html, .card, .card div')].filter("
        beyond += (
            "(e) => e.scrollWidth > e.clientWidth || e.getBoundingClientRect().right > 360).length"
        )
        assert visit.page.evaluate(beyond) == 0
        over = "() => [...document.querySelectorAll('.figures :is(th, td)')].filter("
        over += (
            "(e) => e.scrollWidth > e.clientWidth && getComputedStyle(e).display !== 'none').length"
        )
        assert visit.page.evaluate(over) == 0
        check_accessible(visit)
        visit.page.set_viewport_size({"width": 1280, "height": 800})
        rows = visit.page.locator("#streams svg text.end")
        assert rows.all_text_contents() == ["0", "1", "2"]
        assert visit.page.locator("#streams svg .speech").count() >= 6
        assert visit.page.locator("#slowest svg .engine").count() >= 3
        assert visit.complaints == []
        assert [url for url in visit.asked if not url.startswith("file:")] == []
        check_accessible(visit)


# Programs of the page, by themselves --------------------------------------------------------------
