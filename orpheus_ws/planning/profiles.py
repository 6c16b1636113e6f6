"""GPUs and the model as figures, each with its source.

Rule: data sheets and file formats only; no result of a run but the share of its bandwidth that a GPU
was seen to reach.
"""

from typing import Final, Literal

import msgspec

Precision = Literal["fp8", "bf16"]

GpuName = Literal["h100", "h100-mig-3g.40gb", "h200", "l40s"]

BYTES: Final[dict[Precision, int]] = {"fp8": 1, "bf16": 2}
"""What one number takes."""

USABLE_BANDWIDTH: Final = 0.87
"""Share of the data sheet's bandwidth that copies within an H100 reach: 2903 of 3350 GB/s (Voltage
Park and Georgia Tech, benchmark of 32 H100 SXM). Assumed of the other GPUs as well."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, or a slice of one."""

    title: str
    memory_bytes: int
    """What CUDA reports as total."""
    bandwidth: float
    """Bytes a second, by the data sheet."""
    fp8_flops: float
    """Operations a second of dense products in FP8, by the data sheet; half of it in BF16."""
    fp32_flops: float
    """Operations a second in float32 without tensor cores, by the data sheet: the codec's."""
    source: str
    first_byte_seconds: float = 0.150
    """Within which a turn should have its first byte, in 99 of 100 cases: this project's objective."""

    @property
    def usable_bandwidth(self) -> float:
        """Bytes a second that can be reached."""
        return self.bandwidth * USABLE_BANDWIDTH


_MIB: Final = 2**20
_MIG_SMS: Final = 60 / 132
"""Of an H100's multiprocessors, a slice 3g has 60."""

GPUS: Final[dict[GpuName, Gpu]] = {
    "h100": Gpu(
        title="H100 SXM 80 GB",
        memory_bytes=81_559 * _MIB,
        bandwidth=3.35e12,
        fp8_flops=1979e12,
        fp32_flops=67e12,
        source="NVIDIA's H100 data sheet; memory as nvidia-smi reports it",
    ),
    "h100-mig-3g.40gb": Gpu(
        title="H100 MIG 3g.40gb",
        memory_bytes=40_448 * _MIB,
        bandwidth=3.35e12 * 4 / 8,
        fp8_flops=1979e12 * _MIG_SMS,
        fp32_flops=67e12 * _MIG_SMS,
        source="NVIDIA's MIG user guide: 4 of 8 memory slices, 60 of 132 SMs, 39.5 GiB",
        first_byte_seconds=0.200,
    ),
    "h200": Gpu(
        title="H200 SXM 141 GB",
        memory_bytes=143_771 * _MIB,
        bandwidth=4.8e12,
        fp8_flops=1979e12,
        fp32_flops=67e12,
        source="NVIDIA's H200 data sheet; memory as nvidia-smi reports it",
    ),
    "l40s": Gpu(
        title="L40S 48 GB",
        memory_bytes=46_068 * _MIB,
        bandwidth=0.864e12,
        fp8_flops=733e12,
        fp32_flops=91.6e12,
        source="NVIDIA's L40S data sheet; memory as nvidia-smi reports it",
    ),
}
"""By the name that `plan --gpu` and `engine.options.gpu` take."""


def find_gpu(name: str) -> GpuName | None:
    """Which of them NVIDIA calls so, such as `NVIDIA H100 80GB HBM3 MIG 3g.40gb`; None: none of them."""
    words = set(name.lower().split())
    return next(
        (
            known
            for known in GPUS
            # A slice of a GPU is not the GPU.
            if set(known.split("-")) <= words and ("mig" in words) == ("mig" in known)
        ),
        None,
    )


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A Llama's shape, as in its `config.json`. The defaults are Orpheus-3B's."""

    layers: int = 28
    hidden: int = 3072
    intermediate: int = 8192
    kv_heads: int = 8
    head: int = 128
    vocabulary: int = 156_940

    @property
    def linear_parameters(self) -> int:
        """Weights of the layers' products: q and o, k and v, and the three of the MLP."""
        width = 2 * self.hidden + 2 * self.kv_heads * self.head + 3 * self.intermediate
        return self.layers * self.hidden * width

    @property
    def head_parameters(self) -> int:
        """Weights of the output, which are the embedding's as well."""
        return self.vocabulary * self.hidden

    def weight_bytes(self, precision: Precision) -> int:
        """What is read in every step. Embedding and output stay in BF16."""
        head = self.head_parameters * BYTES["bf16"]
        return self.linear_parameters * BYTES[precision] + head

    def kv_bytes(self, precision: Precision) -> int:
        """Keys and values of one id in all layers."""
        return 2 * self.layers * self.kv_heads * self.head * BYTES[precision]


ORPHEUS: Final = Model()

CODEC_PARAMETERS: Final = 19_800_000
"""SNAC 24 kHz."""
CODEC_STATE: Final = 119_232
"""Numbers that the codec keeps of a stream (docs/codec.md)."""
CODEC_WIDEST: Final = 131_072
"""Numbers that the widest layer makes of one frame: 2048 positions of 64 channels."""
CODEC_FLOPS: Final = 9.7e9
"""Operations for a second of audio."""
