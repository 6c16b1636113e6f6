"""How many streams there are to be, and how that is known."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from orpheus_ws import config
from orpheus_ws import manifest as manifests
from orpheus_ws.capacity import SOURCES, Capacity, settle
from orpheus_ws.config import EngineConfig
from orpheus_ws.errors import StartupError
from orpheus_ws.hardware import Hardware
from tests.harness import server
from tests.manifests import blank, measured
from tests.server_peers import http, metric
from tests.test_doctor_gpu import H100, program
from tests.test_hardware import FIRST, WHOLE

SIMULATED = EngineConfig(name="simulated")
GPU_ENGINE = "tests.gpu_engine"


def engine(**keys: Any) -> EngineConfig:
    """A simulated engine's configuration."""
    return EngineConfig(name="simulated", **keys)


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    """A manifest by which 24 streams were measured here with the simulated engine as it is."""
    return str(measured(tmp_path / "m.json", 24, SIMULATED))


@pytest.fixture
def without_model(tmp_path: Path) -> str:
    """A manifest by which 23 streams were measured, and which says that there was no model."""
    return str(measured(tmp_path / "s.json", 23, SIMULATED, simulated=True))


def test_nothing_was_measured(tmp_path: Path) -> None:
    """Without a measurement a development engine has its default, or what is configured."""
    assert settle(engine()) == Capacity(64, "default")
    assert settle(engine(capacity=3)) == Capacity(3, "configured")
    assert settle(engine(uncalibrated=5)) == Capacity(5, "uncalibrated")
    manifests.write(tmp_path / "m.json", blank())
    assert settle(engine(manifest=str(tmp_path / "m.json"))) == Capacity(64, "default")


def test_what_was_measured_counts(manifest: str) -> None:
    """The measured number is taken, and one that equals it may be configured too."""
    assert settle(engine(manifest=manifest)) == Capacity(24, "measured")
    assert settle(engine(manifest=manifest, capacity=24)) == Capacity(24, "measured")


def test_what_was_simulated_is_called_so(without_model: str) -> None:
    """A number that was measured without a model counts like any other, and says what it is."""
    assert settle(engine(manifest=without_model)) == Capacity(23, "simulated")


@pytest.mark.parametrize("wanted", [23, 25])
def test_another_number_is_refused(manifest: str, wanted: int) -> None:
    """A configured capacity that differs names both numbers and the two ways round it."""
    with pytest.raises(StartupError) as refused:
        settle(engine(manifest=manifest, capacity=wanted))
    assert str(refused.value) == (
        f"engine.capacity is {wanted}, and 24 streams were measured on this machine: leave "
        f"engine.capacity out, or start with --capacity-override {wanted}"
    )
    overridden = engine(manifest=manifest, capacity=wanted, capacity_override=wanted)
    assert settle(overridden) == Capacity(wanted, "override")


def test_uncalibrated_is_for_what_nobody_measured(manifest: str) -> None:
    """Once something was measured, `uncalibrated` is refused, as is saying both."""
    with pytest.raises(StartupError, match=r"24 streams were measured.*--capacity-override 9"):
        settle(engine(manifest=manifest, uncalibrated=9))
    with pytest.raises(StartupError, match="not both"):
        settle(engine(uncalibrated=9, capacity_override=9))


def test_a_measurement_counts_for_what_was_measured(tmp_path: Path) -> None:
    """With other options, or on another machine, nothing was measured; text and numbers are one."""
    slow = engine(options={"step_seconds": 0.01})
    path = str(measured(tmp_path / "m.json", 24, slow))
    as_text = engine(options={"step_seconds": "0.01"}, manifest=path)
    assert settle(as_text) == Capacity(24, "measured")
    other = engine(options={"step_seconds": 0.02}, manifest=path)
    assert settle(other).source == "default"
    elsewhere = measured(tmp_path / "n.json", 24, SIMULATED, Hardware("another", "none"))
    assert settle(engine(manifest=str(elsewhere))).source == "default"


def test_a_named_manifest_must_be_there(tmp_path: Path) -> None:
    """A file that is named and missing is an error, unless it would not be asked anyway."""
    missing = str(tmp_path / "m.json")
    with pytest.raises(StartupError, match="no manifest can be read"):
        settle(engine(manifest=missing))
    assert settle(engine(manifest=missing, capacity_override=2)) == Capacity(2, "override")


def test_a_gpu_engine(tmp_path: Path) -> None:
    """An engine without a default takes only what was measured with its model on this GPU and driver."""
    script = f"[ $1 = -L ] && echo '{FIRST}' || echo '{H100}'"
    environment = program(tmp_path, "nvidia-smi", script)

    def gpu_engine(**keys: Any) -> EngineConfig:
        return EngineConfig(name=GPU_ENGINE, options={"model": str(tmp_path)}, **keys)

    for keys, advised in (({}, "N"), ({"capacity": 30}, "30")):
        with pytest.raises(StartupError, match=rf"calibrate.*--uncalibrated {advised}$"):
            settle(gpu_engine(**keys), environment)
    assert settle(gpu_engine(uncalibrated=30), environment) == Capacity(30, "uncalibrated")
    measured(tmp_path / manifests.NAME, 216, gpu_engine(), WHOLE)
    assert settle(gpu_engine(), environment) == Capacity(216, "measured")
    with pytest.raises(StartupError, match=r"30, and 216 streams were measured"):
        settle(gpu_engine(capacity=30), environment)
    newer = program(tmp_path, "nvidia-smi", script.replace("580.82.07", "590.1"))
    with pytest.raises(StartupError, match="nothing was measured"):
        settle(gpu_engine(), newer)


@pytest.mark.parametrize("source", SOURCES)
async def test_the_source_shows(
    source: str, manifest: str, without_model: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Sockets, engine and codec have the one number; where it comes from is in metric and status."""
    keys = {
        "measured": f"engine.manifest={manifest}",
        "simulated": f"engine.manifest={without_model}",
        "override": "engine.capacity_override=5",
        "uncalibrated": "engine.uncalibrated=6",
        "configured": "engine.capacity=7",
        "default": "engine.name=simulated",
    }
    streams = {"measured": 24, "simulated": 23, "override": 5, "uncalibrated": 6, "configured": 7}
    with caplog.at_level(logging.WARNING, "orpheus_ws.server"):
        async with server(keys[source]) as started:
            number = streams.get(source, 64)
            assert (started.engine.capacity, started.admission.capacity) == (number, number)
            assert started.turns.slots == number
            assert await metric(started, "orpheus_capacity") == number
            assert await metric(started, "orpheus_capacity_source", source=source) == 1
            assert await metric(started, "orpheus_capacity_source") == 1
            told = json.loads((await http(started, "/capacity"))[1])
            assert (told["streams"], told["source"]) == (number, source)
    warned = [record.getMessage() for record in caplog.records]
    other = "the capacity is not what was measured here"
    warnings = {"override": other, "uncalibrated": other}
    warnings["simulated"] = "the capacity was measured with a simulated engine"
    assert warned == ([warnings[source]] if source in warnings else [])


def test_keys_are_read() -> None:
    """The ways round it are configuration keys like all others."""
    loaded = config.load(flags=["engine.capacity_override=3", "engine.manifest=a.json"])
    assert (loaded.engine.capacity_override, loaded.engine.manifest) == (3, "a.json")
    with pytest.raises(StartupError, match=r"engine\.uncalibrated"):
        config.load(flags=["engine.uncalibrated=0"])
