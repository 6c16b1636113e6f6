"""Weights that do not fit, or are not whole, by their headers alone."""

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.engine.checkpoint import examine
from orpheus_ws.engine.checkpoint_weights import INDEX, read_header
from orpheus_ws.errors import StartupError
from tests.voice.checkpoint_faults import only_fault
from tests.voice.fake_trtllm import tensors, write_weights

WEIGHTS = "model.safetensors"
Damage = Callable[[Path], object]


def test_weights_in_shards(model: Path) -> None:
    """Shards with an index that names them are as good as one file."""
    _shard(model)
    assert examine(model).faults == []


def _shard(model: Path, **moved: str) -> None:
    """Two shards and their index, in which the tensors in `moved` have another place."""
    everything = list(tensors().items())
    placed: dict[str, str] = {}
    for number, part in enumerate((everything[:50], everything[50:]), 1):
        write_weights(model / f"part{number}.safetensors", dict(part))
        placed |= {name: f"part{number}.safetensors" for name, _ in part}
    (model / WEIGHTS).unlink()
    index = {"weight_map": placed | moved}
    (model / INDEX).write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none(quantised: Path, scale: float) -> None:
    """A scale that is no number above 0 is found without reading the weights."""
    write_weights(quantised / WEIGHTS, tensors(fp8=True), scale)
    assert "are not numbers above 0" in only_fault(quantised)


FIRST = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({f"{FIRST}.weight": None}, "1 tensors in"),
        ({f"{FIRST}.weight": None}, f"are missing, such as '{FIRST}.weight'"),
        ({f"{FIRST}.bias": ("BF16", (3072,))}, "unknown to this architecture"),
        ({f"{FIRST}.weight": ("BF16", (64, 3072))}, "of another shape"),
        ({f"{FIRST}.weight": ("F8_E4M3", (3072, 64))}, "of another type"),
        ({f"{FIRST}.weight": ("I32", (3072, 64))}, "of another type"),
    ],
)
def test_wrong_tensors(model: Path, changes: dict[str, Any], said: str) -> None:
    """Every tensor of the architecture must be there, no other, in its shape and type."""
    described = {**tensors(), **changes}
    write_weights(model / WEIGHTS, {name: each for name, each in described.items() if each})
    assert said in only_fault(model)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({f"{FIRST}.weight_scale": None}, "are missing"),
        ({f"{FIRST}.weight": ("BF16", (3072, 64))}, "of another type"),
        ({f"{FIRST}.input_scale": ("F32", (1, 64))}, "of another shape"),
    ],
)
def test_wrong_tensors_in_fp8(quantised: Path, changes: dict[str, Any], said: str) -> None:
    """Every linear layer is in FP8 and has its two scales."""
    described = {**tensors(fp8=True), **changes}
    write_weights(quantised / WEIGHTS, {name: each for name, each in described.items() if each})
    assert said in only_fault(quantised)


def test_harmless_tensors(model: Path) -> None:
    """A head that repeats the embedding, scales of the cache, and old leftovers do no harm."""
    more = {
        "lm_head.weight": ("BF16", (156_940, 64)),
        "model.layers.0.self_attn.k_proj.k_scale": ("F32", ()),
        "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (64,)),
    }
    write_weights(model / WEIGHTS, {**tensors(), **more})
    assert examine(model).faults == []


@given(st.floats(0.0, 1.0, exclude_max=True))
@settings(max_examples=30, deadline=None)
def test_a_file_that_was_cut_short(tmp_path_factory: pytest.TempPathFactory, left: float) -> None:
    """Wherever a file of weights ends too early, it is refused by name."""
    path = tmp_path_factory.mktemp("cut") / WEIGHTS
    write_weights(path, tensors(fp8=True))
    with path.open("r+b") as file:
        file.truncate(int(left * path.stat().st_size))
    with pytest.raises(StartupError, match=WEIGHTS):
        read_header(path)


def _framed(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


@given(st.binary(max_size=100) | st.binary(max_size=90).map(_framed))
@settings(max_examples=100, deadline=None)
def test_a_file_of_anything(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever bytes a file holds, it is a safetensors file or an error of ours."""
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(content)
    with contextlib.suppress(StartupError):
        assert read_header(path).size <= len(content)


def _garbage(model: Path) -> None:
    _shard(model)
    (model / INDEX).write_text("[]", encoding="utf-8")


def _lose_a_shard(model: Path) -> None:
    _shard(model)
    (model / "part2.safetensors").unlink()


def _keep_an_old_file(model: Path) -> None:
    write_weights(model / "old.safetensors", tensors())


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda model: (model / WEIGHTS).unlink(), f"no {WEIGHTS}"),
        (_lose_a_shard, "no part2.safetensors"),
        (_keep_an_old_file, "old.safetensors"),
        (_garbage, "is no index"),
        (lambda model: _shard(model, **{"model.norm.weight": "part2.safetensors"}), "differ in 2"),
        (
            lambda model: _shard(model, more="part2.safetensors"),
            "differ in 1 places, such as 'more'",
        ),
        (lambda model: _shard(model, more="../part2.safetensors"), "is no index"),
    ],
)
def test_wrong_files(model: Path, damage: Damage, said: str) -> None:
    """Shards must all be there, be named by the index, and hold what it says."""
    damage(model)
    assert said in only_fault(model)
