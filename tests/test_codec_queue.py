"""The simulation of the codec's queue: nothing is lost, nothing is early, and the seed decides all."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws.bench.codec_queue import LOADS, MAX_BATCH, Cost, Result, measure, poisson, simulate
from orpheus_ws.bench.queue_plot import draw
from orpheus_ws.codec.policy import DYNAMIC_WAIT, Dynamic, InFlight, Policy

COST = Cost()
POLICIES: list[Policy] = [InFlight(MAX_BATCH), Dynamic(MAX_BATCH)]

arrivals = st.lists(st.floats(0, 0.2), min_size=1, max_size=120).map(sorted)
costs = st.builds(Cost, st.floats(0.0005, 0.02), st.floats(0, 0.001))


@pytest.mark.parametrize("policy", POLICIES)
@given(times=arrivals, cost=costs)
def test_every_arrival_is_served_once(policy: Policy, times: list[float], cost: Cost) -> None:
    """Each arrival is in one step of a possible size, and takes at least what it would alone."""
    run = simulate(policy, times, cost)
    assert sum(run.batches) == len(times)
    assert all(1 <= size <= MAX_BATCH for size in run.batches)
    assert len(run.latencies) == len(times)
    assert run.latencies.min() >= cost.of(1) - 1e-9
    assert (np.array(times) + run.latencies).max() == pytest.approx(run.seconds)


@pytest.mark.parametrize("policy", POLICIES)
@given(times=arrivals, cost=costs)
def test_steps_follow_each_other(policy: Policy, times: list[float], cost: Cost) -> None:
    """The device makes one step at a time: its results are apart by what the steps cost."""
    run = simulate(policy, times, cost)
    results = np.unique(np.round(np.array(times) + run.latencies, 9))
    assert len(results) == len(run.batches)
    steps = np.array([cost.of(size) for size in run.batches])
    assert (np.diff(results) >= steps[1:] - 1e-8).all()
    assert results[0] >= steps[0] - 1e-8


def test_in_flight_by_hand() -> None:
    """In flight nobody waits but for the step under way, and then all go together."""
    run = simulate(InFlight(MAX_BATCH), [0.0, 0.001, 0.002, 0.020], COST)
    assert run.batches == [1, 2, 1]
    second = 0.002_02 + 0.002_04
    expected = [0.002_02, second - 0.001, second - 0.002, 0.002_02]
    np.testing.assert_allclose(run.latencies, expected)


def test_dynamic_by_hand() -> None:
    """A dynamic batch waits for its time, or until it is full."""
    run = simulate(Dynamic(3), [0.0, 0.004, 0.040, 0.041, 0.042], COST)
    assert run.batches == [2, 3]
    first, full = DYNAMIC_WAIT + 0.002_04, 0.002_06
    expected = [first, first - 0.004, full + 0.002, full + 0.001, full]
    np.testing.assert_allclose(run.latencies, expected)


def test_arrivals_are_those_of_the_seed() -> None:
    """The same seed gives the same pattern at any rate, and at about that rate; another, another."""
    times = poisson(20_000, 1000.0, seed=5)
    np.testing.assert_array_equal(times, poisson(20_000, 1000.0, seed=5))
    np.testing.assert_allclose(times, 2 * poisson(20_000, 2000.0, seed=5))
    assert times[-1] == pytest.approx(20, rel=0.03)
    assert not np.array_equal(times, poisson(20_000, 1000.0, seed=6))


@pytest.fixture(scope="module", params=[0, 1])
def result(request: pytest.FixtureRequest) -> Result:
    """A whole run."""
    return measure(50_000, request.param, COST)


def test_the_same_run_again(result: Result) -> None:
    """Everything comes from the seed."""
    assert measure(50_000, result.seed, COST) == result


def test_in_flight_adds_less(result: Result) -> None:
    """In flight the p99 of added latency is lower at half load and below, and no worse above."""
    points = {(point.policy, point.load): point for point in result.points}
    assert set(points) == {(policy, load) for policy in ("in flight", "dynamic") for load in LOADS}
    for load in LOADS:
        mine, other = points["in flight", load], points["dynamic", load]
        assert mine.frames_per_second == other.frames_per_second
        assert mine.added_ms_p99 < other.added_ms_p99 if load <= 0.5 else True
        assert mine.added_ms_p99 <= other.added_ms_p99
        assert mine.added_ms_p50 <= other.added_ms_p50


def test_sizes_are_those_of_theory(result: Result) -> None:
    """A device that is never idle serves in a step what came in the one before: B = rate · cost(B)."""
    for point in result.points:
        if point.policy == "in flight" and point.load in (0.5, 0.8):
            rate = point.frames_per_second
            expected = rate * COST.step / (1 - rate * COST.stream)
            assert point.streams_per_step == pytest.approx(expected, rel=0.02)
        if point.policy == "dynamic" and point.load >= 0.5:
            # All batches are full, so the device works in proportion to the load.
            assert point.busy == pytest.approx(point.load, rel=0.02)


def test_the_plot(result: Result) -> None:
    """The plot is an image with a line for each figure, which says that it shows a simulation."""
    image = ElementTree.fromstring(draw(result))
    space = "{http://www.w3.org/2000/svg}"
    drawn = [path.get("class", "") for path in image.iter(f"{space}path")]
    assert sum(style.startswith("line") for style in drawn) == 6
    words = [text.text or "" for text in image.iter(f"{space}text")]
    assert any("Simulation" in word for word in words)
    assert {"20%", "50%", "80%", "95%"} <= set(words)
    assert "prefers-color-scheme: dark" in draw(result)


def test_the_command(tmp_path: Path) -> None:
    """`bench codec-queue --json --plot` writes figures that say they are simulated, and the plot."""
    plot = tmp_path / "queue.svg"
    command = [sys.executable, "-m", "orpheus_ws", "bench", "codec-queue"]
    size = ("--arrivals", "2000", "--step-ms", "4", "--json", "--plot", str(plot))
    done = subprocess.run([*command, *size], capture_output=True, timeout=60, check=True)
    figures = json.loads(done.stdout)
    assert "clock" in figures["simulated"]
    assert (figures["arrivals"], figures["step_ms"]) == (2000, 4)
    assert len(figures["points"]) == 2 * len(LOADS)
    assert "4 ms" in plot.read_text(encoding="utf-8")
