"""The settings, by the names that each version has for them."""

from tensorrt_llm import shapes
from tensorrt_llm.behaviour import LATER
from tensorrt_llm.shapes import KvCacheConfig, TorchLlmArgs

__all__ = ["KvCacheConfig", "TorchLlmArgs"]

if LATER:
    DecodeCudaGraphConfig = shapes.DecodeCudaGraphConfig
else:
    CudaGraphConfig = shapes.CudaGraphConfig
