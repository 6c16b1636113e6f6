"""A browser with an ear: Debian's Chromium, and what its audio thread was given to play.

Rule: the page is used as it is served. What is heard is taken where it leaves the page's own audio node
for the loudspeaker, by a node of ours. Its module is a blob, which the page's policy would not let run;
only where something is to be heard, the policy has this one source more.
"""

import base64
import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page, Route, WebSocket, expect, sync_playwright

SECONDS: Final = 60.0
"""For anything that is waited for: how long it takes says how busy the machine is."""

ELSEWHERE: Final = "elsewhere.test"
"""This machine by a name that a browser does not take for it."""

_TAP: Final = """
registerProcessor("tap", class extends AudioWorkletProcessor {
  constructor() {
    super();
    this.port.onmessage = ({ data }) => this.port.postMessage(data);
  }
  process([input], [output]) {
    const block = input[0] ?? new Float32Array(128);
    output[0].set(block);
    this.port.postMessage(block.slice());
    return true;
  }
});
"""
_EAR: Final = """(rate, tap) => {
  window.ear = { blocks: [], log: [] };
  const module = URL.createObjectURL(new Blob([tap], { type: "text/javascript" }));
  const { addModule } = Worklet.prototype;
  Worklet.prototype.addModule = async function (url) {
    await addModule.call(this, url);
    await addModule.call(this, module);
  };
  const { connect } = AudioNode.prototype;
  AudioNode.prototype.connect = function (target, ...rest) {
    if (!(this instanceof AudioWorkletNode) || target !== this.context.destination) {
      return connect.call(this, target, ...rest);
    }
    const tap = new AudioWorkletNode(this.context, "tap", { outputChannelCount: [1] });
    tap.port.onmessage = ({ data }) => {
      if (data) ear.blocks.push(data);
      else ear.cleared = ear.blocks.length;
    };
    ear.tap = tap.port;
    ear.rate = this.context.sampleRate;
    connect.call(this, tap);
    return connect.call(tap, target);
  };
  const { postMessage } = MessagePort.prototype;
  MessagePort.prototype.postMessage = function (message, ...rest) {
    ear.log.push(message.what);
    postMessage.call(this, message, ...rest);
    // It comes back among the blocks: those before it may be sound, however late either thread is.
    if (message.what === "clear" && ear.tap) postMessage.call(ear.tap, null);
  };
  const { send } = WebSocket.prototype;
  WebSocket.prototype.send = function (frame) {
    ear.log.push(JSON.parse(frame));
    return send.call(this, frame);
  };
  if (rate) {
    const Ordinary = AudioContext;
    window.AudioContext = class extends Ordinary {
      constructor(options) {
        if (options.sampleRate) throw new DOMException("none but the device's", "NotSupportedError");
        super({ ...options, sampleRate: rate });
      }
    };
  }
}"""
_BLOCKS: Final = """() => {
  const all = new Float32Array(ear.blocks.length * 128);
  ear.blocks.forEach((block, number) => all.set(block, number * 128));
  const bytes = new Uint8Array(all.buffer);
  let text = "";
  for (let n = 0; n < bytes.length; n += 32768) text += String.fromCharCode(...bytes.subarray(n, n + 32768));
  return btoa(text);
}"""


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until something in the browser or behind it is so."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it never came to this: {what}"
        time.sleep(0.05)


