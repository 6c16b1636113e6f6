"""A pool of real processes against a real server, and the command."""

import asyncio
import base64
import hashlib
import json
import os
import re
import signal
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from orpheus_ws.loadtest import Harness, Plan, Progress, Result, run, run_naive
from orpheus_ws.loadtest.report import TOO_FEW, Table, page
from orpheus_ws.loadtest.tally import Tally
from tests.harness import server, turns_until
from tests.test_cli import command, serving
from tests.test_cli import run as run_command

SHORT = {"sizes": (1.0, 0.0, 0.0), "words_per_second": None, "ramp_seconds": 0.0, "lead_ms": 10_000,
         "prebuffer_ms": 60_000}  # fmt: skip
"""Turns that are over at once, for a player that no process can be too late for."""
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/load.md").read_text(encoding="utf-8")
URL = "ws://127.0.0.1:1/v1/tts"


async def test_run() -> None:
    """More streams than slots, in two processes: the excess is refused, what is admitted is whole."""
    plan = msgspec.convert(
        {"url": "", "streams": 8, "utterances": 16, "traffic": "steady", "processes": 2, **SHORT},
        Plan,
    )
    # Fewer than the streams of either process, which come at once, whoever of the two is later.
    async with server("engine.capacity=3") as started:
        plan = msgspec.structs.replace(plan, url=started.address.url)
        result = await asyncio.to_thread(run, plan)
        await turns_until(lambda: started.admission.active == 0)
    figures = result.figures
    assert result.broken == ()
    assert (figures.turns, figures.done, figures.faults, figures.failures) == (16, 16, {}, {})
    assert figures.refused["full"] >= 2
    assert (result.harness.processes, result.stopped) == (2, None)
    # Each stream opened one socket and used it again.
    assert figures.connect_ms is not None
    assert figures.connect_ms.count <= 8
    assert figures.reuse_ms is not None
    assert figures.reuse_ms.count == 16 - figures.connect_ms.count
    assert len(result.turns) == 16
    # Each has its slot when it is connected.
    spans = [(turn.begun + (turn.connect_ms or 0.0) / 1000, turn.ended) for turn in result.turns]
    assert max(sum(begun <= at < ended for begun, ended in spans) for at, _ in spans) <= 3
    assert msgspec.json.decode(msgspec.json.encode(result), type=Result) == result


async def test_the_last_turn_is_anothers() -> None:
    """A stream that has no turn left gives its slot to one that found the server full."""
    plan = msgspec.convert(
        {"url": "", "streams": 2, "utterances": 2, "traffic": "steady", "processes": 1, **SHORT},
        Plan,
    )
    async with server("engine.capacity=1") as started:
        plan = msgspec.structs.replace(plan, url=started.address.url)
        result = await asyncio.to_thread(run, plan)
    assert (result.broken, result.figures.done) == ((), 2)


async def test_stopping_early() -> None:
    """What the watcher says ends the run and is why; what was under way is cut off, and all is closed."""
    seen: list[Progress] = []

    def watch(progress: Progress) -> str | None:
        seen.append(progress)
        return "enough" if progress.live.speaking == 3 else None

    async with server("engine.options.step_seconds=0.1") as started:
        # Long turns: none is over between being seen and being stopped.
        plan = Plan(url=started.address.url, streams=3, seconds=600, ramp_seconds=0, processes=1,
                    sizes=(0, 0, 1))  # fmt: skip
        result = await asyncio.to_thread(run, plan, watch=watch)
        await turns_until(lambda: started.admission.active == 0)
    assert (result.stopped, result.interrupted) == ("enough", False)
    assert result.figures.cut == 3
    assert seen[-1].live.sockets == 3


async def test_naive() -> None:
    """The naive way opens a socket for every turn, one after the other."""
    async with server() as started:
        plan = Plan(url=started.address.url, streams=50, utterances=3, sizes=(1, 0, 0))
        naive = await asyncio.to_thread(run_naive, plan)
    figures = naive.figures
    assert figures.turns == 3
    assert figures.reuse_ms is None
    assert figures.connect_ms is not None
    assert figures.connect_ms.count == figures.turns


