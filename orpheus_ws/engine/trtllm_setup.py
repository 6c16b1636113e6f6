"""What TensorRT-LLM is told, and what must hold before it is started.

Rule: nothing here starts anything or needs TensorRT-LLM. Figures come from the checkpoint, the
options and arithmetic; which settings a version has is asked of its own classes. Defaults and limits
named "TensorRT-LLM's" are those of 1.2's `llm_args.py`.
"""

import logging
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Annotated, Any, Final, Literal

import msgspec
import torch
from msgspec import Meta

from orpheus_ws import tokens
from orpheus_ws.config import Positive
from orpheus_ws.engine.checkpoint import Checkpoint
from orpheus_ws.engine.checkpoint_limits import check_capacity, choose
from orpheus_ws.errors import StartupError
from orpheus_ws.manifest import Limits, Manifest
from orpheus_ws.planning import memory

GIB: Final = 2**30

NEEDED: Final = frozenset(
    {
        "model",
        "skip_tokenizer_init",
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "kv_cache_config",
        # Of the KV cache: without them it is of another size or type than was reckoned with, or
        # shares blocks between streams.
        "dtype",
        "max_tokens",
        "enable_block_reuse",
    }
)
"""Settings without which a version is no use; without others it is slower, or its defaults will do."""

_log = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The capacity must be measured, or given as `engine.uncalibrated` or `engine.capacity_override`:
    it is the largest batch, and the KV cache is sized for it. What the model's manifest says may be
    left out here, and may not be contradicted."""

    model: str | None = None
    """Directory of the checkpoint, with its `tokenizer.json` and `manifest.json`. It must be set."""
    voices: tuple[str, ...] = ()
    """Names that the checkpoint was trained on; the first is the default. Empty: the manifest's, or
    the published ones."""
    kv_cache: Literal["fp8", "bf16"] = "fp8"
    """What keys and values are kept in. `bf16` takes twice the memory and loses nothing."""
    max_prompt_tokens: Positive | None = None
    """Ids of a prompt at most. Unset: the manifest's, or 512; a segment of 25 s has about 100 in
    English."""
    max_tokens: Annotated[int, Meta(ge=tokens.CODES_PER_FRAME)] | None = None
    """Ids of a segment at most, whatever is asked for. Unset: the manifest's, or 2048."""
    max_num_tokens: Positive | None = None
    """Ids in one step of the batch at most, those of new prompts included. Unset: the manifest's, or
    8192, TensorRT-LLM's default."""
    graph_sizes: tuple[Positive, ...] = ()
    """Batch sizes with a CUDA graph, each of up to 200 MB. Empty: the manifest's, or steps of a third
    up to the capacity."""
    kv_fraction: Annotated[float, Meta(gt=0, le=1)] = memory.KV_FRACTION
    """Share of the memory that is free after loading which the KV cache may take; TensorRT-LLM's
    default. It takes no more than the capacity needs."""
    legal_bias: bool = False
    """Send a bias with every request that leaves only audio ids and end of speech: 0.6 MB each."""
    sampler: Literal["TRTLLMSampler", "TorchSampler", "auto"] = "TRTLLMSampler"
    """Which sampler to ask for, in versions that have the choice."""


def settle_limits(options: Options, capacity: int | None, manifest: Manifest | None) -> Limits:
    """What the engine is sized for: the manifest's, or the options' and their defaults.

    Raises `StartupError` where they differ, and where the capacity is beyond them.
    """
    stated = manifest.limits if manifest else None

    def settled(name: str, option: int | None, default: int) -> int:
        found: int | None = getattr(stated, name, None)
        return choose(name, option, found, default)

    if capacity is not None:
        check_capacity(manifest, capacity)
    limits = Limits(
        max_batch_size=stated.max_batch_size if stated else capacity or 1,
        max_prompt_tokens=settled(
            "max_prompt_tokens", options.max_prompt_tokens, memory.MAX_PROMPT_TOKENS
        ),
        max_tokens=settled("max_tokens", options.max_tokens, tokens.MAX_TOKENS),
        max_num_tokens=settled("max_num_tokens", options.max_num_tokens, memory.STEP_TOKENS),
        graph_sizes=choose(
            "graph_sizes", options.graph_sizes or None, stated.graph_sizes if stated else None, ()
        ),
    )
    if capacity is not None:
        check_steps(limits, capacity)
    return limits


