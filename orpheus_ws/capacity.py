"""How many streams this machine may serve, and how that is known. One number for the whole server.

Rule: what was measured counts: for this GPU or slice, this driver and this model, as the manifest has
it. To serve another number takes `engine.capacity_override`, and to serve what nobody has measured
takes `engine.uncalibrated`; a plain `engine.capacity` that differs from the measurement is refused.
Engines with a `DEFAULT_CAPACITY` of their own, and those of somebody else, may go without a
measurement. A module whose `DEFAULT_CAPACITY` is None may not.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from orpheus_ws import manifest as manifests
from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import find_engine
from orpheus_ws.errors import StartupError
from orpheus_ws.hardware import find_hardware
from orpheus_ws.manifest import Manifest
from orpheus_ws.settings import read_options

Source = Literal["measured", "simulated", "override", "uncalibrated", "configured", "default"]
"""`simulated`: measured, with an engine that has no model."""
SOURCES: Final[tuple[Source, ...]] = get_args(Source)
SIMULATED: Final = "simulated"
"""In the evidence of a measurement: whether there was no model."""
DEVICES: Final = {"pocket": "cpu", "simulated": "cpu", "trtllm": "cuda"}
"""Where those of our engines run that have no option for it."""


class Capacity(NamedTuple):
    """The number, and where it comes from. `streams` is None when only the engine itself knows."""

    streams: int | None
    source: Source


def settle(config: EngineConfig, environment: Mapping[str, str] | None = None) -> Capacity:
    """Say how many streams there are to be. Blocking: it may read a file and ask `nvidia-smi`.

    `environment` is as in `find_hardware`. Raises `StartupError` that says what to do.
    """
    module = sys.modules[find_engine(config).__module__]
    if config.capacity_override is not None:
        if config.uncalibrated is not None:
            raise StartupError("set engine.capacity_override or engine.uncalibrated, not both")
        return Capacity(config.capacity_override, "override")
    measured = find_measured(config, environment)
    if measured is not None:
        _check_measured(config, measured.streams)
        simulated = measured.evidence.get(SIMULATED)
        return Capacity(measured.streams, "simulated" if simulated else "measured")
    if config.uncalibrated is not None:
        return Capacity(config.uncalibrated, "uncalibrated")
    default: int | None = getattr(module, "DEFAULT_CAPACITY", 0)
    if default is None:
        number = config.capacity or "N"
        raise StartupError(
            f"nothing was measured with engine {config.name!r}, this model and this machine: run "
            f"`orpheus-ws calibrate`, or start with --uncalibrated {number}"
        )
    if config.capacity is not None:
        return Capacity(config.capacity, "configured")
    return Capacity(default or None, "default")


def _check_measured(config: EngineConfig, measured: int) -> None:
    if config.uncalibrated is not None:
        raise StartupError(
            f"{measured} streams were measured on this machine, and engine.uncalibrated is for when "
            "nothing was: leave it out, or start with --capacity-override "
            f"{config.uncalibrated}"
        )
    if config.capacity not in (None, measured):
        raise StartupError(
            f"engine.capacity is {config.capacity}, and {measured} streams were measured on this "
            "machine: leave engine.capacity out, or start with --capacity-override "
            f"{config.capacity}"
        )


def manifest_path(config: EngineConfig) -> Path | None:
    """Where the engine's manifest is or would be: as configured, or beside the model."""
    if config.manifest is not None:
        return Path(config.manifest)
    model = config.options.get("model")
    return Path(model) / manifests.NAME if isinstance(model, str) and model else None


def model_hash(config: EngineConfig, manifest: Manifest | None) -> str:
    """What was measured with: the model's files, or the options of an engine that has none.

    Raises `StartupError` for options that the engine cannot read. Only an engine without a model
    can do without a manifest.
    """
    if "model" in config.options and manifest is not None:
        return manifest.model.sha256
    return hashlib.sha256(describe_engine(config)).hexdigest()


def describe_engine(config: EngineConfig) -> bytes:
    """The name and the options of an engine without a model, as JSON that is always the same.

    Raises `StartupError` for options that the engine cannot read.
    """
    schema = getattr(sys.modules[find_engine(config).__module__], "Options", None)
    options: Any = config.options
    if schema is not None:
        # From a command line they are text, from a file numbers.
        options = read_options(config.options, schema, "engine.options")
    return msgspec.json.encode([config.name, options], order="deterministic")


def engine_device(config: EngineConfig) -> str:
    """What the engine runs on, as torch calls it."""
    schema = getattr(sys.modules[find_engine(config).__module__], "Options", None)
    fields = msgspec.structs.fields(schema) if schema is not None else ()
    own = next((field.default for field in fields if field.name == "device"), None)
    return str(config.options.get("device") or own or DEVICES.get(config.name, "cpu"))


def _may_exist(path: Path) -> bool:
    """True also where this user may not look: whoever reads it then hears why it cannot."""
    try:
        return path.exists()
    except PermissionError:
        return True


def find_measured(
    config: EngineConfig, environment: Mapping[str, str] | None = None
) -> manifests.Capacity | None:
    """What was measured with this engine and model on this machine, if anything. Blocking.

    `environment` is as in `find_hardware`. Raises `StartupError` for a manifest that cannot be read.
    """
    path = manifest_path(config)
    # Whoever names a file means one; beside a model there need not be any.
    if path is None or (config.manifest is None and not _may_exist(path)):
        return None
    manifest = manifests.read(path)
    if not manifest.capacity:
        return None
    hardware = find_hardware(engine_device(config), environment)
    if hardware is None:
        return None
    return manifests.find_capacity(
        manifest, gpu=hardware.name, driver=hardware.driver, model=model_hash(config, manifest)
    )
