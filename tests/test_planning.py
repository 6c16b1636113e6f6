"""The arithmetic of memory, steps and cost: it agrees with its sources and never promises too much."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_build.plan import LABEL, as_json, make_plan, rows, table
from orpheus_ws.audio import LEAD_IN, LONGEST_SILENCE, SHORTEST_PAUSE, Player
from orpheus_ws.planning.cost import Usage
from orpheus_ws.planning.memory import (
    HEADROOM_BYTES,
    KV_FRACTION,
    Request,
    graph_sizes,
    largest,
    largest_batch_in_memory,
    memory_plan,
    stream_tokens,
)
from orpheus_ws.planning.profiles import (
    BYTES,
    GPUS,
    ORPHEUS,
    USABLE_BANDWIDTH,
    Gpu,
    GpuName,
    Precision,
)
from orpheus_ws.planning.steps import (
    HOST,
    SEGMENT_STEPS,
    Segment,
    StepTimes,
    Traffic,
    Variant,
    first_byte_seconds,
    floor_times,
    largest_real_time_batch,
    largest_responsive_batch,
    mean_step,
    step_times,
    stream_parts,
)
from orpheus_ws.tokens import FRAME_SECONDS, SAMPLE_RATE

H100 = GPUS["h100"]

gpus = st.sampled_from(list(GPUS.values()))
precisions = st.sampled_from(list(BYTES))
requests = st.builds(
    Request,
    prompt_tokens=st.integers(1, 4096),
    max_tokens=st.integers(7, 8192),
    weights=precisions,
    kv=precisions,
)
micro = st.floats(0, 1e-3)
times = st.builds(
    StepTimes, fixed=st.floats(0, 2e-2), stream=micro, kv_token=st.floats(0, 1e-6), prefill=micro
)
segments = st.builds(
    Segment,
    prompt_tokens=st.floats(1, 500),
    frames=st.floats(14, 300),
    silent_seconds=st.floats(0, 0.7),
)
traffics = st.builds(
    Traffic,
    segments=st.lists(segments, min_size=1, max_size=5).map(tuple),
    first_frames=st.integers(1, 4),
    pace=st.floats(1, 2),
)


def test_the_shape_of_the_model() -> None:
    """Bytes of weights and of keys and values are those that were counted from the checkpoint."""
    assert ORPHEUS.linear_parameters == 28 * 100_663_296
    assert ORPHEUS.weight_bytes("fp8") == pytest.approx(2.82e9 + 0.96e9, rel=2e-3)
    assert ORPHEUS.weight_bytes("bf16") == pytest.approx(6.60e9, rel=1e-3)
    assert ORPHEUS.kv_bytes("fp8") == 57_344
    assert ORPHEUS.kv_bytes("bf16") == 112 * 1024


def test_the_arithmetic_of_a_step() -> None:
    """At the data sheet's bandwidth an H100 reads the weights in 1.1 ms, and has room in 12.2 ms for
    the keys and values of about 600 streams of 1000 ids.
    """
    floor = floor_times(H100)
    fixed, token = floor.fixed * USABLE_BANDWIDTH, floor.kv_token * USABLE_BANDWIDTH
    assert fixed == pytest.approx(1.1e-3, rel=0.03)
    assert (12.2e-3 - fixed) / (1000 * token) == pytest.approx(600, rel=0.1)
    parts = stream_parts(H100, "fp8")
    assert floor.stream == sum(parts.values())
    assert parts["products"] < stream_parts(H100, "bf16")["products"] < 2 * parts["products"]


@pytest.mark.parametrize(("variant", "streams"), [("tuned", 216), ("stock", 24)])
def test_the_variants_give_the_public_figures(variant: Variant, streams: int) -> None:
    """On an H100 and of the default traffic, `tuned` serves 216 streams and `stock` 24."""
    traffic = Traffic()
    fitted = step_times(H100, variant=variant)
    assert largest_real_time_batch(fitted, traffic) == streams


def test_a_variant_is_no_faster_than_the_floor() -> None:
    """The host only adds, and more the less was done about it."""
    for gpu in GPUS.values():
        batches = [
            largest_real_time_batch(step_times(gpu, variant=variant), Traffic()) for variant in HOST
        ]
        assert batches == sorted(batches, reverse=True)


@given(gpu=gpus, request=requests, streams=st.integers(0, 2000), more=st.integers(1, 500))
def test_more_streams_take_more_memory(gpu: Gpu, request: Request, streams: int, more: int) -> None:
    """Every stream takes something from what is left, and one that does not fit never fits again."""
    few, many = (memory_plan(gpu, count, request) for count in (streams, streams + more))
    assert many.kv > few.kv
    assert many.headroom < few.headroom
    assert few.fits or not many.fits


@given(gpu=gpus, request=requests)
def test_a_plan_stays_within_the_gpu(gpu: Gpu, request: Request) -> None:
    """The largest batch fits with its headroom and within the cache's share, and one more does not."""
    batch = largest_batch_in_memory(gpu, request)
    assert not memory_plan(gpu, batch + 1, request).fits
    if batch:
        plan = memory_plan(gpu, batch, request)
        used = plan.weights + plan.kv + plan.codec + plan.graphs + plan.runtime
        assert used + HEADROOM_BYTES <= gpu.memory_bytes
        assert used + plan.headroom == gpu.memory_bytes
        assert plan.kv <= KV_FRACTION * (gpu.memory_bytes - plan.weights - plan.codec)
        stream = stream_tokens(request.prompt_tokens, request.max_tokens)
        assert plan.kv >= batch * stream * ORPHEUS.kv_bytes(request.kv)


