"""What a probe has to hold, where the search begins, and what is written."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from orpheus_ws import manifest as manifests
from orpheus_ws.calibration import probe, record
from orpheus_ws.calibration.record import Report, find_target
from orpheus_ws.calibration.run import START, first_guess
from orpheus_ws.capacity import Capacity, find_measured, settle
from orpheus_ws.config import EngineConfig
from orpheus_ws.errors import StartupError
from orpheus_ws.hardware import Hardware, find_hardware
from orpheus_ws.loadtest import Figures, Harness, Live, Percentiles, Progress, Result
from orpheus_ws.loadtest.tally import Tally
from orpheus_ws.planning.profiles import find_gpu
from tests.manifests import blank, measured

URL = "ws://127.0.0.1:1/v1/tts"
QUICK = Harness(processes=1, cpu_share=0.1, lag_ms_p99=1.0, lag_ms_highest=2.0)


def latency(p99: float, count: int = 40) -> Percentiles:
    """Of something that is 50 as a rule."""
    return Percentiles(count=count, lowest=10, p50=50, p90=60, p99=p99, highest=p99)


def figures(**changed: object) -> Figures:
    """Of a run in which all was well, but for what is changed."""
    good = {"first_byte_ms": latency(100), "slowest_stream": 1.2, "full_load": True}
    return msgspec.structs.replace(Tally(150).figures(), **{**good, **changed})


def result(*, stopped: str | None = None, harness: Harness = QUICK, **changed: object) -> Result:
    """A run that came to such figures."""
    plan = probe.plan(URL, 10, "steady", seconds=5, objective_ms=150, seed=0)
    return Result(
        plan=plan, began=0.0, seconds=6.0, stopped=stopped, figures=figures(**changed),
        harness=harness, gaps=Tally().gaps(), turns=(),
    )  # fmt: skip


def progress(*, underruns: int = 0, late: int = 0, heard: int = 40, **changed: object) -> Progress:
    """A run under way."""
    live = Live(
        sockets=10, speaking=10, underruns=underruns, first_byte_ms=latency(100, heard), late=late
    )
    return Progress(seconds=3, of_seconds=6, live=live, figures=figures(**changed))


def test_all_bounds_held() -> None:
    """A run in which all was well holds; one of a fast server, whose pace nobody sees, does as well."""
    for pace in (1.2, 1.0, None):
        attempt = probe.attempt(result(slowest_stream=pace), "search", "steady", 64)
        assert attempt.held, attempt.broken
        assert (attempt.streams, attempt.batch) == (10, 64)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"first_byte_ms": latency(151)}, "p99 151 ms, above the objective of 150 ms"),
        ({"first_byte_ms": None}, "no turn had any audio"),
        ({"underruns": 1, "turns_with_underruns": 1}, "underruns: 1"),
        ({"slowest_stream": 0.92}, "0.920 times real time"),
        ({"faults": {"early_end": 1}}, "early_end: 1"),
        ({"failures": {"engine_failed": 1}}, "engine_failed: 1"),
        ({"refused": {"full": 1}}, "refused, full: 1"),
    ],
)
def test_each_bound(changed: dict[str, Any], says: str) -> None:
    """Each bound is broken by one turn or stream, and the line says which it is."""
    (line,) = probe.broken_bounds(result(**changed))
    assert says in line


def test_late_clients_are_named() -> None:
    """A run that failed while the clients were late says so; one that held needs no excuse."""
    late = Harness(processes=1, cpu_share=0.99, lag_ms_p99=50.0, lag_ms_highest=90.0)
    assert "the clients themselves" in probe.broken_bounds(result(harness=late, underruns=1))[-1]
    assert probe.broken_bounds(result(harness=late)) == ()


def test_a_run_that_was_ended_has_not_held() -> None:
    """What was ended because a bound was certain to break is broken; what was interrupted is not held."""
    ended = probe.attempt(result(stopped="time to first byte"), "search", "steady", 64)
    assert (ended.held, ended.broken) == (False, ("time to first byte",))
    # Turns that were cut off before they sounded are no turns without audio.
    early = result(stopped="underruns", first_byte_ms=None, underruns=2)
    assert [line.split(":")[0] for line in probe.broken_bounds(early)] == ["underruns"]
    interrupted = probe.attempt(result(stopped="interrupted"), "search", "steady", 64)
    assert (interrupted.held, interrupted.broken) == (False, ())


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (progress(), None),
        (progress(underruns=1), "underruns"),
        (progress(failures={"engine_failed": 1}), "failed"),
        (progress(faults={"odd_byte": 1}), "not whole"),
        (progress(refused={"full": 1}), "refused"),
        (progress(late=2, heard=2), None),
        (progress(late=3, heard=10), "first byte"),
        # Of many turns a few may still turn out to be the one in a hundred.
        (progress(late=3, heard=40), None),
        (progress(late=5, heard=40), "first byte"),
    ],
)
def test_what_ends_a_probe(seen: Progress, reason: str | None) -> None:
    """A probe ends as soon as a bound is clearly broken, and not before."""
    found = probe.clearly_broken(seen)
    assert found is None if reason is None else reason in (found or "")


def engine(path: Path, **keys: object) -> EngineConfig:
    """A simulated engine with a manifest there."""
    return EngineConfig(name="simulated", manifest=str(path), **keys)  # type: ignore[arg-type]


def report(streams: int, **changed: object) -> Report:
    """Of a calibration that came to so many streams."""
    held = probe.attempt(result(), "confirm", "steady", 64)
    target = find_hardware("cpu")
    assert target is not None
    made = Report(
        streams=streams, written=None, interrupted=False, gpu=target.name, driver=target.driver,
        model="0" * 64, simulated=True, date=record.today(), objective_ms=150, prebuffer_ms=80,
        probe_seconds=5, confirm_seconds=20, seed=0, versions=record.versions(), attempts=(held,),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changed)


def test_what_is_written_is_what_serve_finds(tmp_path: Path) -> None:
    """Into a manifest that is not there yet, and again: the number with its evidence, found by `serve`."""
    config = engine(tmp_path / "m.json")
    for streams in (12, 9):
        target = find_target(config)
        record.write(target, config, report(streams), ("tara",))
        assert settle(config) == Capacity(streams, "simulated")
    entry = find_measured(config)
    assert entry is not None
    assert entry.evidence["simulated"] is True
    assert entry.evidence["prebuffer_ms"] == 80
    assert entry.evidence["attempts"][0]["streams"] == 10
    assert len(manifests.read(tmp_path / "m.json").capacity) == 1
    record.write(find_target(config), config, report(7, simulated=False), ("tara",))
    assert settle(config) == Capacity(7, "measured")


def test_what_others_measured_stays(tmp_path: Path) -> None:
    """An entry of another machine, the limits and the rest of the manifest are left as they are."""
    elsewhere = Hardware("another", "1.2")
    config = engine(tmp_path / "m.json")
    measured(tmp_path / "m.json", 24, config, elsewhere)
    target = find_target(config)
    assert target.batch == blank().limits.max_batch_size
    record.write(target, config, report(5), ("tara",))
    manifest = manifests.read(tmp_path / "m.json")
    assert [entry.streams for entry in manifest.capacity] == [24, 5]
    assert msgspec.structs.replace(manifest, capacity=()) == blank()


def test_a_model_that_changed_meanwhile(tmp_path: Path) -> None:
    """What was measured with one model is not filed under another."""
    config = EngineConfig(
        name="tests.gpu_engine", options={"model": str(tmp_path), "device": "cpu"}
    )
    manifests.write(tmp_path / manifests.NAME, blank())
    target = find_target(config)
    other = msgspec.structs.replace(blank().model, sha256="1" * 64)
    changed = msgspec.structs.replace(blank(), model=other)
    manifests.write(tmp_path / manifests.NAME, changed)
    with pytest.raises(StartupError, match="calibrate again"):
        record.write(target, config, report(5), ("tara",))
    assert manifests.read(tmp_path / manifests.NAME) == changed


def test_what_cannot_be_calibrated(tmp_path: Path) -> None:
    """What would be noticed only after an hour of measuring is noticed before, with what to do."""
    with pytest.raises(StartupError, match=r"--set engine\.manifest=FILE"):
        find_target(EngineConfig(name="simulated"))
    with pytest.raises(StartupError, match=r"leave engine\.uncalibrated out"):
        find_target(engine(tmp_path / "m.json", uncalibrated=3))
    with pytest.raises(StartupError, match="make it writable"):
        find_target(engine(tmp_path / "nowhere" / "m.json"))
    with pytest.raises(StartupError, match="no manifest can be read"):
        find_target(EngineConfig(name="tests.gpu_engine", options={"model": str(tmp_path)}))


def test_the_objective_of_a_slice(tmp_path: Path) -> None:
    """A MIG slice has 200 ms, everything else 150."""
    target = find_target(engine(tmp_path / "m.json"))
    assert target.objective_ms == 150
    mig = Hardware("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "580.1")
    assert target._replace(hardware=mig).objective_ms == 200


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "h100-mig-3g.40gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L40S", "l40s"),
        ("AMD EPYC, 2 cores", None),
    ],
)
def test_where_to_begin(tmp_path: Path, name: str, gpu: str | None) -> None:
    """Arithmetic says where to begin on a GPU that it knows; a slice that it does not know is none."""
    assert find_gpu(name) == gpu
    target = find_target(engine(tmp_path / "m.json"))._replace(hardware=Hardware(name, "1"))
    guess = first_guess(target, 10_000)
    assert guess == START if gpu is None else guess > START
    assert first_guess(target, 3) == 3
