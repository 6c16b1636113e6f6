"""The benchmark measures: every part comes to a figure, and the figures fit together."""

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]

STREAMS = 6
SECONDS = 4.0
FRAMES_PER_SECOND = 24_000 / 2048
MOST_AT_ONCE = 64
"""Refusals of the library's, in whose CPU time a turn of the event loop is over: what the kernel keeps for a port.
20 were seen."""


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `orpheus-ws bench …`."""
    command = [sys.executable, "-m", "orpheus_ws", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_gateway() -> None:
    """Each part hears what the engine's pace lets it hear, and costs CPU time; groups are larger."""
    size = ("--streams", str(STREAMS), "--seconds", str(SECONDS), "--lead-ms", "400")
    done = bench("gateway", *size, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["streams"], result["lead_ms"]) == (STREAMS, 400)
    assert result["prebuffer_ms"] == 80
    assert result["switch_interval"] == pytest.approx(sys.getswitchinterval())
    parts = {part["name"]: part for part in result["parts"]}
    assert list(parts) == ["floor", "free codec", "codec thread", "timed", "grouped"]
    for name, part in parts.items():
        assert part["cpu_us_per_frame"] > 0
        # By the clock of who measures, who may be held up as well.
        seconds = part["frames"] * part["cpu_us_per_frame"] / 1e6 / part["cpu_share"]
        expected = STREAMS * seconds * FRAMES_PER_SECOND * part["engine_pace"]
        # The pauses between segments, and two seconds for which listeners stand still as the window begins or ends.
        assert part["frames"] == pytest.approx(expected, rel=0.6), name
        assert 0 <= part["lateness_ms_p50"] <= part["lateness_ms_p99"]
        assert (part["gateway_ms_p99"] is not None) == (name == "timed")
    assert parts["floor"]["times_floor"] is None
    for name in list(parts)[1:]:
        times = parts[name]["cpu_us_per_frame"] / parts["floor"]["cpu_us_per_frame"]
        assert parts[name]["times_floor"] == pytest.approx(times, abs=0.02), name
    # A server that stood still for half of the time makes two frames one message; four are due with a lead.
    assert parts["floor"]["frames_per_message"] == pytest.approx(1, abs=0.15)
    assert parts["free codec"]["frames_per_message"] > 0.85
    assert parts["grouped"]["frames_per_message"] > 2 * parts["free codec"]["frames_per_message"]


def storm(*arguments: str) -> Any:
    """Run `orpheus-ws bench storm …`, as hard as it can, and return its figures."""
    size = ("--speakers", "20", "--per-second", "2000", "--seconds", "4")
    done = bench("storm", *size, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_storm() -> None:
    """A storm, of any kind, never has the event loop for long and makes nobody who is spoken to wait; a client
    with a key comes in meanwhile, and a refusal costs less than the library's own.
    """
    result = storm()
    storms = {each["name"]: each for each in result["storms"]}
    assert len(storms) == 8
    for name, each in storms.items():
        assert sum(each["answers"].values()) > 10 * each["visits"], name
        turn_us = each["turn_cpu_ms_p99"] * 1000
        assert turn_us < MOST_AT_ONCE * result["bare_us_per_refusal"], name
        if each["underruns"]:
            # Not a machine that stands still at times: it does so without a storm as well, or not again.
            again = storm("--only", name)
            assert not again["storms"][0]["underruns"] or again["calm"]["underruns"], name
    for name in ("no key", "wrong key", "silent", "health", "http", "metrics"):
        # The last may still be waiting.
        assert storms[name]["visits"] > 1, name
    for name in ("no key", "wrong key", "health"):
        assert storms[name]["cpu_us_per_answer"] < result["bare_us_per_refusal"], name


def test_codec() -> None:
    """Each decoder comes to a figure with each model, and the streaming form is the fastest."""
    done = bench("codec", "--streams", "1", "--streams", "9", "--seconds", "0", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["threads"], result["seconds"]) == (1, 0)
    figures = {
        (f["weights"], f["streams"], f["decoder"], f["frames"]): f for f in result["figures"]
    }
    decoders = [("sliding window", 1), ("exact window", 1), ("streaming", 1)]
    assert list(figures) == [
        (weights, streams, *decoder)
        for weights in ("released shape, random", "pocket")
        for streams in (1, 9)
        for decoder in [*decoders, *([("streaming", 4)] if streams == 1 else [])]
    ]
    for (_, streams, decoder, frames), figure in figures.items():
        assert figure["rounds"] == 3
        # One thread does not work for longer than it takes, but for what a clock is wrong by.
        audio = streams * frames * 2048 / 24_000
        assert figure["audio_seconds_per_core_second"] > 0.8 * audio / figure["ms_per_step"] * 1000
        assert (figure["times_sliding_window"] == 1) == (decoder == "sliding window")
    for weights in ("released shape, random", "pocket"):
        assert figures[weights, 9, "streaming", 1]["times_sliding_window"] > 2


@pytest.mark.parametrize(
    "wrong",
    [
        ("gateway", "--streams", "0"),
        ("gateway", "--seconds", "x"),
        ("gateway", "--lead-ms", "-1"),
        ("codec", "--streams", "0"),
        ("codec", "--threads", "0"),
        ("codec-queue", "--step-ms", "0"),
        ("codec-queue", "--arrivals", "0"),
    ],
)
def test_wrong_sizes_are_refused(wrong: tuple[str, str, str]) -> None:
    """A size that cannot be is a usage error that names the option."""
    refused = bench(*wrong)
    assert refused.returncode == 2
    assert wrong[1] in refused.stderr
