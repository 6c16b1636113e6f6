"""How long a step of the engine takes, and how many streams stay in real time.

Rule: a step gives every stream that speaks one id. It takes a fixed time, a time for each stream, a
time for each id in the KV cache, and a time for each prompt that is read in it:

    step = fixed + streams × stream + KV ids × kv_token + new prompts × prefill

All times are seconds. `floor` is what the GPU cannot do without; `tuned` and `stock` add what the
host takes around it, fitted to one public figure each. None of them was measured.
"""

import math
from typing import Final, Literal

import msgspec

from orpheus_ws.planning.memory import largest
from orpheus_ws.planning.profiles import BYTES, CODEC_FLOPS, ORPHEUS, Gpu, Model, Precision
from orpheus_ws.tokens import CODES_PER_FRAME, FRAME_SECONDS

Variant = Literal["floor", "tuned", "stock"]

SEGMENT_STEPS: Final = 2
"""Steps of a segment that bring no audio: the one under way when it is submitted, and the one that
brings end of speech."""
SAMPLING_PASSES: Final = 8
"""Times that the logits of a stream go through memory while they are made, penalised, sorted and
sampled. An assumption."""
SERVER_SECONDS: Final = 0.005
"""From the engine's step to the socket: the 99th percentile was 4.1 ms (docs/measurements.md)."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes. Seconds."""

    fixed: float
    stream: float = 0.0
    kv_token: float = 0.0
    prefill: float = 0.0
    """For each prompt in the step."""

    def step(self, streams: float, kv_tokens: float, prefills: float = 0.0) -> float:
        """One step of `streams` streams that hold `kv_tokens` ids altogether."""
        return (
            self.fixed + self.stream * streams + self.kv_token * kv_tokens + self.prefill * prefills
        )


HOST: Final[dict[Variant, StepTimes]] = {
    "floor": StepTimes(fixed=0.0),
    "tuned": StepTimes(fixed=1.0e-3, stream=23.2e-6),
    "stock": StepTimes(fixed=2.0e-3, stream=262e-6),
}
"""What the host adds to a step: scheduling, launching, sampling and reporting that the GPU waits for.
The fixed part is an assumption; the stream's is what is then left if an H100 serves, of the default
traffic, 216 streams (`tuned`) and 24 (`stock`), as SAIL published after and before their work on the
system around the model (silares.com/targets/target-1-baseten)."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What every stream says without a pause: segments like this, one after the other."""

    prompt_tokens: float = 30.0
    """Ids of a segment's prompt: a sentence of 5 s has about 20, its frame about 10."""
    frames: float = 64.0
    """Frames that a segment generates, silence included: 5.5 s."""
    trimmed_seconds: float = 0.5
    """Of these, silence that nobody hears. The model begins with 0.4 to 0.7 s, of which 0.05 s stay."""
    first_frames: int = 2
    """Frames that the first chunk waits for, as `codec.options.early_frames`."""
    speed: float = 1.10
    """How much faster than real time a stream must be. What begins with two frames has to catch up at
    1.10 (docs/codec.md); a codec that looks nowhere ahead needs 1."""

    @property
    def heard_seconds(self) -> float:
        """What is heard of a segment."""
        return self.frames * FRAME_SECONDS - self.trimmed_seconds

    @property
    def steps(self) -> float:
        """Steps from submitting a segment until the next can be."""
        return self.frames * CODES_PER_FRAME + SEGMENT_STEPS

    @property
    def kv_tokens(self) -> float:
        """Ids that a stream holds in the KV cache, as a mean over its segment."""
        return self.prompt_tokens + self.frames * CODES_PER_FRAME / 2

    @property
    def first_byte_steps(self) -> float:
        """Steps from submitting a segment to its first audio, after the one under way."""
        return 1 + (self.trimmed_seconds / FRAME_SECONDS + self.first_frames) * CODES_PER_FRAME


def mean_step(times: StepTimes, streams: int, traffic: Traffic) -> float:
    """The mean step while `streams` streams speak without a pause."""
    return times.step(streams, streams * traffic.kv_tokens, streams / traffic.steps)


def real_time_factor(times: StepTimes, streams: int, traffic: Traffic) -> float:
    """Audio seconds heard of a stream for every second that generating them takes."""
    taken = traffic.steps * mean_step(times, streams, traffic)
    return traffic.heard_seconds / taken if taken else math.inf


def first_byte_seconds(times: StepTimes, streams: int, traffic: Traffic) -> float:
    """From a segment's submission to its first audio at the socket, while `streams` streams speak."""
    steps = traffic.first_byte_steps * mean_step(times, streams, traffic)
    return steps + times.prefill + SERVER_SECONDS


def largest_real_time_batch(times: StepTimes, traffic: Traffic) -> int:
    """The most streams that all speak without a pause and stay ahead of real time by `speed`."""
    return largest(lambda streams: real_time_factor(times, streams, traffic) >= traffic.speed)


def largest_responsive_batch(times: StepTimes, traffic: Traffic, seconds: float) -> int:
    """The most streams of which none waits longer than `seconds` for the first byte of a segment."""
    return largest(lambda streams: first_byte_seconds(times, streams, traffic) <= seconds)


def stream_parts(gpu: Gpu, weights: Precision, model: Model = ORPHEUS) -> dict[str, float]:
    """Seconds that each part of a stream's work in a step takes on the GPU, at full speed."""
    # The head stays in BF16, which runs at half the speed of FP8.
    products = 2 * (model.linear_parameters * BYTES[weights] + model.head_parameters * 2)
    return {
        "products": products / gpu.fp8_flops,
        "sampling": SAMPLING_PASSES * 4 * model.vocabulary / gpu.usable_bandwidth,
        "codec": CODEC_FLOPS * FRAME_SECONDS / CODES_PER_FRAME / gpu.fp32_flops,
    }


def floor_times(
    gpu: Gpu,
    prompt_tokens: float,
    *,
    weights: Precision = "fp8",
    kv: Precision = "fp8",
    model: Model = ORPHEUS,
) -> StepTimes:
    """What the GPU cannot do without: each byte once, each product once, one after the other.

    Bytes come at the bandwidth that can be reached, products at the data sheet's peak. A real step
    does some of it at once and none of it at the peak.
    """
    prompt = 2 * model.linear_parameters * BYTES[weights] / gpu.fp8_flops
    return StepTimes(
        fixed=model.weight_bytes(weights) / gpu.usable_bandwidth,
        stream=sum(stream_parts(gpu, weights, model).values()),
        kv_token=model.kv_bytes(kv) / gpu.usable_bandwidth,
        prefill=prompt_tokens * prompt,
    )


def step_times(
    gpu: Gpu,
    prompt_tokens: float,
    *,
    variant: Variant = "floor",
    weights: Precision = "fp8",
    kv: Precision = "fp8",
    model: Model = ORPHEUS,
) -> StepTimes:
    """What the GPU cannot do without, and what the host of `variant` adds to it."""
    floor = floor_times(gpu, prompt_tokens, weights=weights, kv=kv, model=model)
    host = HOST[variant]
    return msgspec.structs.replace(
        floor, fixed=floor.fixed + host.fixed, stream=floor.stream + host.stream
    )