@given(times=times, traffic=traffics, streams=st.integers(1, 1000))
def test_more_work_takes_longer(times: StepTimes, traffic: Traffic, streams: int) -> None:
    """A step does not become shorter by a stream, an id in the cache or a prompt."""
    tokens = streams * traffic.kv_tokens
    step = times.step(streams, tokens)
    assert times.step(streams + 1, tokens) >= step
    assert times.step(streams, tokens + 1) >= step
    assert times.step(streams, tokens, 1) >= step
    assert mean_step(times, streams + 1, traffic) >= mean_step(times, streams, traffic)


@given(times=times, traffic=traffics)
def test_the_largest_batch_is_the_largest(times: StepTimes, traffic: Traffic) -> None:
    """Its steps are within the budget, and with one stream more they are not."""
    batch = largest_real_time_batch(times, traffic)
    if batch:
        assert mean_step(times, batch, traffic) <= traffic.step_budget
    if batch < 2**16:
        assert mean_step(times, batch + 1, traffic) > traffic.step_budget


def _arrivals(traffic: Traffic, step: float) -> Iterator[tuple[float, float]]:
    """Of one turn at that step, frame by frame: when it is there, and how much is heard of it."""
    submitted = 0
    join = (SHORTEST_PAUSE / SAMPLE_RATE, LONGEST_SILENCE / SAMPLE_RATE)
    for nth, segment in enumerate(traffic.segments):
        silence = round(segment.silent_seconds / FRAME_SECONDS)
        stays = silence * FRAME_SECONDS
        stays = max(join[0], min(stays, join[1])) if nth else min(stays, LEAD_IN / SAMPLE_RATE)
        for frame in range(silence, round(segment.frames)):
            # The first come together; before the first there is what stays of the silence.
            due = max(frame + 1, silence + traffic.first_frames)
            seconds = FRAME_SECONDS + (stays if frame == silence else 0.0)
            yield (submitted + 1 + 7 * due) * step, seconds
        submitted += 7 * round(segment.frames) + SEGMENT_STEPS


def _latest(traffic: Traffic, step: float) -> float:
    """By how much a player that starts after its prebuffer waits for a frame at most, in all."""
    arrivals = list(_arrivals(traffic, step))
    due, worst = arrivals[0][0] + Player.PREBUFFER, -math.inf
    for now, seconds in arrivals:
        worst = max(worst, now - due)
        due += seconds
    return worst


whole_segments = st.builds(
    Segment,
    frames=st.integers(14, 200).map(float),
    silent_seconds=st.integers(0, 8).map(lambda frames: frames * FRAME_SECONDS),
)


@given(
    parts=st.lists(whole_segments, min_size=1, max_size=4).map(tuple),
    first_frames=st.integers(1, 4),
)
def test_the_budget_is_what_the_player_stands(
    parts: tuple[Segment, ...], first_frames: int
) -> None:
    """Played frame by frame, a turn is late by less than the player allows just within its budget,
    so it has no underrun; just beyond it is later.
    """
    traffic = Traffic(segments=parts, first_frames=first_frames, pace=1.0)
    within, beyond = traffic.step_budget * 0.999, traffic.step_budget * 1.001
    assert _latest(traffic, within) < Player.TOLERANCE < _latest(traffic, beyond)
    player = Player()
    for now, seconds in _arrivals(traffic, within):
        player.receive(seconds, now)
    assert player.underruns == 0


