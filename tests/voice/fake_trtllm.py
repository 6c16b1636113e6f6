"""The stand-in for TensorRT-LLM, installed for one test, and a checkpoint to open with it."""

import importlib
import json
import math
import struct
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import msgspec
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from orpheus_ws.engine.checkpoint_files import hash_files
from orpheus_ws.manifest import Manifest, hash_of, write

FOLDER: Final = Path(__file__).parents[1] / "fakes"
SHAPES: Final = ("1.2.1", "1.4.0")
FREE_BYTES: Final = 40 * 2**30
CONTROL_TOKENS: Final = {
    128_000: "<|begin_of_text|>",
    128_009: "<|eot_id|>",
    **{128_256 + number: f"<custom_token_{number}>" for number in (1, 2, 3, 4, 5, 10, 28_681)},
}
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 156_940,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    # Orpheus's layers and heads, whose cache is as large as the real one, with little else in them.
    "hidden_size": 64,
    "intermediate_size": 64,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
    "rope_theta": 500_000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 32.0},
}
SIZES: Final = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4}
LINEAR: Final = {
    "self_attn.q_proj": (3072, 64),
    "self_attn.k_proj": (1024, 64),
    "self_attn.v_proj": (1024, 64),
    "self_attn.o_proj": (64, 3072),
    "mlp.gate_proj": (64, 64),
    "mlp.up_proj": (64, 64),
    "mlp.down_proj": (64, 64),
}


def install(monkeypatch: pytest.MonkeyPatch, version: str = SHAPES[0], *, gpu: bool = True) -> Any:
    """Let `import tensorrt_llm` find the stand-in, and torch a GPU; return its `behaviour`."""
    monkeypatch.setenv("FAKE_TENSORRT_LLM", version)
    monkeypatch.syspath_prepend(FOLDER)
    _forget()
    package = importlib.import_module("tensorrt_llm")
    importlib.import_module("tensorrt_llm.executor.utils")
    for name, module in _forget().items():
        # So that it is forgotten again after the test.
        monkeypatch.setitem(sys.modules, name, module)
    if gpu:
        show_gpu(monkeypatch)
    return package.behaviour


def _forget() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]
    return {name: sys.modules.pop(name) for name in names}


def show_gpu(monkeypatch: pytest.MonkeyPatch, free: int = FREE_BYTES) -> None:
    """Let torch see a GPU of 80 GiB, of which `free` bytes are free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80 * 2**30))


def write_checkpoint(folder: Path, **config: Any) -> Path:
    """A directory with Orpheus's `config.json` (and `config` on top), a tokenizer of bytes, and empty weights."""
    folder.mkdir(exist_ok=True)
    described = {key: value for key, value in (CONFIG | config).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    write_weights(folder / "model.safetensors", tensors())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    content = json.loads(tokenizer.to_str())
    # As the published one has them: Llama's are special, Orpheus's are not.
    content["added_tokens"] = [
        dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        | {"id": token, "content": name, "special": name.startswith("<|")}
        for token, name in CONTROL_TOKENS.items()
    ]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape, by name."""


def tensors(*, fp8: bool = False) -> Tensors:
    """Those of the checkpoint; with two scales for each linear layer if it is quantised."""
    found: Tensors = {
        "model.embed_tokens.weight": ("BF16", (156_940, 64)),
        "model.norm.weight": ("BF16", (64,)),
    }
    for layer in range(28):
        prefix = f"model.layers.{layer}"
        found[f"{prefix}.input_layernorm.weight"] = ("BF16", (64,))
        found[f"{prefix}.post_attention_layernorm.weight"] = ("BF16", (64,))
        for name, shape in LINEAR.items():
            found[f"{prefix}.{name}.weight"] = ("F8_E4M3" if fp8 else "BF16", shape)
            if fp8:
                found |= {
                    f"{prefix}.{name}.{each}_scale": ("F32", ()) for each in ("weight", "input")
                }
    return found


def write_weights(path: Path, described: Tensors, scale: float = 0.5) -> None:
    """Weights of nothing: a header, and as many bytes as it promises, which take no room."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in described.items():
        start, end = end, end + SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    content = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(content)) + content)
        file.truncate(8 + len(content) + end)
        for name, each in header.items():
            if name.endswith("_scale"):
                file.seek(8 + len(content) + each["data_offsets"][0])
                file.write(struct.pack("<f", scale))


def write_manifest(folder: Path, **changes: Any) -> Path:
    """The manifest of what lies there, with these keys of it or of its limits changed."""
    files = hash_files(folder)
    limits = {"max_batch_size": 4, "max_num_tokens": 4096}
    limits |= {"max_prompt_tokens": 500, "max_tokens": 1000}
    content = {
        "format": 1,
        "model": {"architecture": "LlamaForCausalLM", "files": files, "sha256": hash_of(files)},
        "built_with": {"tensorrt_llm": "1.2.1"},
        "voices": ["ava", "ben"],
        "limits": limits | {key: changes.pop(key) for key in [*changes] if key in limits},
    }
    manifest = msgspec.convert(msgspec.to_builtins(content | changes), Manifest)
    write(folder / "manifest.json", manifest)
    return folder
