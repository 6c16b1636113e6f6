"""How to sample: a dataclass with keywords only, whose defaults are traps."""

from typing import Any

from tensorrt_llm.shapes import PARAMETERS


class SamplingParams:
    def __init__(self, **values: Any) -> None:
        for name in values:
            if name not in PARAMETERS["SamplingParams"]:
                raise TypeError(f"__init__() got an unexpected keyword argument {name!r}")
        self.max_tokens: int = values.get("max_tokens", 32)
        self.end_id: int | None = values.get("end_id")
        self.ignore_eos: bool = values.get("ignore_eos", False)
        self.detokenize: bool = values.get("detokenize", True)
        self.temperature: float | None = values.get("temperature")
        self.top_p: float | None = values.get("top_p")
        self.top_k: int | None = values.get("top_k")
        self.seed: int | None = values.get("seed")
        self.repetition_penalty: float = values.get("repetition_penalty") or 1.0
        self.embedding_bias: Any = values.get("embedding_bias")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError("temperature must not be negative")

    @property
    def greedy(self) -> bool:
        """Nothing that leaves a choice is set."""
        return self.temperature is None and self.top_p is None and self.top_k is None
