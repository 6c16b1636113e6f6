"""How long a step of the engine takes, and how many streams stay in real time.

Rule: a step gives every stream that speaks one id. It takes a fixed time, a time for each stream, a
time for each id in the KV cache, and a time for each prompt that is read in it:

    step = fixed + streams × stream + KV ids × kv_token + new prompts × prefill

All times are seconds. `floor` is what the GPU cannot do without; `tuned` and `stock` add what the
host takes around it, fitted to one public figure each. None of them was measured.
"""

import math
from statistics import fmean
from typing import Final, Literal

import msgspec

from orpheus_ws.audio import LEAD_IN, LONGEST_SILENCE, SHORTEST_PAUSE, Player
from orpheus_ws.planning.memory import largest
from orpheus_ws.planning.profiles import BYTES, CODEC_FLOPS, ORPHEUS, Gpu, Precision
from orpheus_ws.tokens import CODES_PER_FRAME, FRAME_SECONDS, SAMPLE_RATE

Variant = Literal["floor", "tuned", "stock"]

SEGMENT_STEPS: Final = 2
"""Steps of a segment that bring no audio: the one under way when it is submitted, and the one that
brings end of speech."""
PROMPT_TOKENS: Final = 30
"""Ids of a prompt: a sentence of 5 s has about 20, its frame about 10."""
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
    "tuned": StepTimes(fixed=1.0e-3, stream=28.1e-6),
    "stock": StepTimes(fixed=2.0e-3, stream=305e-6),
}
"""What the host adds to a step: scheduling, launching, sampling and reporting that the GPU waits for.
The fixed part is an assumption; the stream's is what is then left if an H100 serves, of the default
traffic, 216 streams (`tuned`) and 24 (`stock`), as SAIL published after and before their work on the
system around the model (silares.com/targets/target-1-baseten)."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of speech, as an engine meets it."""

    prompt_tokens: float = PROMPT_TOKENS
    frames: float = 64.0
    """Frames generated, silence included; the default is 5.5 s."""
    silent_seconds: float = 0.55
    """Near-silence that they begin with: 0.4 to 0.7 s, says who serves the model."""

    @property
    def ids(self) -> float:
        """Ids generated, end of speech not among them."""
        return self.frames * CODES_PER_FRAME


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What every stream says: turns of these segments, one turn after the other without a pause."""

    segments: tuple[Segment, ...] = (Segment(),) * 3
    """Of a turn, which is a context of the server's. One at least."""
    first_frames: int = 2
    """Frames of sound that the first chunk waits for, as `codec.options.early_frames`."""
    pace: float = 1.10
    """How much faster than real time frames must come. What begins with two frames has to catch up at
    1.10 (docs/codec.md). 1: a codec that looks nowhere ahead asks for none."""

    @property
    def heard_seconds(self) -> float:
        """What is heard of a turn."""
        return sum(self._heard())

    @property
    def steps(self) -> float:
        """Steps of a turn, from submitting it until the next can be."""
        return sum(segment.ids + SEGMENT_STEPS for segment in self.segments)

    @property
    def kv_tokens(self) -> float:
        """Ids that a stream holds in the KV cache, as a mean over its steps."""
        return fmean(
            (segment.prompt_tokens + segment.ids / 2 for segment in self.segments),
            weights=[segment.ids + SEGMENT_STEPS for segment in self.segments],
        )

    @property
    def first_byte_steps(self) -> float:
        """Steps from submitting a turn to its first sound."""
        return self._sound_after(self.segments[0])

    @property
    def step_budget(self) -> float:
        """Seconds that steps may take, as a mean, if nobody's player is to run dry.

        The player of `audio`, which starts a little after the first sound, must have enough to get to
        the next: at every join, where nothing is heard while the next segment waits, begins and is
        silent, and at every last frame. And if a pace is asked for, frames must come at it.
        """
        starts_at = self.first_byte_steps
        budgets = [FRAME_SECONDS / CODES_PER_FRAME / self.pace] if self.pace > 1 else []
        step, heard = 0.0, Player.PREBUFFER + Player.TOLERANCE
        for segment, seconds in zip(self.segments, self._heard(), strict=True):
            sound = step + self._sound_after(segment)
            budgets += [heard / (sound - starts_at)] if sound > starts_at else []
            step += segment.ids + SEGMENT_STEPS
            heard += seconds
            # One step before the last: the last brings end of speech.
            budgets += [(heard - FRAME_SECONDS) / (step - 1 - starts_at)]
        return min(budgets)

    def _heard(self) -> list[float]:
        """Seconds that are heard of each segment: silence is cut, and supplied where they join."""
        first, *later = self.segments
        kept = [min(first.silent_seconds, LEAD_IN / SAMPLE_RATE)]
        least, most = SHORTEST_PAUSE / SAMPLE_RATE, LONGEST_SILENCE / SAMPLE_RATE
        kept += [max(least, min(segment.silent_seconds, most)) for segment in later]
        return [
            segment.frames * FRAME_SECONDS - segment.silent_seconds + silence
            for segment, silence in zip(self.segments, kept, strict=True)
        ]

    def _sound_after(self, segment: Segment) -> float:
        """Steps from submitting a segment to its first sound: the one under way, then its ids."""
        frames = segment.silent_seconds / FRAME_SECONDS + self.first_frames
        return 1 + frames * CODES_PER_FRAME