QUICK = ("--utterances", "6", "--ramp", "0", "--whole", "--sizes", "1", "0", "0", "--traffic",
         "steady", "--lead-ms", "10000", "--prebuffer-ms", "60000", "--streams", "2")  # fmt: skip
"""The same."""


class _Outside(HTMLParser):
    """Finds what a page would ask others for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag] * (tag in ("link", "iframe", "img", "object"))
        self.found += [name for name, _ in attrs if name in ("src", "href", "srcset")]


def test_more_streams_than_the_server_admits() -> None:
    """It is no fault, but it is said: the load was a smaller one than was asked for."""
    with serving("--capacity", "1", "--set", "engine.options.step_seconds=0.01") as (_, announced):
        done = run_command("load", announced["url"], *QUICK)
    assert done.returncode == 0, done.stderr
    refused, advice = done.stdout.splitlines()[-2:]
    assert refused.startswith("refused, full: ")
    assert advice.startswith("the server had no room for all of 2 sockets")


def test_command(tmp_path: Path) -> None:
    """All well: exit code 0, the same result in the file and on standard output, and a page."""
    out, report = tmp_path / "r.json", tmp_path / "r.html"
    # Not at once, so that there is progress to tell of.
    with serving("--set", "engine.options.step_seconds=0.01") as (_, announcement):
        done = run_command(
            "load", announcement["url"], *QUICK, "--objective-ms", "60000", "--naive", "--json",
            "--out", str(out), "--report", str(report), "--label", "<simulated> & labelled",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = msgspec.json.decode(done.stdout, type=Result)
    assert out.read_text() == done.stdout
    assert (result.figures.done, result.broken) == (6, ())
    assert result.naive is not None
    check_page(report.read_text())
    check_script(report.read_text())
    assert "&lt;simulated&gt; &amp; labelled" in report.read_text()
    assert "The naive way" in report.read_text()


def check_page(html: str) -> None:
    """It is one file, and its pictures are well formed."""
    outside = _Outside()
    outside.feed(html)
    assert outside.found == []
    assert not re.search(r"url\(|@import|javascript:", html)
    pictures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(pictures) == 3
    for picture in pictures:
        ElementTree.fromstring(picture)


def check_script(html: str) -> None:
    """One script, which the page's policy names by its digest, and data that cannot end its element."""
    data, script = re.findall(r"<script type=\"([^\"]+)\"[^>]*>(.*?)</script>", html, re.DOTALL)
    assert (data[0], script[0]) == ("application/json", "module")
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    assert "<" not in data[1]
    drawn = json.loads(data[1])
    assert sum(len(row["spans"]) for row in drawn["streams"]["rows"]) >= 6
    assert all(turn["trace"]["first_chunk_ms"] > 0 for turn in drawn["slowest"])
    assert 0 < len(drawn["slowest"]) <= 10


def test_a_broken_bound() -> None:
    """A bound that no server keeps: exit code 1, and a line that says which."""
    with serving() as (_, announcement):
        done = run_command("load", announcement["url"], *QUICK, "--objective-ms", "0.001")
    assert done.returncode == 1
    # Six turns have no p99: the slowest of them is meant.
    assert re.search(r"highest \d+ ms, above the objective of 0.001 ms", done.stderr)
    assert "6 turns: 6 spoken to the end" in done.stdout
    assert TOO_FEW in done.stdout.splitlines()
    table = [line for line in done.stdout.splitlines() if line.startswith("time to first byte")]
    assert re.fullmatch(r"time to first byte, ms( +[\d.]+){2}( +–){2} +[\d.]+ +6", table[0])
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_cost(tmp_path: Path) -> None:
    """A price gives what an hour costs, in the summary, the JSON and on the page; without one nothing does."""
    out, report = tmp_path / "r.json", tmp_path / "r.html"
    files = ("--out", str(out), "--report", str(report))
    with serving() as (_, announcement):
        usage = ("--price", "2.4", "--talk-share", "0.5", "--utilisation", "0.6")
        done = run_command("load", announcement["url"], *QUICK, *usage, *files)
        free = run_command("load", announcement["url"], *QUICK)
    assert done.returncode == 0, done.stderr
    # 2 streams, of which 1.2 are in use.
    assert "an hour of speech costs 4.0000, of conversation 2.0000" in done.stdout
    result = msgspec.json.decode(out.read_bytes(), type=Result)
    assert result.cost is not None
    assert result.cost.speech_hour == pytest.approx(4.0)
    assert "2 streams are what a machine at 2.4 an hour serves" in report.read_text()
    assert "costs" not in free.stdout


