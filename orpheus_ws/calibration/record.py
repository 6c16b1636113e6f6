"""What is measured and where it is written: the machine, the model, the manifest.

Rule: a number in the manifest was confirmed, on the machine and with the model that it is filed under,
and has its evidence beside it.
"""

import datetime
import hashlib
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

import orpheus_ws
from orpheus_ws import manifest as manifests
from orpheus_ws import tokens
from orpheus_ws.calibration.probe import TRAFFICS, Attempt
from orpheus_ws.capacity import (
    SIMULATED,
    describe_engine,
    engine_device,
    manifest_path,
    model_hash,
)
from orpheus_ws.config import EngineConfig
from orpheus_ws.errors import StartupError
from orpheus_ws.hardware import Hardware, find_hardware
from orpheus_ws.manifest import Manifest

OBJECTIVE_MS: Final = 150.0
SLICE_OBJECTIVE_MS: Final = 200.0
"""Of a MIG slice."""
BATCH: Final = 64
"""Planned if nobody says otherwise."""

_PACKAGES: Final = (
    "torch",
    "tensorrt_llm",
    "transformers",
    "snac",
    "numpy",
    "uvloop",
    "websockets",
)
_MIG: Final = " MIG "


class Target(NamedTuple):
    """What a calibration is for."""

    hardware: Hardware
    model: str
    """Hash, as `capacity.model_hash` has it."""
    path: Path
    manifest: Manifest | None
    """None where there is none yet, of an engine without a model."""

    @property
    def objective_ms(self) -> float:
        """On the time to first byte, unless told otherwise."""
        return SLICE_OBJECTIVE_MS if _MIG in self.hardware.name else OBJECTIVE_MS

    @property
    def batch(self) -> int:
        """Streams that the engine was planned for."""
        return BATCH if self.manifest is None else self.manifest.limits.max_batch_size


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration as it ended."""

    streams: int | None
    """Confirmed; None if nothing was."""
    written: str | None
    """The manifest that has it now."""
    interrupted: bool
    gpu: str
    driver: str
    model: str
    simulated: bool | None
    """None if no server came so far as to say."""
    date: datetime.date
    objective_ms: float
    prebuffer_ms: float
    probe_seconds: float
    confirm_seconds: float
    """Of full load, in which every stream was there, with both kinds of traffic together."""
    seed: int
    versions: dict[str, str]
    attempts: tuple[Attempt, ...]


def find_target(config: EngineConfig) -> Target:
    """Look at engine, machine and manifest before anything is started. Blocking.

    Raises `StartupError` that says what to do.
    """
    if config.uncalibrated is not None:
        raise StartupError(
            "leave engine.uncalibrated out: calibrate says itself how many streams there are"
        )
    path = manifest_path(config)
    if path is None:
        raise StartupError(
            f"engine {config.name!r} has no model to keep a manifest beside: say where to write what "
            "is measured, with --set engine.manifest=FILE"
        )
    has_model = "model" in config.options
    manifest = manifests.read(path) if has_model or path.exists() else None
    if not os.access(path.parent, os.W_OK):
        raise StartupError(f"{str(path.parent)!r} cannot be written to: make it writable")
    hardware = find_hardware(engine_device(config))
    if hardware is None:
        raise StartupError(
            "nvidia-smi does not say which GPU this is, and a capacity counts for one GPU: see "
            "`orpheus-ws doctor`"
        )
    return Target(hardware, model_hash(config, manifest), path, manifest)


def today() -> datetime.date:
    """The date that a measurement gets."""
    return datetime.datetime.now(datetime.UTC).date()


def versions() -> dict[str, str]:
    """Of the packages that a figure depends on, as far as they are installed."""
    found = {"orpheus-ws": orpheus_ws.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def write(target: Target, config: EngineConfig, report: Report, voices: Sequence[str]) -> None:
    """Put the confirmed number into the manifest, with its evidence. Blocking.

    The manifest is read anew, for hours may have passed. Raises `StartupError`.
    """
    assert report.streams is not None
    # There may be one by now.
    manifest = manifests.read(target.path) if target.path.exists() else None
    if manifest is None:
        manifest = _without_model(config, report, voices)
    elif model_hash(config, manifest) != target.model:
        raise StartupError(
            "the model's manifest has changed while it was measured: calibrate again"
        )
    evidence = msgspec.to_builtins(report)
    for told in ("streams", "written", "interrupted", "gpu", "driver", "model", "date"):
        del evidence[told]
    evidence[SIMULATED] = report.simulated
    evidence["traffics"] = msgspec.to_builtins(TRAFFICS)
    entry = manifests.Capacity(
        gpu=target.hardware.name,
        driver=target.hardware.driver,
        model=target.model,
        streams=report.streams,
        date=report.date,
        evidence=evidence,
    )
    manifests.write(target.path, manifests.add_capacity(manifest, entry))


def _without_model(config: EngineConfig, report: Report, voices: Sequence[str]) -> Manifest:
    """The manifest of an engine without files: its name and options stand for them."""
    content = describe_engine(config)
    files = {
        "engine.json": manifests.File(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    }
    return Manifest(
        model=manifests.Model(
            architecture=config.name, files=files, sha256=manifests.hash_of(files)
        ),
        built_with=report.versions,
        limits=manifests.Limits(
            max_batch_size=max(each.batch for each in report.attempts),
            max_num_tokens=tokens.MAX_TOKENS,
            max_prompt_tokens=tokens.MAX_TOKENS,
            max_tokens=tokens.MAX_TOKENS,
        ),
        voices=tuple(voices),
    )