@given(times=times, traffic=traffics, seconds=st.floats(0.05, 1))
def test_the_largest_batch_that_answers_in_time(
    times: StepTimes, traffic: Traffic, seconds: float
) -> None:
    """Its first byte is in time, and with one stream more it is not."""
    batch = largest_responsive_batch(times, traffic, seconds)
    if batch:
        assert first_byte_seconds(times, batch, traffic) <= seconds
    if batch < 2**16:
        assert first_byte_seconds(times, batch + 1, traffic) > seconds


@given(limit=st.integers(0, 1000))
def test_largest(limit: int) -> None:
    """It finds the edge wherever it is, and stops at its own limit."""
    assert largest(lambda number: number <= limit) == limit
    assert largest(lambda number: True, limit=limit) == limit


@given(capacity=st.integers(1, 4096))
def test_graph_sizes(capacity: int) -> None:
    """From 1 to the capacity, each at most twice the one before and half as much again from 4 on."""
    sizes = graph_sizes(capacity)
    assert sizes[0] == 1
    assert sizes[-1] == capacity
    assert all(low < high <= max(2 * low, 4) for low, high in pairwise(sizes))


@given(
    price=st.floats(0.01, 100),
    capacity=st.integers(1, 1000),
    talk_share=st.floats(0.01, 1),
    utilisation=st.floats(0.01, 1),
)
def test_cost(price: float, capacity: int, talk_share: float, utilisation: float) -> None:
    """An hour of the GPU pays for what is spoken in it: whoever pays for that pays for the hour."""
    usage = Usage(price=price, talk_share=talk_share, utilisation=utilisation)
    cost = usage.cost(capacity)
    conversations = capacity * utilisation
    assert cost.conversation_hour * conversations == pytest.approx(price)
    assert cost.speech_hour * conversations * talk_share == pytest.approx(price)


@pytest.mark.parametrize(
    "wrong",
    [
        {"talk_share": 0.0},
        {"talk_share": 1.1},
        {"utilisation": 0.0},
        {"capacity": 0},
        {"price": -1.0},
    ],
)
def test_cost_refuses_what_cannot_be(wrong: dict[str, float]) -> None:
    """Shares are parts of 1, a price is not negative, and there is at least one slot."""
    right = {"price": 1.0, "capacity": 8, "talk_share": 0.4, "utilisation": 0.6} | wrong
    capacity = int(right.pop("capacity"))
    with pytest.raises(ValueError, match="not"):
        Usage(**right).cost(capacity)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("kv", BYTES)
def test_a_plan(name: GpuName, kv: Precision) -> None:
    """The batch is the smaller of the two, what binds is named, and it says that it is arithmetic."""
    request = Request(kv=kv)
    plan = make_plan(name, request, Traffic(), "floor")
    assert plan.batch == min(plan.by_memory, plan.by_real_time) > 0
    assert plan.binds == ("real time" if plan.by_real_time < plan.by_memory else "memory")
    assert plan.headroom >= HEADROOM_BYTES
    assert plan.cost is None
    lines = table(plan).splitlines()
    assert LABEL in lines[0]
    assert sum(line.split()[-1] == str(plan.batch) for line in lines if line) >= 2
    assert max(map(len, lines)) <= 100
    assert json.loads(as_json(plan))["label"] == LABEL


def test_a_gpu_too_small() -> None:
    """If not one stream fits the batch is 0, and nothing has a cost."""
    usage = Usage(price=2.0, talk_share=0.5, utilisation=0.5)
    plan = make_plan("l40s", Request(max_tokens=10**7), Traffic(), "floor", usage)
    assert (plan.by_memory, plan.batch, plan.binds, plan.cost) == (0, 0, "memory", None)
    assert dict(rows(plan))["batch"] == "0"


def test_the_command() -> None:
    """`plan` prints a table, or JSON, with the cost if there is a price; a wrong GPU is an error."""
    command = [sys.executable, "-m", "engine_build", "plan", "--gpu"]
    priced = ["h100", "--price", "2.5", "--talk-share", "0.5", "--utilisation", "0.5", "--json"]
    printed = json.loads(subprocess.check_output(command + priced))
    assert printed["cost"]["conversation_hour"] == pytest.approx(2.5 / (printed["batch"] * 0.5))
    text = subprocess.check_output([*command, "h100-mig-3g.40gb", "--kv", "bf16"], text=True)
    assert "KV cache, BF16, an id" in text
    wrong = subprocess.run([*command, "h999"], capture_output=True, text=True, check=False)
    assert wrong.returncode != 0
    assert "l40s" in wrong.stderr