def test_ctrl_c() -> None:
    """Ctrl-C at the terminal prints what was measured, without a traceback of any process."""
    arguments = ("--seconds", "600", "--streams", "4", "--ramp", "0", "--json", "--processes", "2")
    with (
        serving() as (_, announcement),
        subprocess.Popen(
            command("load", announcement["url"], *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        assert process.stderr is not None
        begun = process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert "sockets speak" in begun
    assert "Traceback" not in errors
    assert json.loads(output)["stopped"] == "interrupted"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (("--whole", "--words-per-second", "5"), "--words-per-second"),
        (("--utterances", "5", "--seconds", "5"), "--utterances"),
        (("--sizes", "0", "0", "0"), "--sizes"),
        (("--streams", "0"), "--streams"),
        (("--barge-in", "2"), "--barge-in"),
        (("--talk-share", "0.5"), "--price"),
        (("--price", "1", "--rate", "2"), "--rate"),
    ],
)
def test_usage(wrong: tuple[str, ...], says: str) -> None:
    """What cannot be is a usage error that names the option."""
    refused = run_command("load", URL, *wrong)
    assert refused.returncode == 2
    assert says in refused.stderr


def test_no_server(closed_port: int) -> None:
    """Where nothing listens, one line says so."""
    failed = run_command("load", f"ws://127.0.0.1:{closed_port}/v1/tts", "--streams", "1")
    assert failed.returncode == 1
    assert f"nothing listens at 127.0.0.1:{closed_port}" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize("option", ["--report", "--out"])
def test_a_file_that_cannot_be_written(tmp_path: Path, closed_port: int, option: str) -> None:
    """A file that cannot be written is told of before the load, not after it."""
    url, file = f"ws://127.0.0.1:{closed_port}/v1/tts", str(tmp_path / "missing" / "load.html")
    failed = run_command("load", url, option, file)
    assert failed.returncode == 1
    assert f"cannot write {file!r}" in failed.stderr


def test_a_page_of_nothing() -> None:
    """A run that heard nothing still has a page, which says so; tables of others are on it."""
    tally = Tally()
    result = Result(
        plan=Plan(url=URL), began=0.0, seconds=0.0, stopped="interrupted", figures=tally.figures(),
        harness=Harness(processes=1, cpu_share=0.0, lag_ms_p99=0.0, lag_ms_highest=0.0),
        gaps=tally.gaps(), turns=(),
    )  # fmt: skip
    html = page(result, [Table("Cost", ("", "a <hour>"), [("speech", "1 &")])])
    check_page(html)
    assert "no turn had any audio" in html
    assert "Ended before its time: interrupted." in html
    assert "a &lt;hour&gt;" in html


def test_faults_are_documented() -> None:
    """The page of the command names exactly the faults that can be found."""
    source = (ROOT / "orpheus_ws/loadtest/listener.py").read_text(encoding="utf-8")
    notes = (ROOT / "orpheus_ws/loadtest/tally.py").read_text(encoding="utf-8")
    found = set(re.findall(r'_faults\.add\("(\w+)"\)', source)) | set(
        re.findall(r'faults\["(\w+)"\]', notes)
    )
    (table,) = re.findall(r"\| fault \|.*?\n\n", PAGE, re.DOTALL)
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == found
