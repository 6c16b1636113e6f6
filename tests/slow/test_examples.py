"""The examples that take minutes or a browser: a long text, and speech in a page."""

import asyncio
import functools
import http.server
import json
import subprocess
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as dial

from docs.examples import book
from tests import harness
from tests.voice.recogniser import ALIGNMENTS, SENTENCES, Recogniser, matched, words_of

pytestmark = pytest.mark.slow

LONGEST_SECONDS = 30.0
"""Beyond so much in one generation Orpheus's speech is known to fall apart."""


def understood(spoken: book.Spoken, begin: int, end: int) -> float:
    """Share of the words that the recogniser gets right in segments `begin` to `end`."""
    samples = np.frombuffer(spoken.pcm, "<i2")
    borders = [offset for offset, _ in spoken.segments] + [len(samples)]
    right = total = 0
    for delay in ALIGNMENTS[:2]:
        recogniser = Recogniser()
        for number in range(begin, end):
            said = words_of(spoken.segments[number][1])
            heard = recogniser.words(samples[borders[number] : borders[number + 1]], delay=delay)
            right += matched(said, heard)
            total += len(said)
    return right / total


@pytest.mark.timeout(900)
async def test_a_long_text_is_as_clear_at_its_end() -> None:
    """Of over five minutes the last sentences are understood as well as the same ones at the start.

    That is because no segment is longer than 30 s, however long the text.
    """
    times = 6
    text = "\n\n".join(" ".join(SENTENCES) for _ in range(times))
    settings = ("engine.name=pocket", "codec.name=streaming", "engine.capacity=4")
    async with harness.server(*settings) as started:
        # Each part is over a minute in one context: that it was cut is not what makes it hold.
        spoken = await book.speak(started.address.url, text, part_chars=len(text) // 4)
    seconds = len(spoken.pcm) / 2 / book.RATE
    assert seconds > 300
    assert len(spoken.segments) == times * len(SENTENCES)
    begins = [begin / book.RATE for begin, _ in spoken.segments] + [seconds]
    assert max(np.diff(begins)) < LONGEST_SECONDS
    first = understood(spoken, 0, len(SENTENCES))
    last = understood(spoken, (times - 1) * len(SENTENCES), times * len(SENTENCES))
    assert first > 0.85, f"{first:.1%}"
    # The codec's noise is another for each utterance, which moves either figure by a point or two.
    assert last > first - 0.05, f"{first:.1%} at the start, {last:.1%} at the end"


# A page in a browser ------------------------------------------------------------------------------


class Page:
    """A page of a headless Chromium, by its DevTools protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._events: set[str] = set()

    async def open(self, url: str) -> None:
        """Show a page, and wait until it is loaded."""
        await self.ask("Page.enable")
        await self.ask("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            self._events.add(json.loads(await self._socket.recv()).get("method", ""))

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method. Of events that come meanwhile the names are kept."""
        self._number += 1
        call = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send(json.dumps(call))
        while True:
            message = json.loads(await self._socket.recv())
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._events.add(message.get("method", ""))

    async def run(self, script: str) -> Any:
        """Evaluate an expression as a user's click would, and wait for what it promises."""
        answer = await self.ask(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")


@asynccontextmanager
async def browsing(url: str, profile: Path) -> AsyncIterator[Page]:
    """Chromium with this page open and loaded."""
    process = await asyncio.create_subprocess_exec(
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--mute-audio"),
        *("--remote-debugging-port=0", f"--user-data-dir={profile}"),
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while b"DevTools listening on " not in (line := await process.stderr.readline()):
            assert line, "chromium ended"
        address = line.decode().split()[-1].replace("ws://", "http://")
        host = address.split("/devtools")[0]
        # Its first page may not be there yet.
        page = await asyncio.to_thread(_put, f"{host}/json/new?about:blank")
        async with dial(page["webSocketDebuggerUrl"], max_size=None) as socket:
            opened = Page(socket)
            await opened.open(url)
            yield opened
    finally:
        process.terminate()
        await process.communicate()


def _put(url: str) -> Any:
    request = urllib.request.Request(url, method="PUT")
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing."""


@contextmanager
def shown(folder: Path) -> Iterator[str]:
    """The files of a folder, served on a free port."""
    serving = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serving) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


OUTCOME = """
new Promise(done => {
  const state = document.getElementById("state")
  const look = () => { if (state.dataset.outcome) done(state.dataset.outcome) }
  new MutationObserver(look).observe(state, { attributes: true, childList: true })
  look()
})
"""
HEARD = """
new Promise(done => {
  const state = document.getElementById("state")
  const look = () => { const s = parseFloat(state.textContent); if (s > %s) done(s) }
  new MutationObserver(look).observe(state, { childList: true })
  look()
})
"""


async def test_the_page_speaks_and_stops(tmp_path: Path) -> None:
    """A browser hears an utterance, interrupts the next one, and is told what it did not hear."""
    with shown(Path(book.__file__).parent) as site:
        async with (
            harness.server(f"auth.origins={site}", "engine.options.step_seconds=0.005") as started,
            browsing(f"{site}/browser.html", tmp_path) as page,
        ):
            fill = "document.getElementById(%s).value = %s"
            await page.run(fill % ('"url"', json.dumps(started.address.url)))
            await page.run(fill % ('"text"', '"Hello there."'))
            await page.run("document.getElementById('speak').click()")
            assert await page.run(OUTCOME) == "spoken"
            assert await page.run(HEARD % 0.5) < 1.5
            story = " ".join(f"Sentence {n} goes on for a while." for n in range(30))
            await page.run(fill % ('"text"', json.dumps(story)))
            await page.run("document.getElementById('speak').click()")
            assert await page.run(HEARD % 1.0) < 30
            await page.run("document.getElementById('stop').click()")
            outcome = await page.run(OUTCOME)
            assert outcome.startswith("stopped; not heard: ")
            assert outcome.endswith("Sentence 29 goes on for a while.")


async def test_the_page_says_when_nobody_answers(tmp_path: Path, closed_port: int) -> None:
    """Without a server the page says so, and does not hang."""
    with shown(Path(book.__file__).parent) as site:
        async with browsing(f"{site}/browser.html", tmp_path) as page:
            address = f"ws://127.0.0.1:{closed_port}/v1/tts"
            await page.run(f"document.getElementById('url').value = '{address}'")
            await page.run("document.getElementById('speak').click()")
            said = await page.run(
                "new Promise(done => { const s = document.getElementById('state');"
                "const look = () => { if (s.textContent) done(s.textContent) };"
                "new MutationObserver(look).observe(s, { childList: true }); look() })"
            )
            assert "no server answers" in said
