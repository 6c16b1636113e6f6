"""Takes the pictures of the page and of the load report: `python -m docs.screenshots`.

Rule: what is shown was spoken and measured while the picture was taken. `screenshots.json` says which
sources each picture was taken of; `tests/slow/test_page_parts.py` fails when they have changed since. It needs
Chromium and the extra `slow`.
"""

import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parent
RECORD: Final = FOLDER / "screenshots.json"
PATIENCE_MS: Final = 60_000
TRIES: Final = 20
"""Until an utterance has no underrun: on a busy machine not every one has none."""

_PAGE: Final = ("orpheus_ws/data/page/*",)
_REPORT: Final = (
    "orpheus_ws/data/report.*",
    "orpheus_ws/data/page/timeline.*",
    "orpheus_ws/data/page/stages.js",
    "orpheus_ws/loadtest/report.py",
    "orpheus_ws/loadtest/plots.py",
)
PICTURES: Final = {
    "page-desktop.png": _PAGE,
    "page-desktop-dark.png": _PAGE,
    "page-phone.png": _PAGE,
    "load-report.png": _REPORT,
}
"""Each picture, and what it shows."""

_DESKTOP: Final[dict[str, Any]] = {"viewport": {"width": 1200, "height": 1400}}
_PHONE: Final[dict[str, Any]] = {
    "viewport": {"width": 390, "height": 1120},
    "device_scale_factor": 1.5,
}
_LOAD: Final = ("--streams", "60", "--seconds", "20", "--ramp", "10", "--barge-in", "0.2")
_SIMULATED: Final = ("--engine", "simulated", "--set", "codec.name=simulated", "--capacity", "64",
                     "--set", "engine.options.step_seconds=0.02",
                     "--set", "engine.options.stream_seconds=0.0006")  # fmt: skip


def sources(picture: str) -> str:
    """The digest of everything that a picture shows."""
    digest = hashlib.sha256()
    for pattern in PICTURES[picture]:
        for file in sorted(ROOT.glob(pattern)):
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def content(picture: str) -> str:
    """The digest of a picture itself."""
    return hashlib.sha256((FOLDER / picture).read_bytes()).hexdigest()


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """A server on a free port; its address."""
    ports = ("--port", "0", "--metrics-port", "0", "--set", "log.level=error")
    line = [sys.executable, "-m", "orpheus_ws", "serve", *ports, *arguments]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


def speak(page: Page, url: str) -> None:
    """Have the page say its example without an underrun."""
    page.goto(url.replace("ws:", "http:").removesuffix("v1/tts"))
    expect(page.locator("#state")).to_have_text("connected", timeout=PATIENCE_MS)
    for _ in range(TRIES):
        page.click("#speak")
        expect(page.locator("#stop")).to_be_enabled(timeout=PATIENCE_MS)
        expect(page.locator("#stop")).to_be_disabled(timeout=PATIENCE_MS)
        if page.inner_text("#underruns") == "0":
            break
    page.mouse.move(0, 0)


def take_page(browser: Browser) -> None:
    """The page after it has spoken with the embedded voice."""
    views: dict[str, dict[str, Any]] = {
        "page-desktop.png": {**_DESKTOP, "color_scheme": "light"},
        "page-desktop-dark.png": {**_DESKTOP, "color_scheme": "dark"},
        "page-phone.png": {**_PHONE, "color_scheme": "light"},
    }
    with serving() as url:
        for name, view in views.items():
            page = browser.new_page(**view, reduced_motion="reduce")
            speak(page, url)
            page.screenshot(path=FOLDER / name, animations="disabled")
            page.close()


def take_report(browser: Browser) -> None:
    """The report of a run on a simulated engine."""
    with tempfile.TemporaryDirectory() as folder, serving(*_SIMULATED) as url:
        report = Path(folder) / "load.html"
        line = [sys.executable, "-m", "orpheus_ws", "load", url, *_LOAD]
        labelled = ["--label", "a simulated engine", "--objective-ms", "150"]
        subprocess.run([*line, *labelled, "--report", str(report)], check=False)
        page = browser.new_page(viewport={"width": 1240, "height": 1330}, color_scheme="light")
        page.goto(report.as_uri())
        page.screenshot(path=FOLDER / "load-report.png")
        page.close()


if __name__ == "__main__":
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        take_page(chromium)
        take_report(chromium)
        chromium.close()
    taken = {name: {"sources": sources(name), "picture": content(name)} for name in PICTURES}
    RECORD.write_text(json.dumps(taken, indent=2) + "\n", encoding="utf-8")
