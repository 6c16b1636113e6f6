"""Checkpoints that are none, by every fault there is, on one of Orpheus's form that takes no room."""

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_build.verify import Severity, verify
from orpheus_ws.engine.checkpoint import EngineName, examine, load_encoder, open_checkpoint
from orpheus_ws.engine.checkpoint_weights import INDEX, read_header
from orpheus_ws.errors import StartupError
from tests.voice.fake_trtllm import (
    CONFIG,
    tensors,
    write_checkpoint,
    write_manifest,
    write_weights,
)

WEIGHTS = "model.safetensors"
EXCLUDED = ["lm_head", "model.embed_tokens"]
SCHEME = {"dynamic": False, "num_bits": 8, "type": "float"}
CUT = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
Damage = Callable[[Path], object]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint that nothing is wrong with."""
    return write_checkpoint(tmp_path / "model")


@pytest.fixture
def quantised(model: Path) -> Path:
    """The same in FP8, as ModelOpt 0.47 exports it."""
    _declare(model, {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"})
    write_weights(model / WEIGHTS, tensors(fp8=True))
    return model


def _declare(model: Path, stated: dict[str, Any], **again: Any) -> None:
    """Both files of a quantisation; `again` is what `config.json` has differently."""
    declared = {"quantization": {"exclude_modules": EXCLUDED} | stated}
    (model / "hf_quant_config.json").write_text(json.dumps(declared), encoding="utf-8")
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": SCHEME} | again
    described = CONFIG | {"quantization_config": config}
    (model / "config.json").write_text(json.dumps(described), encoding="utf-8")


def only_fault(model: Path, engine: EngineName | None = None) -> str:
    """The one thing that is wrong."""
    checkpoint, faults = examine(model, engine)
    assert checkpoint is None
    assert len(faults) == 1, faults
    assert "\n" not in faults[0]
    assert str(model) in faults[0]
    return faults[0]


# What is right ------------------------------------------------------------------------------------


def test_what_is_right(model: Path) -> None:
    """A whole checkpoint has no fault; its figures are those of its files."""
    checkpoint, faults = examine(model)
    assert not faults
    assert checkpoint is not None
    assert checkpoint.kv_values_per_token == 57_344
    assert checkpoint.weight_bytes == sum(
        end - start
        for start, end in (
            each.data_offsets for each in read_header(model / WEIGHTS).tensors.values()
        )
    )


def test_what_is_right_in_fp8(quantised: Path) -> None:
    """FP8 as ModelOpt exports it is right for TensorRT-LLM, and is not for torch."""
    checkpoint = open_checkpoint(str(quantised), "trtllm")
    assert (checkpoint.quantization.weights, checkpoint.quantization.kv_cache) == ("FP8", "FP8")
    with pytest.raises(StartupError, match="give the checkpoint that it was made from"):
        open_checkpoint(str(quantised), "torch")


def test_a_padded_vocabulary(model: Path) -> None:
    """Rows up to a multiple of 8 are let be, with a warning: some pad so that a GPU is faster."""
    write_checkpoint(model, vocab_size=156_944)
    described = tensors() | {"model.embed_tokens.weight": ("BF16", (156_944, 64))}
    write_weights(model / WEIGHTS, described)
    report = verify(model, None)
    assert report.problems == 0
    assert "padded to 156944" in report.findings[0].text
    assert report.findings[0].severity is Severity.WARNING


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


# config.json --------------------------------------------------------------------------------------

NEWER = {"rope_type": "llama3", "factor": 32.0, "rope_theta": 500_000.0}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"architectures": None}, "is not a LlamaForCausalLM"),
        ({"architectures": ["LlamaForCausalLM", "Other"]}, "is not a LlamaForCausalLM"),
        ({"vocab_size": 128_256}, "has a vocabulary of 128256"),
        ({"vocab_size": 156_938}, "has a vocabulary of 156938"),
        ({"vocab_size": 156_941}, "has a vocabulary of 156941"),
        ({"vocab_size": 157_008}, "has a vocabulary of 157008"),
        ({"vocab_size": "many"}, "`vocab_size` has a wrong value"),
        ({"num_hidden_layers": None}, "`num_hidden_layers` is missing"),
        ({"max_position_embeddings": 0}, "`max_position_embeddings` has a wrong value"),
        ({"num_key_value_heads": 7}, "heads that cannot share keys"),
        ({"rope_theta": None}, "give it `rope_theta` and `rope_scaling`"),
        ({"rope_scaling": None}, "give it `rope_theta` and `rope_scaling`"),
        (
            {"rope_theta": None, "rope_scaling": None, "rope_parameters": NEWER},
            "export with 4.57",
        ),
        ({"rope_scaling": {"rope_type": "default"}}, "has not the RoPE of Llama 3"),
        ({"rope_parameters": NEWER | {"rope_theta": 10_000.0}}, "two that differ"),
        ({"rope_parameters": NEWER | {"factor": 8.0}}, "two that differ"),
    ],
)
def test_a_wrong_configuration(model: Path, config: dict[str, Any], said: str) -> None:
    """Each key that matters is looked at, and named."""
    write_checkpoint(model, **config)
    assert said in examine(model).faults[0]


def test_both_spellings_of_rope(model: Path) -> None:
    """What has the keys of transformers 4 and 5, and the same in both, is right."""
    write_checkpoint(model, rope_parameters=NEWER)
    assert examine(model).faults == []


# Quantisation -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "again", "said"),
    [
        ({"quant_algo": "FP8"}, {}, "differ"),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, {"kv_cache_scheme": None}, "differ"),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, {"quant_algo": "NVFP4"}, "differ"),
        (
            {"quant_algo": "NVFP4"},
            {"quant_algo": "NVFP4", "kv_cache_scheme": None},
            "otherwise than to FP8",
        ),
    ],
)
def test_a_wrong_quantisation(
    quantised: Path, stated: dict[str, Any], again: dict[str, Any], said: str
) -> None:
    """Both files must say the same, and FP8."""
    _declare(quantised, stated, **again)
    assert said in only_fault(quantised)


def test_a_quantisation_that_only_one_file_knows(quantised: Path) -> None:
    """Without `hf_quant_config.json` TensorRT-LLM would read bytes as numbers."""
    (quantised / "hf_quant_config.json").unlink()
    assert "or one is missing" in only_fault(quantised)
    (quantised / "hf_quant_config.json").write_text("{}", encoding="utf-8")
    assert "has no `quantization`" in only_fault(quantised)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none(quantised: Path, scale: float) -> None:
    """A scale that is no number above 0 is found without reading the weights."""
    write_weights(quantised / WEIGHTS, tensors(fp8=True), scale)
    assert "are not numbers above 0" in only_fault(quantised)


# Weights ------------------------------------------------------------------------------------------

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


# The tokenizer ------------------------------------------------------------------------------------


def _tokenizer(**changes: Any) -> Damage:
    def damage(model: Path) -> None:
        path = model / "tokenizer.json"
        content = json.loads(path.read_text(encoding="utf-8")) | changes
        path.write_text(json.dumps(content), encoding="utf-8")

    return damage


def _more_words(model: Path) -> None:
    path = model / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["vocab"]["<unused>"] = 130_000
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda model: (model / "tokenizer.json").unlink(), "no tokenizer.json can be read"),
        (lambda model: (model / "tokenizer.json").write_text(""), "is not valid JSON"),
        (lambda model: (model / "tokenizer.json").write_text("[]"), "is not a JSON object"),
        (_tokenizer(model=None), "cannot be loaded"),
        (_tokenizer(added_tokens=[1]), "cannot be loaded"),
        (_tokenizer(added_tokens=[]), "is not Llama 3's with Orpheus's ids"),
        (_tokenizer(normalizer={"type": "Lowercase"}), "loses text"),
        (_more_words, "text ids among the control ids"),
    ],
)
def test_a_wrong_tokenizer(model: Path, damage: Damage, said: str) -> None:
    """It must be the one whose control ids the prompts have, and lose nothing of a text."""
    damage(model)
    assert said in only_fault(model)


def test_a_tokenizer_that_was_told_to_cut(model: Path) -> None:
    """What a file says of truncation and padding, which training leaves there, is not heeded."""
    _tokenizer(truncation=CUT)(model)
    assert len(load_encoder(model)("twelve chars")) == 12


# The manifest -------------------------------------------------------------------------------------


def _write_more(model: Path) -> None:
    (model / "special_tokens_map.json").write_text("{}", encoding="utf-8")


def _edit(model: Path) -> None:
    path = model / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["sha256"] = "0" * 64
    path.write_text(json.dumps(content), encoding="utf-8")


def _swap_names(model: Path) -> None:
    """Weights of the same length, with two tensors that have changed places."""
    described = tensors()
    described |= {f"{FIRST}.weight": ("BF16", (3072, 64))}
    write_weights(model / WEIGHTS, dict(sorted(described.items())))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_write_more, "special_tokens_map.json is not in the manifest"),
        (_edit, "hash of the whole model"),
        (_swap_names, f"{WEIGHTS} is not the file of the manifest"),
        (_tokenizer(truncation=CUT), "tokenizer.json is not the file of the manifest"),
    ],
)
def test_a_manifest_that_does_not_fit(model: Path, damage: Damage, said: str) -> None:
    """Files that came or changed are named, also where only a header tells."""
    write_manifest(model)
    assert examine(model).faults == []
    damage(model)
    assert said in only_fault(model)


def test_a_manifest_of_another_quantisation(model: Path) -> None:
    """What the manifest says of it must be what the checkpoint says."""
    write_manifest(model, quantization={"weights": "FP8"})
    assert "another quantisation" in only_fault(model)


def test_everything_is_found_at_once(model: Path) -> None:
    """`examine` goes on after a fault: each part has its own line."""
    write_checkpoint(model, vocab_size=128_256, rope_theta=None)
    (model / "tokenizer.json").unlink()
    (model / "manifest.json").write_text("{}", encoding="utf-8")
    faults = examine(model).faults
    parts = ("vocabulary of", "rope_theta", "tokenizer.json", "of another shape", "is no manifest")
    assert len(faults) == len(parts)
    for fault, part in zip(faults, parts, strict=True):
        assert part in fault
