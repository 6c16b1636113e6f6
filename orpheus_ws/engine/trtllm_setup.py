"""What TensorRT-LLM is told, and what must hold before it is started.

Rule: nothing here starts anything or needs TensorRT-LLM. Figures come from the checkpoint, the
options and arithmetic; which settings a version has is asked of its own classes. Defaults and limits
named "TensorRT-LLM's" are those of 1.2's `llm_args.py`.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, Literal

import msgspec
import torch
from msgspec import Meta
from tokenizers import Tokenizer

from orpheus_ws import tokens
from orpheus_ws.config import Positive
from orpheus_ws.errors import StartupError
from orpheus_ws.planning import memory

GIB: Final = 2**30

_log = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine.capacity` must be set: it is the largest batch, and the KV cache is sized for it."""

    model: str | None = None
    """Directory of the checkpoint, with its `tokenizer.json`. It must be set."""
    voices: tuple[str, ...] = ()
    """Names that the checkpoint was trained on; the first is the default. Empty: the published ones."""
    kv_cache: Literal["fp8", "bf16"] = "fp8"
    """What keys and values are kept in. `bf16` takes twice the memory and loses nothing."""
    max_prompt_tokens: Positive = memory.MAX_PROMPT_TOKENS
    """Ids of a prompt at most. A segment of 25 s has about 100 in English."""
    max_tokens: Annotated[int, Meta(ge=tokens.CODES_PER_FRAME)] = tokens.MAX_TOKENS
    """Ids of a segment at most, whatever is asked for."""
    max_num_tokens: Positive = memory.STEP_TOKENS
    """Ids in one step of the batch at most, those of new prompts included; TensorRT-LLM's default."""
    graph_sizes: tuple[Positive, ...] = ()
    """Batch sizes with a CUDA graph, each of up to 200 MB. Empty: steps of a third up to the capacity."""
    kv_fraction: Annotated[float, Meta(gt=0, le=1)] = memory.KV_FRACTION
    """Share of the memory that is free after loading which the KV cache may take; TensorRT-LLM's
    default. It takes no more than the capacity needs."""
    legal_bias: bool = False
    """Send a bias with every request that leaves only audio ids and end of speech: 0.6 MB each."""
    sampler: Literal["TRTLLMSampler", "TorchSampler", "auto"] = "TRTLLMSampler"
    """Which sampler to ask for, in versions that have the choice."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What the adapter has to know of a checkpoint."""

    directory: Path
    vocabulary: int
    weight_bytes: int
    kv_values_per_token: int
    """Keys and values of all layers."""


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `config.json` that matter here."""

    architectures: tuple[str, ...]
    vocab_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    hidden_size: int
    head_dim: int | None = None
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None


def read_checkpoint(options: Options) -> Checkpoint:
    """Read what `options.model` holds. Blocking. Raises `StartupError` with what to do."""
    if options.model is None:
        raise StartupError("set engine.options.model to the directory of an Orpheus checkpoint")
    directory = Path(options.model)
    config = _read_config(directory)
    if "LlamaForCausalLM" not in config.architectures:
        raise StartupError(
            f"the checkpoint in {options.model!r} is no LlamaForCausalLM: set engine.options.model "
            "to an Orpheus checkpoint"
        )
    if config.vocab_size < tokens.AUDIO_END:
        raise StartupError(
            f"the checkpoint in {options.model!r} has {config.vocab_size} ids, and Orpheus's audio "
            f"ids end at {tokens.AUDIO_END}: set engine.options.model to an Orpheus checkpoint"
        )
    _check_rope(config, options.model)
    _check_kv_cache(directory, options)
    # `Path.glob` of a directory that may not be listed is empty.
    weight_bytes = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    if not weight_bytes:
        raise StartupError(f"no *.safetensors in {options.model!r}: copy the whole checkpoint")
    head = config.head_dim or config.hidden_size // config.num_attention_heads
    return Checkpoint(
        directory=directory,
        vocabulary=config.vocab_size,
        weight_bytes=weight_bytes,
        kv_values_per_token=2 * config.num_hidden_layers * config.num_key_value_heads * head,
    )


def _read_config(directory: Path) -> _Config:
    try:
        return msgspec.json.decode((directory / "config.json").read_bytes(), type=_Config)
    except OSError as error:
        raise StartupError(
            f"no config.json can be read in {str(directory)!r}: set engine.options.model to the "
            "directory of an Orpheus checkpoint"
        ) from error
    except msgspec.MsgspecError as error:
        raise StartupError(
            f"{str(directory / 'config.json')!r} does not describe a Llama checkpoint: set "
            "engine.options.model to an Orpheus checkpoint"
        ) from error


def _check_rope(config: _Config, model: str) -> None:
    """transformers 5 writes `rope_parameters` alone, without which others take the defaults."""
    scaled = (config.rope_parameters or {}).get("rope_type", "default") != "default"
    if config.rope_theta is None or (scaled and not config.rope_scaling):
        raise StartupError(
            f"config.json in {model!r} has no rope_theta or has lost rope_scaling, so every position "
            "would be wrong: export the checkpoint with transformers 4.57"
        )


def _check_kv_cache(directory: Path, options: Options) -> None:
    """`bf16` is what a checkpoint without a word on the cache gets; it cannot be forced."""
    try:
        found = json.loads((directory / "hf_quant_config.json").read_bytes())
    except (OSError, ValueError):
        return
    section = found.get("quantization") if isinstance(found, dict) else None
    quantised = isinstance(section, dict) and section.get("kv_cache_quant_algo")
    if quantised and options.kv_cache == "bf16":
        raise StartupError(
            f"the checkpoint in {options.model!r} declares a quantised KV cache: export it with "
            "kv_cache_qformat none, or set engine.options.kv_cache to 'fp8'"
        )


def load_encoder(directory: Path) -> Callable[[str], list[int]]:
    """Return a function from text to ids that can give no control id. Blocking.

    A control token that a user writes is text like any other: the tokenizer is loaded without its
    added tokens, which it would otherwise find in the text. Raises `StartupError`.
    """
    path = directory / "tokenizer.json"
    try:
        described = json.loads(path.read_bytes())
        described |= {"added_tokens": [], "post_processor": None}
        described |= {"truncation": None, "padding": None}
        tokenizer = Tokenizer.from_str(json.dumps(described))
    except OSError as error:
        raise StartupError(
            f"no tokenizer.json can be read in {str(directory)!r}: copy it from the checkpoint that "
            "this one was made of"
        ) from error
    except Exception as error:
        # What the library raises for a bad file is a bare Exception.
        raise StartupError(
            f"{str(path)!r} is no tokenizer: copy it from the checkpoint that this one was made of"
        ) from error

    def encode(text: str) -> list[int]:
        # Text from JSON may hold half a surrogate pair.
        clean = text.encode(errors="replace").decode()
        ids: list[int] = tokenizer.encode(clean, add_special_tokens=False).ids
        return ids

    return encode


def stream_tokens(options: Options) -> int:
    """Ids that one stream may hold in the KV cache, in whole blocks."""
    return memory.stream_tokens(options.max_prompt_tokens, options.max_tokens)


def kv_bytes_per_token(checkpoint: Checkpoint, options: Options) -> int:
    """Bytes that one id takes in the KV cache: one for each value in FP8, two in BF16."""
    return checkpoint.kv_values_per_token * (1 if options.kv_cache == "fp8" else 2)


def check_memory(checkpoint: Checkpoint, options: Options, capacity: int, free: int) -> None:
    """Raise `StartupError` if weights and KV cache alone are more than `free` bytes.

    What else is needed (activations, graphs, the codec) is not known beforehand; whether the KV
    cache became as large as it must be is asked once it is there.
    """
    stream = stream_tokens(options) * kv_bytes_per_token(checkpoint, options)
    if checkpoint.weight_bytes + capacity * stream <= free:
        return
    fit = max(0, free - checkpoint.weight_bytes) // stream
    change = f"lower engine.capacity below {fit}" if fit > 1 else "use a larger GPU"
    raise StartupError(
        f"too little GPU memory: {checkpoint.weight_bytes / GIB:.1f} GiB of weights and "
        f"{capacity * stream / GIB:.1f} GiB of KV cache for {capacity} streams do not fit into the "
        f"{free / GIB:.1f} GiB that are free: {change}"
    )


def free_gpu_bytes() -> int:
    """Free memory of the GPU that CUDA shows first. Raises `StartupError` if there is none."""
    if not torch.cuda.is_available():
        raise StartupError(
            "no GPU can be used: TensorRT-LLM needs an NVIDIA GPU and its driver; Docker gives one "
            "with --gpus, and orpheus-ws doctor says what is seen"
        )
    return torch.cuda.mem_get_info()[0]


def check_pool(options: Options, capacity: int, pool_tokens: int | None) -> None:
    """Raise `StartupError` unless the KV cache that there is holds every stream at its longest."""
    if pool_tokens is None:
        raise StartupError(
            "TensorRT-LLM does not say how large its KV cache is, so that the capacity cannot be "
            "promised: use a version whose iteration statistics have kvCacheStats, such as 1.2.1"
        )
    stream = stream_tokens(options)
    if capacity * stream > pool_tokens:
        raise StartupError(
            f"the KV cache holds {pool_tokens} ids, and {capacity} streams of {stream} need "
            f"{capacity * stream}: lower engine.capacity to {pool_tokens // stream}, lower "
            "engine.options.max_tokens, or free memory of the GPU"
        )


def check_steps(options: Options, capacity: int) -> None:
    """Raise `StartupError` if a full batch and one prompt are more than a step may take."""
    needed = capacity + options.max_prompt_tokens
    if options.max_num_tokens < needed:
        raise StartupError(
            f"a step of {capacity} streams and one prompt has {needed} ids: raise "
            "engine.options.max_num_tokens to at least that"
        )


def graph_sizes(options: Options, capacity: int) -> list[int]:
    """Batch sizes to capture, ascending, the last one `capacity`."""
    if options.graph_sizes:
        return sorted({size for size in options.graph_sizes if size < capacity} | {capacity})
    return memory.graph_sizes(capacity)


def llm_arguments(
    options: Options, capacity: int, checkpoint: Checkpoint, llm_args: ModuleType
) -> dict[str, Any]:
    """Return what to construct `tensorrt_llm.LLM` with.

    `llm_args` is the module `tensorrt_llm.llmapi.llm_args`; a setting that its classes do not know is
    left out and logged, for an unknown one is an error. Reuse of blocks, chunked prefill and a
    cache on the host stay off: prompts are short, and each had errors that mixed streams up.
    """
    kv_cache: dict[str, Any] = {
        # `auto` is what the checkpoint declares, and the type of its weights if it declares nothing.
        "dtype": "fp8" if options.kv_cache == "fp8" else "auto",
        # The smaller of the two wins.
        "max_tokens": memory.pool_tokens(capacity, stream_tokens(options)),
        "free_gpu_memory_fraction": options.kv_fraction,
        "tokens_per_block": memory.TOKENS_PER_BLOCK,
        "enable_block_reuse": False,
        "enable_partial_reuse": False,
        "copy_on_partial_reuse": False,
        "use_kv_cache_manager_v2": False,
    }
    graphs = {"batch_sizes": graph_sizes(options, capacity), "enable_padding": True}
    wanted: dict[str, Any] = {
        "model": str(checkpoint.directory),
        "skip_tokenizer_init": True,
        "max_batch_size": capacity,
        "max_num_tokens": options.max_num_tokens,
        "max_seq_len": options.max_prompt_tokens + options.max_tokens,
        "max_input_len": options.max_prompt_tokens,
        "stream_interval": tokens.CODES_PER_FRAME,
        "enable_chunked_prefill": False,
        "enable_iter_perf_stats": True,
        "kv_cache_config": _configured(llm_args, ("KvCacheConfig",), kv_cache),
        # Later versions have one class for each kind of step.
        "cuda_graph_config": _configured(
            llm_args, ("DecodeCudaGraphConfig", "CudaGraphConfig"), graphs
        ),
    }
    known = llm_args.TorchLlmArgs.model_fields
    if "sampler_type" in known:
        wanted["sampler_type"] = options.sampler
    return _known({key: value for key, value in wanted.items() if value is not None}, known)


def _configured(llm_args: ModuleType, names: Iterable[str], values: dict[str, Any]) -> Any:
    """An instance of the first class that the version has, or None."""
    for name in names:
        kind = getattr(llm_args, name, None)
        if kind is not None:
            return kind(**_known(values, kind.model_fields))
    _log.warning("TensorRT-LLM has no such class", extra={"classes": list(names)})
    return None


def _known(values: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(values.keys() - fields.keys())
    if unknown:
        _log.warning("TensorRT-LLM has no such settings", extra={"settings": unknown})
    return {key: value for key, value in values.items() if key in fields}