def check_kv_cache(checkpoint: Checkpoint, options: Options) -> None:
    """`bf16` is what a checkpoint without a word on the cache gets; it cannot be forced."""
    if checkpoint.quantization.kv_cache and options.kv_cache == "bf16":
        raise StartupError(
            f"the checkpoint in {options.model!r} declares a quantised KV cache: quantise the model "
            "again with `--kv bf16`, or set engine.options.kv_cache to 'fp8'"
        )


def stream_tokens(limits: Limits) -> int:
    """Ids that one stream may hold in the KV cache, in whole blocks."""
    return memory.stream_tokens(limits.max_prompt_tokens, limits.max_tokens)


def kv_bytes_per_token(checkpoint: Checkpoint, options: Options) -> int:
    """Bytes that one id takes in the KV cache: one for each value in FP8, two in BF16."""
    return checkpoint.kv_values_per_token * (1 if options.kv_cache == "fp8" else 2)


def check_memory(
    checkpoint: Checkpoint, options: Options, limits: Limits, capacity: int, free: int
) -> None:
    """Raise `StartupError` if weights and the KV cache's part of the rest are more than `free` bytes.

    What else is needed (activations, graphs, the codec) is not known beforehand; whether the KV
    cache became as large as it must be is asked once it is there.
    """
    stream = stream_tokens(limits) * kv_bytes_per_token(checkpoint, options)
    left = max(0, int((free - checkpoint.weight_bytes) * options.kv_fraction))
    if capacity * stream <= left:
        return
    fit = left // stream
    change = f"lower engine.capacity below {fit}" if fit > 1 else "use a larger GPU"
    raise StartupError(
        f"too little GPU memory: {checkpoint.weight_bytes / GIB:.1f} GiB of weights and "
        f"{capacity * stream / GIB:.1f} GiB of KV cache for {capacity} streams do not fit into the "
        f"{free / GIB:.1f} GiB that are free, with engine.options.kv_fraction {options.kv_fraction:g} "
        f"of what weights leave: {change}"
    )


def free_gpu_bytes() -> int:
    """Free memory of the GPU that CUDA shows first. Raises `StartupError` if there is none."""
    if not torch.cuda.is_available():
        raise StartupError(
            "no GPU can be used: TensorRT-LLM needs an NVIDIA GPU and its driver; Docker gives one "
            "with --gpus, and orpheus-ws doctor says what is seen"
        )
    return torch.cuda.mem_get_info()[0]


def check_pool(limits: Limits, capacity: int, pool_tokens: int | None) -> None:
    """Raise `StartupError` unless the KV cache that there is holds every stream at its longest."""
    if pool_tokens is None:
        raise StartupError(
            "TensorRT-LLM does not say how large its KV cache is, so that the capacity cannot be "
            "promised: use a version whose iteration statistics have kvCacheStats, such as 1.2.1"
        )
    stream = stream_tokens(limits)
    if capacity * stream > pool_tokens:
        raise StartupError(
            f"the KV cache holds {pool_tokens} ids, and {capacity} streams of {stream} need "
            f"{capacity * stream}: lower engine.capacity to {pool_tokens // stream}, lower "
            "engine.options.max_tokens, or free memory of the GPU"
        )


def check_steps(limits: Limits, capacity: int) -> None:
    """Raise `StartupError` if a full batch and one prompt are more than a step may take."""
    needed = capacity + limits.max_prompt_tokens
    if limits.max_num_tokens < needed:
        raise StartupError(
            f"a step of {capacity} streams and one prompt has {needed} ids: raise "
            "engine.options.max_num_tokens to at least that"
        )


