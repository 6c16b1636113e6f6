"""The entry."""

import subprocess
from pathlib import Path
from typing import Any

import torch

from tensorrt_llm.behaviour import LATER, behaviour
from tensorrt_llm.executor.executor import Executor
from tensorrt_llm.executor.result import IterationResult, RequestOutput
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.model import Speaker
from tensorrt_llm.sampling_params import SamplingParams


class LLM:
    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        # The real one asks which types the GPU has.
        torch.cuda.get_device_properties(0)
        self.args: Any = TorchLlmArgs(model=model, **kwargs)
        self.skips_tokenizer = skip_tokenizer_init
        self._executor = Executor(self.args)
        self.requests: list[tuple[SamplingParams, RequestOutput]] = []
        behaviour.opened.append(self)
        if behaviour.loading is not None:
            behaviour.loading.wait()
        if behaviour.load_error is not None:
            raise behaviour.load_error

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        params = sampling_params or SamplingParams()
        if not isinstance(inputs, list) or not all(isinstance(token, int) for token in inputs):
            raise TypeError("ids, as the tokenizer was skipped")
        if self.skips_tokenizer and params.end_id is None:
            raise ValueError("end_id must be set when the tokenizer is skipped")
        if len(inputs) > self.args.max_num_tokens:
            raise ValueError("the prompt is longer than max_num_tokens")
        params.max_tokens = min(params.max_tokens, self.args.max_seq_len - len(inputs))
        default = not LATER and self.args.sampler_type != "TRTLLMSampler"
        speaker = Speaker(inputs, params, default_sampler=default)
        result = self._executor.submit(inputs, params, speaker, streaming)
        self.requests.append((params, result))
        return result

    def get_stats_async(self, timeout: float | None = 2) -> IterationResult:
        executor = self._executor
        return IterationResult(executor.lines, executor.arrived, timeout or 0.0)

    @property
    def worker(self) -> subprocess.Popen[bytes]:
        """The process that a real one would compute in."""
        return self._executor.worker

    def shutdown(self) -> None:
        self._executor.shutdown()
