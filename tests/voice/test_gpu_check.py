"""`bench gpu-check` measures everything it promises, says on what, and fails when it is not exact."""

import json
import re
from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner

from orpheus_ws.bench import gpu_check
from orpheus_ws.cli import cli
from orpheus_ws.errors import BenchFailed

SMALL = gpu_check.Sizes(2, streams=4, longest=6, runs=2, dtypes=("float32",), decoder_dim=32)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAGE = (Path(__file__).parents[2] / "docs" / "codec.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model and few streams, whatever the machine."""
    monkeypatch.setattr(gpu_check, "ON_CPU", SMALL)
    monkeypatch.setattr(gpu_check, "ON_GPU", SMALL)


def test_the_report() -> None:
    """It has every claim, every bucket and every number format, and claims no GPU without one."""
    parts: list[str] = []
    report = gpu_check.measure(parts.append)
    assert report.device == DEVICE
    assert all(DEVICE in part for part in parts)
    assert report.passed
    assert len(report.checks) == 8
    for check in report.checks:
        assert check.largest_error is not None
        assert check.largest_error <= gpu_check.TOLERANCE
    (build,) = report.builds
    shapes = [(bucket.streams, bucket.frames) for bucket in build.buckets]
    assert shapes == [(streams, frames) for streams in (1, 2) for frames in (1, 2, 4, 8)]
    for bucket in build.buckets:
        assert 0 < bucket.ms_p50 <= bucket.ms_p99
        assert bucket.audio_seconds_per_second > 0
    assert (build.reserved_bytes is None) == (report.cuda is None) == (DEVICE == "cpu")
    ratios = {(entry.weights, entry.dtype): entry.signal_to_error_db for entry in report.precision}
    assert len(ratios) == 4
    for weights in ("released shape, random", "pocket"):
        # Three bits of a mantissa are 18 dB.
        assert 25 < ratios[weights, "bfloat16"] < ratios[weights, "float16"] - 6
    assert [(early.early_frames, early.samples) for early in report.early] == [
        (1, 1024),
        (2, 2048),
        (3, 4096),
    ]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command writes the report, and fails after that when samples are further off than they
    may be."""
    out = tmp_path / "report.json"
    done = CliRunner().invoke(cli, ["bench", "gpu-check", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert ("none of these figures is a GPU's" in done.output) == (DEVICE == "cpu")
    assert msgspec.json.decode(out.read_bytes(), type=gpu_check.Report).passed
    monkeypatch.setattr(gpu_check, "TOLERANCE", 0.0)
    done = CliRunner().invoke(cli, ["bench", "gpu-check", "--out", str(out)])
    assert isinstance(done.exception, BenchFailed)
    assert DEVICE in str(done.exception)
    assert not json.loads(out.read_text())["passed"]


def test_the_page_has_every_field() -> None:
    """docs/codec.md says of every field of the report what it is."""
    documented = set(re.findall(r"`([a-z0-9_]+)`", PAGE))
    structs = (gpu_check.Report, gpu_check.Check, gpu_check.Build, gpu_check.Bucket)
    for struct in (*structs, gpu_check.Precision, gpu_check.Early):
        assert set(struct.__struct_fields__) <= documented
