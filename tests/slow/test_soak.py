"""The soak itself: a server in order passes a short one, and whatever leaks does not."""

import asyncio
from pathlib import Path

import pytest

from tests.faulty_engine import LEAKS, Leak
from tests.soak import verdict
from tests.soak.run import Result, Soak
from tests.soak.server import SIMULATED, subject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHOWS: dict[Leak, str] = {
    "memory": "memory grew",
    "task": "'tasks'",
    "descriptor": "'descriptors'",
    "slot": "'engine_slots'",
}


def soaked(folder: Path, *settings: str, seconds: float, quiet_seconds: float) -> Result:
    """A soak with short rounds."""
    given = [*SIMULATED, *settings]
    with subject(given, folder / "server.log") as server:
        soak = Soak(server, folder, given, quiet_seconds=quiet_seconds)
        asyncio.run(soak.run(seconds=seconds, round_seconds=6.0, clients=10))
    soak.read_log(folder / "server.log")
    soak.judge_memory()
    return soak.result


def test_a_server_in_order(tmp_path: Path) -> None:
    """Nothing is lost, nothing is left behind, and it is drawn."""
    result = soaked(tmp_path, seconds=20.0, quiet_seconds=60.0)
    assert result.faults == []
    assert result.rounds
    assert result.lost_samples == 0
    assert all(result.whole.values())
    assert {held.counts == result.baseline for held in result.quiet} == {True}
    picture = verdict.draw(result.samples, result.quiet, "A short one")
    assert picture.count('class="line"') == 5


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_fails(leak: Leak, tmp_path: Path) -> None:
    """An engine that loses something with every request is found out, by name."""
    # What only memory shows has rounds that come to rest, however late; of all else what is left behind is the fault.
    seconds, quiet = (24.0, 60.0) if leak == "memory" else (6.0, 8.0)
    result = soaked(tmp_path, f"engine.options.leak={leak}", seconds=seconds, quiet_seconds=quiet)
    assert any(SHOWS[leak] in fault for fault in result.faults), result.faults
