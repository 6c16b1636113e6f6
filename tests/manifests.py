"""Manifests of engines without a model, for tests of what was measured."""

import datetime
from pathlib import Path

from orpheus_ws import manifest as m
from orpheus_ws.capacity import model_hash
from orpheus_ws.config import EngineConfig
from orpheus_ws.hardware import Hardware, find_hardware

NOTHING = "0" * 64


def blank() -> m.Manifest:
    """The manifest of a model that nothing was measured with."""
    return m.Manifest(
        model=m.Model(
            architecture="none", files={"none": m.File(size=0, sha256=NOTHING)}, sha256=NOTHING
        ),
        built_with={},
        limits=m.Limits(
            max_batch_size=64, max_num_tokens=4096, max_prompt_tokens=512, max_tokens=2048
        ),
        voices=("tara",),
    )


def measured(
    path: Path,
    streams: int,
    config: EngineConfig,
    hardware: Hardware | None = None,
    **evidence: object,
) -> Path:
    """Write a manifest by which so many streams were measured with this engine on this machine."""
    manifest = blank()
    there = hardware or find_hardware("cpu")
    assert there is not None
    entry = m.Capacity(
        gpu=there.name,
        driver=there.driver,
        model=model_hash(config, manifest),
        streams=streams,
        date=datetime.date(2026, 11, 30),
        evidence=evidence,
    )
    m.write(path, m.add_capacity(manifest, entry))
    return path
