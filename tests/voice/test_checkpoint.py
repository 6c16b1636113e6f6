"""Checkpoints that are none, by every fault there is, on one of Orpheus's form that takes no room."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_build.verify import Severity, verify
from orpheus_ws.engine.checkpoint import examine, load_encoder, open_checkpoint
from orpheus_ws.engine.checkpoint_weights import read_header
from tests.voice.checkpoint_faults import declare_fp8, only_fault
from tests.voice.fake_trtllm import (
    tensors,
    write_checkpoint,
    write_manifest,
    write_weights,
)

WEIGHTS = "model.safetensors"
CUT = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
Damage = Callable[[Path], object]


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
    """FP8 as ModelOpt exports it is right, and known for what it is."""
    checkpoint = open_checkpoint(str(quantised), "trtllm")
    assert (checkpoint.quantization.weights, checkpoint.quantization.kv_cache) == ("FP8", "FP8")


def test_a_padded_vocabulary(model: Path) -> None:
    """Rows up to a multiple of 8 are let be, with a warning: some pad so that a GPU is faster."""
    write_checkpoint(model, vocab_size=156_944)
    described = tensors() | {"model.embed_tokens.weight": ("BF16", (156_944, 64))}
    write_weights(model / WEIGHTS, described)
    report = verify(model, None)
    assert report.problems == 0
    assert "padded to 156944" in report.findings[0].text
    assert report.findings[0].severity is Severity.WARNING


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
    declare_fp8(quantised, stated, **again)
    assert said in only_fault(quantised)


def test_a_quantisation_that_only_one_file_knows(quantised: Path) -> None:
    """Without `hf_quant_config.json` TensorRT-LLM would read bytes as numbers."""
    (quantised / "hf_quant_config.json").unlink()
    assert "or one is missing" in only_fault(quantised)
    (quantised / "hf_quant_config.json").write_text("{}", encoding="utf-8")
    assert "has no `quantization`" in only_fault(quantised)


def test_what_verify_warns_of(model: Path) -> None:
    """For TensorRT-LLM it says what is slow, and what the manifest does not know."""

    def warnings() -> list[str]:
        report = verify(model, "trtllm")
        assert all(finding.severity is Severity.WARNING for finding in report.findings)
        return [finding.text for finding in report.findings]

    no_manifest, slow = warnings()
    assert "there is no manifest" in no_manifest
    assert "not quantised" in slow
    write_manifest(model, built_with={})
    assert "names no TensorRT-LLM" in warnings()[0]
    write_manifest(model)
    assert warnings() == [slow]
    assert verify(model, "torch").findings == []


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
