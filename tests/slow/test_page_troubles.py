"""What the page says when something is wrong, and who may use it."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from orpheus_ws.access_tokens import make_token
from tests.slow.browser import ELSEWHERE, Visit, until, visiting
from tests.slow.conftest import LONG, QUIET, SLOW_SPEECH
from tests.test_cli import serving

pytestmark = pytest.mark.slow


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


def test_a_place_that_has_just_come_free(browser: Browser) -> None:
    """Refused by a server that has room by the time it is asked why, the page tries again."""
    with serving_page(browser, "--capacity", "1") as (_, visit):
        with connect(visit.url, subprotocols=[Subprotocol("tts.v1.json")]) as held:
            held.recv()
            free = {"active": 0, "max": 1, "draining": False}
            visit.page.route("**/capacity", lambda route: route.fulfill(json=free))
            visit.page.goto(visit.home)
            visit.shows("#alert", "refused the socket")
        visit.shows("#state", "connected")
        assert visit.page.inner_text("#alert") == ""


def test_a_lost_socket(browser: Browser) -> None:
    """A server that dies in the middle of a sentence: what came is heard, and the page says what happened."""
    with serving_page(browser, *SLOW_SPEECH) as (process, visit):
        visit.open()
        visit.speak(LONG)
        visit.begins()
        process.kill()
        process.wait()
        visit.shows("#alert", "lost in the middle")
        until(lambda: visit.page.is_disabled("#stop"), "what had come is heard")
        visit.hears_all()
        assert visit.complaints == visit.network_complaints


def test_reloading(browser: Browser, tones: dict[str, str]) -> None:
    """A page that is reloaded in the middle of a sentence says so; text and voice are still there."""
    with visiting(browser, tones["url"]) as visit:
        visit.open()
        visit.speak(LONG)
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
        visit.speak(("☃ and 𝄞 again. " * 2000)[:19_000])
        visit.begins()
        pieces = [message["text"] for message in visit.sent if message["type"] == "text"]
        assert "".join(pieces) == visit.page.input_value("#text")
        assert len(pieces) == 5
        assert visit.complaints == []


def test_where_a_browser_plays_nothing(browser: Browser) -> None:
    """By plain http from another machine browsers have no audio thread: the page says what helps."""
    # Without that, a name that is not this machine's is nobody who may speak (DNS rebinding).
    with serving_page(browser, "--set", "auth.anonymous=true", ear=False) as (_, visit):
        visit.page.goto(visit.home.replace("127.0.0.1", ELSEWHERE))
        visit.shows("#state", "connected")
        visit.page.click("#speak")
        visit.shows("#alert", "AudioWorklet")
        until(lambda: visit.page.is_disabled("#stop"), "it is over")
        visit.page.click("#copy")
        visit.shows("#copied", "Selected")
        assert visit.complaints == []


_NO_DEVICE = """() => {
  const Ordinary = AudioContext;
  window.AudioContext = class extends Ordinary {
    constructor(options) { super(options); super.suspend() }
    resume() { return new Promise(() => {}) }
  };
  window.plugged = () => { window.AudioContext = Ordinary };
}"""
"""What a browser without an audio device does that waits for one, as Firefox does."""


def test_a_machine_without_sound(browser: Browser) -> None:
    """Where sound never begins the page says so and is ready again, and once there is a device it speaks."""
    with serving_page(browser) as (_, visit):
        visit.page.add_init_script(f"({_NO_DEVICE})()")
        visit.open()
        visit.page.click("#speak")
        visit.shows("#alert", "sound does not start")
        until(lambda: visit.page.is_disabled("#stop"), "it is over")
        visit.page.evaluate("() => plugged()")
        visit.page.click("#speak")
        visit.shows("#message", "Said")
        assert visit.page.inner_text("#alert") == ""
        assert (visit.complaints, visit.outside) == ([], [])


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


def test_signals_end_the_server(tones: dict[str, str], browser: Browser) -> None:
    """A server that is told to stop says goodbye to a page that speaks and to one that does not."""
    with serving(*QUIET) as (process, announced), visiting(browser, announced["url"]) as visit:
        visit.open()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        visit.shows("#alert", "does not answer")
        assert visit.complaints == visit.network_complaints
