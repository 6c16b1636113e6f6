"""Classes that take the parameters of the real ones and no others."""

import json
from pathlib import Path
from typing import Any, ClassVar

from tensorrt_llm.behaviour import LATER

PARAMETERS: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("parameters.json").read_text(encoding="utf-8")
)


class Strict:
    """Keyword arguments become attributes. Like pydantic's models that forbid what is extra."""

    model_fields: ClassVar[dict[str, None]] = {}

    def __init__(self, **values: Any) -> None:
        unknown = values.keys() - self.model_fields.keys()
        if unknown:
            raise ValueError(f"Extra inputs are not permitted: {sorted(unknown)}")
        for name in self.model_fields:
            setattr(self, name, values.get(name))


class KvCacheConfig(Strict):
    model_fields: ClassVar[dict[str, None]] = dict.fromkeys(PARAMETERS["KvCacheConfig"])


class CudaGraphConfig(Strict):
    model_fields: ClassVar[dict[str, None]] = dict.fromkeys(PARAMETERS["CudaGraphConfig"])

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        sizes = values.get("batch_sizes")
        if sizes and values.get("max_batch_size") not in (None, 0, max(sizes)):
            raise ValueError("max_batch_size is not the largest of batch_sizes")


class DecodeCudaGraphConfig(CudaGraphConfig):
    model_fields: ClassVar[dict[str, None]] = dict.fromkeys(
        [*PARAMETERS["CudaGraphConfig"], "mode"]
    )


class TorchLlmArgs(Strict):
    """Later versions have no choice of samplers, and another class for graphs."""

    model_fields: ClassVar[dict[str, None]] = dict.fromkeys(
        name for name in PARAMETERS["TorchLlmArgs"] if not (LATER and name == "sampler_type")
    )

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        graphs = DecodeCudaGraphConfig if LATER else CudaGraphConfig
        for name, kind in (("cuda_graph_config", graphs), ("kv_cache_config", KvCacheConfig)):
            value = values.get(name)
            if isinstance(value, dict):
                setattr(self, name, kind(**value))
            elif value is not None and type(value) is not kind:
                raise ValueError(f"{name} must be a {kind.__name__}")
