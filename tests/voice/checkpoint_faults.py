"""What the tests of checkpoints declare, and what they find."""

import json
from pathlib import Path
from typing import Any

from orpheus_ws.engine.checkpoint import examine
from tests.voice.fake_trtllm import CONFIG

EXCLUDED = ["lm_head", "model.embed_tokens"]
SCHEME = {"dynamic": False, "num_bits": 8, "type": "float"}


def declare_fp8(model: Path, stated: dict[str, Any], **again: Any) -> None:
    """Both files of a quantisation; `again` is what `config.json` has differently."""
    declared = {"quantization": {"exclude_modules": EXCLUDED} | stated}
    (model / "hf_quant_config.json").write_text(json.dumps(declared), encoding="utf-8")
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": SCHEME} | again
    described = CONFIG | {"quantization_config": config}
    (model / "config.json").write_text(json.dumps(described), encoding="utf-8")


def only_fault(model: Path) -> str:
    """The one thing that is wrong."""
    checkpoint, faults = examine(model)
    assert checkpoint is None
    assert len(faults) == 1, faults
    assert "\n" not in faults[0]
    assert str(model) in faults[0]
    return faults[0]
