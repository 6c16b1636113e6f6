"""What a GPU can be expected to serve: a table, or JSON. Arithmetic, not a measurement.

Rule: the figures are `orpheus_ws.planning`'s; here they are only put side by side.
"""

import textwrap
from typing import Final

import msgspec

from orpheus_ws.planning.cost import Cost, Usage
from orpheus_ws.planning.memory import (
    MemoryPlan,
    Request,
    largest_batch_in_memory,
    memory_plan,
)
from orpheus_ws.planning.profiles import GPUS, USABLE_BANDWIDTH, GpuName
from orpheus_ws.planning.steps import (
    StepTimes,
    Traffic,
    Variant,
    first_byte_seconds,
    largest_real_time_batch,
    largest_responsive_batch,
    mean_step,
    real_time_factor,
    step_times,
)

LABEL: Final = "arithmetic, not a measurement"
_GIB: Final = 2**30


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan for one GPU. Bytes and seconds."""

    label: str = LABEL
    gpu: str
    source: str
    variant: Variant
    request: Request
    traffic: Traffic
    step_times: StepTimes
    by_memory: int
    """The largest batch that fits."""
    by_real_time: int
    """The largest batch that stays in real time."""
    batch: int
    """The smaller of the two."""
    binds: str
    memory: MemoryPlan
    """With that batch."""
    headroom: int
    step_seconds: float
    real_time_factor: float
    first_byte_seconds: float
    first_byte_objective: float
    by_first_byte: int
    """The largest batch that answers within the objective."""
    usage: Usage | None = None
    cost: Cost | None = None


def make_plan(
    gpu_name: GpuName,
    request: Request,
    traffic: Traffic,
    variant: Variant,
    usage: Usage | None = None,
) -> Plan:
    """Plan for the GPU of that name in `GPUS`. If not one stream can be served there is no cost."""
    gpu = GPUS[gpu_name]
    times = step_times(gpu, variant=variant, weights=request.weights, kv=request.kv)
    by_memory = largest_batch_in_memory(gpu, request)
    by_real_time = largest_real_time_batch(times, traffic)
    batch = min(by_memory, by_real_time)
    memory = memory_plan(gpu, batch, request)
    return Plan(
        gpu=gpu.title,
        source=gpu.source,
        variant=variant,
        request=request,
        traffic=traffic,
        step_times=times,
        by_memory=by_memory,
        by_real_time=by_real_time,
        batch=batch,
        binds="memory" if by_memory <= by_real_time else "real time",
        memory=memory,
        headroom=memory.headroom,
        step_seconds=mean_step(times, batch, traffic),
        real_time_factor=real_time_factor(times, batch, traffic),
        first_byte_seconds=first_byte_seconds(times, batch, traffic),
        first_byte_objective=gpu.first_byte_seconds,
        by_first_byte=largest_responsive_batch(times, traffic, gpu.first_byte_seconds),
        usage=usage,
        cost=usage.cost(batch) if usage is not None and batch else None,
    )


def rows(plan: Plan) -> list[tuple[str, str]]:
    """The table: what, and how much."""
    memory, times = plan.memory, plan.step_times
    longest = plan.request.prompt_tokens + plan.request.max_tokens
    found = [
        ("GPU memory", _gib(memory.gpu)),
        (f"weights, {plan.request.weights.upper()}", _gib(memory.weights)),
        (f"KV cache, {plan.request.kv.upper()}, an id", f"{memory.kv_per_token / 1024:g} KiB"),
        (f"KV cache, a stream of {longest} ids", f"{memory.kv_per_stream / 2**20:.0f} MiB"),
        (f"KV cache, {plan.batch} streams", _gib(memory.kv)),
        ("codec", _gib(memory.codec)),
        ("CUDA graphs of the engine", _gib(memory.graphs)),
        ("contexts, activations, sampler", _gib(memory.runtime)),
        ("headroom", _gib(plan.headroom)),
        ("step, fixed", f"{times.fixed * 1e3:.2f} ms"),
        ("step, a stream", f"{times.stream * 1e6:.1f} µs"),
        ("step, 1000 ids of KV cache", f"{times.kv_token * 1e9:.1f} µs"),
        ("step, a prompt", f"{times.prefill * 1e3:.2f} ms"),
        (f"step of {plan.batch} streams", f"{plan.step_seconds * 1e3:.2f} ms"),
        ("largest batch by memory", str(plan.by_memory)),
        ("largest batch by real time", str(plan.by_real_time)),
        ("what binds", plan.binds),
        ("batch", str(plan.batch)),
        ("times real time at this batch", f"{plan.real_time_factor:.2f}"),
        ("first byte at this batch", f"{plan.first_byte_seconds * 1e3:.0f} ms"),
        (f"batch for {plan.first_byte_objective * 1e3:.0f} ms", str(plan.by_first_byte)),
    ]
    if plan.cost is not None:
        found += [
            ("an hour of speech", f"{plan.cost.speech_hour:.4f}"),
            ("an hour of conversation", f"{plan.cost.conversation_hour:.4f}"),
        ]
    return found


def table(plan: Plan) -> str:
    """The plan for a terminal, with what it assumes."""
    traffic = plan.traffic
    width = max(len(name) for name, _ in rows(plan))
    first = traffic.segments[0]
    assumed = (
        f"All streams speak without a pause: turns of {len(traffic.segments)} segments of "
        f"{first.frames:g} frames, which begin with {first.silent_seconds:g} s of silence; "
        f"{traffic.heard_seconds:.1f} s of a turn are heard. Frames come {traffic.pace:g} times as "
        f"fast as they are played; {USABLE_BANDWIDTH:.0%} of the data sheet's bandwidth is reached. "
        "docs/capacity.md says where each figure comes from. What a machine really does, only a run "
        "on it can tell."
    )
    return "\n".join(
        [
            f"{plan.gpu}, {plan.variant}: {LABEL}",
            "",
            *(f"{name:<{width}}  {value:>10}" for name, value in rows(plan)),
            "",
            textwrap.fill(assumed, 90, break_on_hyphens=False),
        ]
    )


def as_json(plan: Plan) -> bytes:
    """The plan for programs, indented."""
    return msgspec.json.format(msgspec.json.encode(plan))


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"
