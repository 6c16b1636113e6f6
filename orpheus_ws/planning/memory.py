"""Which streams a GPU's memory holds: weights, KV cache, codec, CUDA graphs, the rest.

Rule: every stream is counted at its longest, as the engine `trtllm` sizes its KV cache. What only a
GPU can tell is a constant here that says so, and errs on the large side.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from orpheus_ws import tokens
from orpheus_ws.planning.profiles import (
    CODEC_PARAMETERS,
    CODEC_STATE,
    CODEC_WIDEST,
    ORPHEUS,
    Gpu,
    Precision,
)

TOKENS_PER_BLOCK: Final = 32
"""Of the KV cache; TensorRT-LLM's default."""
KV_FRACTION: Final = 0.9
"""Of what is free after loading, what the KV cache may take; TensorRT-LLM's default."""
GRAPH_BYTES: Final = 200 * 10**6
"""A CUDA graph of the engine takes up to this, by TensorRT-LLM's documentation."""
MAX_PROMPT_TOKENS: Final = 512
"""The engine's default."""

# Assumptions, not figures of anybody's: what a GPU would have to tell.
CONTEXT_BYTES: Final = 2**29
"""A CUDA context with its libraries. There are two processes, the engine's and the codec's."""
STEP_TOKENS: Final = 8192
"""Ids in the largest step of the engine, whose activations are allocated; TensorRT-LLM's default."""
SAMPLER_COPIES: Final = 4
"""Of every stream's logits in float32: as they come, penalised, as probabilities, sorted."""
CODEC_FRAMES: Final = 256
"""Frames in the codec's largest pass (`codec/graphs.py`)."""
CODEC_LIVE: Final = 8
"""Results of the codec's widest layer that are alive at once."""
HEADROOM_BYTES: Final = 2**30
"""What must stay free: allocators that meet a full MIG slice have been seen to crash."""

_SPARE_STREAMS: Final = 3
"""Rows of the codec's table that are nobody's: the probe's, the blank one, the waste."""
_FLOAT32: Final = 4


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What one stream may hold, and in which number formats."""

    prompt_tokens: int = MAX_PROMPT_TOKENS
    """Ids of a prompt at most."""
    max_tokens: int = tokens.MAX_TOKENS
    """Ids of a segment at most."""
    weights: Precision = "fp8"
    kv: Precision = "fp8"


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where the memory goes with so many streams. Bytes."""

    streams: int
    gpu: int
    weights: int
    kv_per_token: int
    kv_per_stream: int
    kv: int
    codec: int
    graphs: int
    runtime: int
    """CUDA contexts, activations, the sampler."""

    @property
    def headroom(self) -> int:
        """What is left; negative if it does not fit."""
        return self.gpu - self.weights - self.kv - self.codec - self.graphs - self.runtime

    @property
    def fits(self) -> bool:
        """Whether the KV cache gets what it needs, and enough stays free."""
        free = self.gpu - self.weights - self.codec - self.runtime
        return self.kv <= KV_FRACTION * free and self.headroom >= HEADROOM_BYTES


def memory_plan(gpu: Gpu, streams: int, request: Request) -> MemoryPlan:
    """Count what `streams` streams take on `gpu`, whether they fit or not."""
    kv_per_token = ORPHEUS.kv_bytes(request.kv)
    stream = stream_tokens(request.prompt_tokens, request.max_tokens)
    return MemoryPlan(
        streams=streams,
        gpu=gpu.memory_bytes,
        weights=ORPHEUS.weight_bytes(request.weights),
        kv_per_token=kv_per_token,
        kv_per_stream=stream * kv_per_token,
        kv=pool_tokens(streams, stream) * kv_per_token,
        codec=_codec_bytes(streams),
        graphs=len(graph_sizes(streams)) * GRAPH_BYTES,
        runtime=_runtime_bytes(streams),
    )


def largest_batch_in_memory(gpu: Gpu, request: Request) -> int:
    """The most streams that fit; 0 if not even one does."""
    return largest(lambda streams: memory_plan(gpu, streams, request).fits)


def stream_tokens(prompt_tokens: int, max_tokens: int) -> int:
    """Ids that one stream may hold in the KV cache, in whole blocks."""
    return math.ceil((prompt_tokens + max_tokens) / TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK


def pool_tokens(streams: int, stream: int) -> int:
    """Ids of a KV cache for streams of `stream` ids.

    A block more for each and one for the padding of a graph, which are nobody's ids.
    """
    return streams * stream + (streams + 1) * TOKENS_PER_BLOCK


def graph_sizes(capacity: int) -> list[int]:
    """Batch sizes to capture, ascending, the last one `capacity`: 1, 2, 4, 6, 8, 12, 16, 24 …

    A batch between two of them is padded to the larger, so at most a third of a step is wasted
    from 4 on, and 256 streams take 15 graphs.
    """
    powers = [2**power for power in range(capacity.bit_length())]
    between = [3 * power for power in powers[1:]]
    return sorted({size for size in (*powers, *between) if size < capacity} | {capacity})


def largest(fits: Callable[[int], bool], limit: int = 2**16) -> int:
    """The largest number up to `limit` that fits, if all below it do; 0 if 1 does not."""
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _codec_bytes(streams: int) -> int:
    frames = min(CODEC_FRAMES, 8 * streams)
    numbers = (
        CODEC_PARAMETERS
        + (streams + _SPARE_STREAMS) * CODEC_STATE
        + frames * CODEC_WIDEST * CODEC_LIVE
    )
    return numbers * _FLOAT32


def _runtime_bytes(streams: int) -> int:
    activations = STEP_TOKENS * (3 * ORPHEUS.intermediate + 4 * ORPHEUS.hidden) * 2
    sampler = streams * ORPHEUS.vocabulary * _FLOAT32 * SAMPLER_COPIES
    return 2 * CONTEXT_BYTES + activations + sampler
