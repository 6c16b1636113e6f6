"""The stand-in for TensorRT-LLM, installed for one test, and a checkpoint to open with it."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

FOLDER: Final = Path(__file__).parents[1] / "fakes"
SHAPES: Final = ("1.2.1", "1.4.0")
FREE_BYTES: Final = 40 * 2**30
CONTROL_TOKENS: Final = ("<|eot_id|>", "<|begin_of_text|>", "<|audio|>")
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 156_940,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "hidden_size": 3072,
    "head_dim": 128,
    "rope_theta": 500_000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 32.0},
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
    """A directory with Orpheus's `config.json` (and `config` on top), a tokenizer of bytes, no weights."""
    folder.mkdir(exist_ok=True)
    described = {key: value for key, value in (CONFIG | config).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(bytes(1024))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    # As the published one has them: added, but not special.
    tokenizer.add_tokens(["<custom_token_9>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
