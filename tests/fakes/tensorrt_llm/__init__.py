"""A stand-in for TensorRT-LLM: as much of its `LLM` API as an engine for speech uses.

Rule: parameters are those of the real constructors (`parameters.json`; an unknown one raises), and
what streams does so as the real results do: one object that grows, an asynchronous abort, a last
response that may bring nothing new. It computes nothing and proves nothing about speed. Which version
it is like is chosen before it is imported, by the variable `FAKE_TENSORRT_LLM`: `1.2.1`, or `1.4.0`
for what came after. `behaviour` says what goes wrong.
"""

from tensorrt_llm.behaviour import VERSION, behaviour
from tensorrt_llm.llmapi.llm import LLM
from tensorrt_llm.sampling_params import SamplingParams

__version__ = VERSION
__all__ = ["LLM", "SamplingParams", "behaviour"]