def graph_sizes(limits: Limits, capacity: int) -> list[int]:
    """Batch sizes to capture, ascending, the last one `capacity`."""
    if limits.graph_sizes:
        return sorted({size for size in limits.graph_sizes if size < capacity} | {capacity})
    return memory.graph_sizes(capacity)


def llm_arguments(
    options: Options, limits: Limits, capacity: int, checkpoint: Checkpoint, llm_args: ModuleType
) -> dict[str, Any]:
    """Return what to construct `tensorrt_llm.LLM` with.

    `llm_args` is the module `tensorrt_llm.llmapi.llm_args`; a setting that its classes do not know is
    left out and logged, for an unknown one is an error. Raises `StartupError` if it is one of
    `NEEDED`.
    """
    if not hasattr(llm_args, "KvCacheConfig"):
        raise _too_different(["KvCacheConfig"])
    graphs = {"batch_sizes": graph_sizes(limits, capacity), "enable_padding": True}
    wanted: dict[str, Any] = {
        "model": str(checkpoint.directory),
        "skip_tokenizer_init": True,
        "max_batch_size": capacity,
        "max_num_tokens": limits.max_num_tokens,
        "max_seq_len": limits.max_prompt_tokens + limits.max_tokens,
        "max_input_len": limits.max_prompt_tokens,
        "stream_interval": tokens.CODES_PER_FRAME,
        "enable_chunked_prefill": False,
        "enable_iter_perf_stats": True,
        "kv_cache_config": _configured(
            llm_args, ("KvCacheConfig",), _cache_settings(options, limits, capacity)
        ),
        # Later versions have one class for each kind of step.
        "cuda_graph_config": _configured(
            llm_args, ("DecodeCudaGraphConfig", "CudaGraphConfig"), graphs
        ),
    }
    known = llm_args.TorchLlmArgs.model_fields
    if "sampler_type" in known:
        wanted["sampler_type"] = options.sampler
    return _known({key: value for key, value in wanted.items() if value is not None}, known)


def _cache_settings(options: Options, limits: Limits, capacity: int) -> dict[str, Any]:
    """Reuse of blocks and a cache on the host stay off, as does chunked prefill: prompts are short, and
    each had errors that mixed streams up.
    """
    return {
        # `auto` is what the checkpoint declares, and the type of its weights if it declares nothing.
        "dtype": "fp8" if options.kv_cache == "fp8" else "auto",
        # The smaller of the two wins.
        "max_tokens": memory.pool_tokens(capacity, stream_tokens(limits)),
        "free_gpu_memory_fraction": options.kv_fraction,
        "tokens_per_block": memory.TOKENS_PER_BLOCK,
        "enable_block_reuse": False,
        "enable_partial_reuse": False,
        "copy_on_partial_reuse": False,
        "use_kv_cache_manager_v2": False,
    }


def _configured(llm_args: ModuleType, names: Iterable[str], values: dict[str, Any]) -> Any:
    """An instance of the first class that the version has, or None."""
    for name in names:
        kind = getattr(llm_args, name, None)
        if kind is not None:
            return kind(**_known(values, kind.model_fields))
    _log.warning("TensorRT-LLM has no such class", extra={"classes": list(names)})
    return None


def _known(values: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    unknown = values.keys() - fields.keys()
    if missed := sorted(unknown & NEEDED):
        raise _too_different(missed)
    if unknown:
        _log.warning("TensorRT-LLM has no such settings", extra={"settings": sorted(unknown)})
    return {key: value for key, value in values.items() if key in fields}


def _too_different(missed: list[str]) -> StartupError:
    return StartupError(
        f"this TensorRT-LLM has no {', '.join(missed)}, without which nothing can be promised: use a "
        "version that has, such as 1.2.1"
    )