def prompt_tokens(text: str) -> int:
    """About how many ids the prompt of an English text has: one for 4 characters, 10 for its frame."""
    return 10 + len(text) // 4


def mean_step(times: StepTimes, streams: int, traffic: Traffic) -> float:
    """The mean step while `streams` streams speak without a pause."""
    prefills = streams * len(traffic.segments) / traffic.steps
    return times.step(streams, streams * traffic.kv_tokens, prefills)


def real_time_factor(times: StepTimes, streams: int, traffic: Traffic) -> float:
    """Audio seconds heard of a stream for every second that generating them takes."""
    taken = traffic.steps * mean_step(times, streams, traffic)
    return traffic.heard_seconds / taken if taken else math.inf


def first_byte_seconds(times: StepTimes, streams: int, traffic: Traffic) -> float:
    """From a turn's submission to its first audio at the socket, while `streams` streams speak."""
    steps = traffic.first_byte_steps * mean_step(times, streams, traffic)
    return steps + times.prefill + SERVER_SECONDS


def largest_real_time_batch(times: StepTimes, traffic: Traffic) -> int:
    """The most streams that can all speak without a pause and without an underrun."""
    budget = traffic.step_budget
    return largest(lambda streams: mean_step(times, streams, traffic) <= budget)


def largest_responsive_batch(times: StepTimes, traffic: Traffic, seconds: float) -> int:
    """The most streams of which none waits longer than `seconds` for the first byte of a turn."""
    return largest(lambda streams: first_byte_seconds(times, streams, traffic) <= seconds)


def stream_parts(gpu: Gpu, weights: Precision) -> dict[str, float]:
    """Seconds that each part of a stream's work in a step takes on the GPU, at full speed."""
    # The head stays in BF16, which runs at half the speed of FP8.
    products = 2 * (ORPHEUS.linear_parameters * BYTES[weights] + ORPHEUS.head_parameters * 2)
    return {
        "products": products / gpu.fp8_flops,
        "sampling": SAMPLING_PASSES * 4 * ORPHEUS.vocabulary / gpu.usable_bandwidth,
        "codec": CODEC_FLOPS * FRAME_SECONDS / CODES_PER_FRAME / gpu.fp32_flops,
    }


def floor_times(
    gpu: Gpu,
    *,
    weights: Precision = "fp8",
    kv: Precision = "fp8",
) -> StepTimes:
    """What the GPU cannot do without: each byte once, each product once, one after the other.

    Bytes come at the bandwidth that can be reached, products at the data sheet's peak. A real step
    does some of it at once and none of it at the peak.
    """
    prompt = 2 * ORPHEUS.linear_parameters * BYTES[weights] / gpu.fp8_flops
    return StepTimes(
        fixed=ORPHEUS.weight_bytes(weights) / gpu.usable_bandwidth,
        stream=sum(stream_parts(gpu, weights).values()),
        kv_token=ORPHEUS.kv_bytes(kv) / gpu.usable_bandwidth,
        prefill=PROMPT_TOKENS * prompt,
    )


def step_times(
    gpu: Gpu,
    *,
    variant: Variant,
    weights: Precision = "fp8",
    kv: Precision = "fp8",
) -> StepTimes:
    """What the GPU cannot do without, and what the host of `variant` adds to it."""
    floor = floor_times(gpu, weights=weights, kv=kv)
    host = HOST[variant]
    return msgspec.structs.replace(
        floor, fixed=floor.fixed + host.fixed, stream=floor.stream + host.stream
    )