class Visit:
    """A page that is open, and everything it asked for and said to its console."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.home = f"http://{urlsplit(url).netloc}/"
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.received: list[str | bytes] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("websocket", self._open)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self._hear(message.type, message.text))

    def _open(self, socket: WebSocket) -> None:
        self.asked.append(socket.url)
        socket.on("framereceived", lambda frame: self.received.append(frame))

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    @property
    def outside(self) -> list[str]:
        """What was asked of anybody but the server."""
        here = urlsplit(self.home).netloc
        return [url for url in self.asked if urlsplit(url).netloc != here]

    @property
    def network_complaints(self) -> list[str]:
        """What the browser itself writes when a request is refused or a socket lost."""
        told = ("Failed to load resource", "WebSocket connection to")
        return [text for text in self.complaints if text.startswith(told)]

    def open(self) -> None:
        """Go there, and wait until the page has a socket."""
        self.page.goto(self.home)
        self.shows("#state", "connected")

    def speak(self, text: str) -> None:
        """Have it say this, as people do."""
        self.page.fill("#text", text)
        self.page.click("#speak")

    def shows(self, selector: str, text: str) -> None:
        """Wait until an element has this text in it."""
        expect(self.page.locator(selector)).to_contain_text(text, timeout=SECONDS * 1000)

    def begins(self) -> None:
        """Wait until something is heard."""
        until(lambda: self.page.inner_text("#saying"), "something is heard")

    @property
    def log(self) -> list[Any]:
        """What was sent: messages to the server, and the kinds of those to the audio thread."""
        found: list[Any] = self.page.evaluate("() => ear.log")
        return found

    @property
    def sent(self) -> list[dict[str, Any]]:
        """Messages to the server."""
        return [each for each in self.log if isinstance(each, dict)]

    @property
    def heard(self) -> NDArray[np.float32]:
        """What the audio thread played, at its own rate."""
        return np.frombuffer(base64.b64decode(self.page.evaluate(_BLOCKS)), "<f4")

    @property
    def cleared(self) -> int | None:
        """How many samples of that had been played when the audio thread was told to be silent last."""
        blocks: int | None = self.page.evaluate("() => ear.cleared ?? null")
        return None if blocks is None else 128 * blocks

    def hears_all(self) -> None:
        """Wait until what the server sent was heard, sample for sample but for pauses on a busy machine."""

        def all_heard() -> bool:
            heard = np.rint(self.heard * 32768).astype(np.int16)
            return np.array_equal(heard[heard != 0], self.pcm[self.pcm != 0])

        until(all_heard, "every sample is heard, and no other")

    @property
    def rate(self) -> int:
        """Of the audio thread."""
        found: int = self.page.evaluate("() => ear.rate")
        return found

    @property
    def pcm(self) -> NDArray[np.int16]:
        """The samples that the server sent."""
        frames = [frame for frame in self.received if isinstance(frame, bytes)]
        return np.concatenate([np.frombuffer(frame[16:], "<i2") for frame in frames])

    def messages(self, kind: str) -> list[dict[str, Any]]:
        """What the server said of this kind."""
        texts = [json.loads(frame) for frame in self.received if isinstance(frame, str)]
        return [message for message in texts if message["type"] == kind]


def _with_ear(route: Route) -> None:
    """The page as it is served, but for one more source of programs in its policy."""
    response = route.fetch()
    policy = response.headers["content-security-policy"]
    opened = policy.replace("script-src 'self'", "script-src 'self' blob:")
    route.fulfill(
        response=response, headers={**response.headers, "content-security-policy": opened}
    )


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The browser. Its sandbox needs rights that a container has not."""
    found = shutil.which("chromium")
    assert found is not None, "these tests need Debian's package chromium"
    # A page that was changed on the way is taken for one of the internet, which may not ask this machine.
    flags = [
        "--no-sandbox",
        "--disable-features=LocalNetworkAccessChecks",
        f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
    ]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=flags)
        yield browser
        browser.close()


@contextlib.contextmanager
def visiting(
    browser: Browser, url: str, *, ear: bool = True, rate: int | None = None, **options: Any
) -> Iterator[Visit]:
    """A page of its own, not gone to yet. `rate` is the only one that its audio device has.

    Without `ear` nothing is heard, and the page is wholly as it is served.
    """
    context = browser.new_context(**options)
    visit = Visit(context.new_page(), url)
    if ear:
        visit.page.add_init_script(f"({_EAR})({json.dumps(rate)}, {json.dumps(_TAP)})")
        visit.page.route(visit.home, _with_ear)
    try:
        yield visit
    finally:
        context.close()
