"""Many streams: one process of clients holds several hundred, and those that are admitted stay whole."""

import math
from pathlib import Path

import msgspec
import pytest

from orpheus_ws.loadtest import Result
from tests.test_cli import run, serving

pytestmark = [pytest.mark.slow, pytest.mark.alone]

STREAMS = 300
CAPACITY = 20


def load(out: Path, *arguments: str, capacity: int) -> Result:
    """Run `orpheus-ws load` on a simulated engine that makes speech at 1.4 times real time."""
    # Nobody reads its log here, and a server whose log is full waits.
    settings = ("--set", "log.level=error", "--set", "engine.options.step_seconds=0.06")
    with serving("--capacity", f"{capacity}", *settings) as (_, announcement):
        done = run("load", announcement["url"], *arguments, "--out", str(out))
    assert "Traceback" not in done.stderr
    return msgspec.json.decode(out.read_bytes(), type=Result)


def test_several_hundred_streams_in_one_process(tmp_path: Path) -> None:
    """Every chunk of 300 streams arrives and is accounted for, by one process."""
    arguments = ("--streams", f"{STREAMS}", "--processes", "1", "--ramp", "10", "--seconds", "15")
    result = load(tmp_path / "r.json", *arguments, "--barge-in", "0.2", capacity=STREAMS)
    assert (result.figures.faults, result.figures.failures, result.figures.refused) == ({}, {}, {})
    assert result.figures.turns >= STREAMS
    assert result.figures.cancelled > 0
    assert result.harness.processes == 1


def test_excess_is_refused(tmp_path: Path) -> None:
    """A fifth more streams than slots: the excess is refused, and no admitted turn is broken."""
    streams = math.ceil(1.2 * CAPACITY)
    arguments = ("--streams", f"{streams}", "--seconds", "20", "--processes", "1")
    result = load(tmp_path / "r.json", *arguments, capacity=CAPACITY)
    assert result.figures.refused["full"] >= streams - CAPACITY
    assert (result.figures.faults, result.figures.failures) == ({}, {})
    # A machine that stands still makes one for each stream; a server that is kept from speaking, many in every turn.
    assert result.figures.underruns < result.figures.turns


def test_excess_of_arrivals_is_refused(tmp_path: Path) -> None:
    """Turns that begin whether or not there is room, a fifth more than slots: no admitted one is broken."""
    # A turn is 7 s of speech as a mean, and is sent up to 2 s ahead.
    rate = 1.2 * CAPACITY / 5
    arguments = ("--rate", f"{rate}", "--streams", "100", "--seconds", "20", "--processes", "1")
    result = load(tmp_path / "r.json", *arguments, capacity=CAPACITY)
    assert result.figures.refused["full"] > 0
    assert (result.figures.faults, result.figures.failures) == ({}, {})
    # A machine that stands still makes one for each stream; a server that is kept from speaking, many in every turn.
    assert result.figures.underruns < result.figures.turns
