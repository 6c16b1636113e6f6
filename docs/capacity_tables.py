"""The tables of `capacity.md`, as `orpheus_ws.planning` makes them.

Rule: the page is written by hand but for its tables, each between `<!-- table NAME -->` and
`<!-- end -->`. `make docs` fills them in.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from engine_build.plan import make_plan
from orpheus_ws.planning.cost import Usage
from orpheus_ws.planning.memory import Request
from orpheus_ws.planning.profiles import GPUS, Precision
from orpheus_ws.planning.steps import HOST, Segment, Traffic, Variant, floor_times, stream_parts

PAGE: Final = Path(__file__).parent / "capacity.md"
PRICE: Final = 1.0

_GIB: Final = 2**30
_MARKED: Final = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def capacity_page() -> str:
    """`docs/capacity.md` with its tables as they are now."""
    page = PAGE.read_text(encoding="utf-8")
    return _MARKED.sub(lambda found: found[1] + "\n" + TABLES[found[2]]() + "\n" + found[3], page)


def _gpus() -> str:
    heads = ("`--gpu`", "", "memory", "bandwidth", "FP8", "float32", "source")
    rows = (
        (
            f"`{name}`",
            gpu.title,
            f"{gpu.memory_bytes / _GIB:.1f} GiB",
            f"{gpu.bandwidth / 1e12:.2f} TB/s",
            f"{gpu.fp8_flops / 1e12:.0f} TFLOPS",
            f"{gpu.fp32_flops / 1e12:.1f} TFLOPS",
            gpu.source,
        )
        for name, gpu in GPUS.items()
    )
    return _table(heads, rows)


def _floor() -> str:
    heads = (
        "GPU",
        "fixed: weights",
        "a stream: products",
        "sampling",
        "codec",
        "1000 ids of KV cache, FP8",
        "BF16",
        "a prompt",
    )

    def rows() -> Iterator[tuple[str, ...]]:
        for gpu in GPUS.values():
            fp8, bf16 = floor_times(gpu), floor_times(gpu, kv="bf16")
            parts = stream_parts(gpu, "fp8")
            yield (
                gpu.title,
                f"{fp8.fixed * 1e3:.2f} ms",
                *(f"{parts[name] * 1e6:.1f} µs" for name in ("products", "sampling", "codec")),
                f"{fp8.kv_token * 1e9:.1f} µs",
                f"{bf16.kv_token * 1e9:.1f} µs",
                f"{fp8.prefill * 1e3:.2f} ms",
            )

    return _table(heads, rows())


def _host() -> str:
    heads = ("variant", "adds to a step", "adds for a stream", "streams on an H100")
    rows = (
        (
            f"`{variant}`",
            f"{times.fixed * 1e3:.1f} ms",
            f"{times.stream * 1e6:.1f} µs",
            str(make_plan("h100", Request(), Traffic(), variant).by_real_time),
        )
        for variant, times in HOST.items()
    )
    return _table(heads, rows)


def _memory() -> str:
    heads = ("GPU", "streams", "weights", "KV cache", "codec", "graphs", "the rest", "headroom")

    def rows() -> Iterator[tuple[str, ...]]:
        for name in GPUS:
            plan = make_plan(name, Request(), Traffic(), "floor")
            memory = plan.memory
            taken = (memory.weights, memory.kv, memory.codec, memory.graphs, memory.runtime)
            amounts = (f"{count / _GIB:.1f}" for count in (*taken, plan.headroom))
            yield (plan.gpu, str(plan.batch), *amounts)

    return _table(heads, rows())


def _batches() -> str:
    heads = ("GPU", "KV cache", "by memory", *(f"by real time, `{name}`" for name in HOST))

    def rows() -> Iterator[tuple[str, ...]]:
        kinds: tuple[Precision, ...] = ("fp8", "bf16")
        for name, gpu in GPUS.items():
            for kv in kinds:
                plans = [make_plan(name, Request(kv=kv), Traffic(), variant) for variant in HOST]
                times = (str(plan.by_real_time) for plan in plans)
                yield (gpu.title, kv.upper(), str(plans[0].by_memory), *times)

    return _table(heads, rows())


def _first_byte() -> str:
    heads = (
        "GPU, `tuned`",
        "batch",
        "first byte, with 0.55 s of silence",
        "without",
        "objective",
        "batch for it, with 0.55 s of silence",
        "without",
    )
    variant: Variant = "tuned"
    silences = (Segment().silent_seconds, 0.0)
    traffics = [Traffic(segments=(Segment(silent_seconds=silence),) * 3) for silence in silences]

    def rows() -> Iterator[tuple[str, ...]]:
        for name in GPUS:
            plans = [make_plan(name, Request(), traffic, variant) for traffic in traffics]
            yield (
                plans[0].gpu,
                " / ".join({str(plan.batch): None for plan in plans}),
                *(f"{plan.first_byte_seconds * 1e3:.0f} ms" for plan in plans),
                f"{plans[0].first_byte_objective * 1e3:.0f} ms",
                *(str(plan.by_first_byte) for plan in plans),
            )

    return _table(heads, rows())


def _cost() -> str:
    heads = ("capacity", "an hour of conversation", "an hour of speech")

    usage = Usage(price=PRICE)

    def rows() -> Iterator[tuple[str, ...]]:
        for capacity in (24, 64, 128, 216, 469):
            spent = usage.cost(capacity)
            yield str(capacity), f"{spent.conversation_hour:.4f}", f"{spent.speech_hour:.4f}"

    return _table(heads, rows())


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [heads, ["---" for _ in heads], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


TABLES: Final[dict[str, Callable[[], str]]] = {
    "gpus": _gpus,
    "floor": _floor,
    "host": _host,
    "memory": _memory,
    "batches": _batches,
    "first_byte": _first_byte,
    "cost": _cost,
}
