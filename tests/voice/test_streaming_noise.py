"""Noise: a function of a stream's seed and the position, and of nothing else."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orpheus_ws.codec import noise
from orpheus_ws.codec.network import StreamingNetwork
from orpheus_ws.codec.passes import EagerPasses
from orpheus_ws.codec.streaming import StreamingDecoder
from orpheus_ws.codec.weights import prepare
from orpheus_ws.codec.window import decode_whole
from orpheus_ws.tokens import SAMPLES_PER_FRAME
from tests.voice.codec_models import (
    CUTS,
    PLANS,
    SMALL,
    Plan,
    assert_same,
    play,
    play_one,
    random_frames,
    random_model,
    small_model,
    streaming,
    with_noise_of,
)

TABLE = noise.table("cpu", torch.float32)
RATES = (32, 256, 1024, 2048)
"""Samples that each layer has in a frame."""


def drawn(seed: int, layer: int, start: int, count: int) -> NDArray[np.float32]:
    """Noise of one stream from a position on."""
    positions = torch.arange(start, start + count)[None]
    values = noise.values(TABLE, torch.tensor([noise.offset(seed)]), layer, positions)
    found: NDArray[np.float32] = values[0].numpy()
    return found


# Values ---------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**64 - 1),
    layer=st.integers(0, noise.LAYERS - 1),
    start=st.integers(-5000, 2**30),
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=5),
)
@settings(deadline=None)
def test_values_do_not_depend_on_the_pieces(
    seed: int, layer: int, start: int, sizes: Sequence[int]
) -> None:
    """Noise asked for in pieces is, to the bit, noise asked for at once."""
    pieces, position = [], start
    for size in sizes:
        pieces.append(drawn(seed, layer, position, size))
        position += size
    np.testing.assert_array_equal(np.concatenate(pieces), drawn(seed, layer, start, sum(sizes)))


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(-5000, 2**30)), min_size=1, max_size=6
    ),
    layer=st.integers(0, noise.LAYERS - 1),
)
def test_values_do_not_depend_on_the_batch(rows: list[tuple[int, int]], layer: int) -> None:
    """Each stream of a batch gets, to the bit, the noise that it gets alone."""
    offsets = torch.tensor([noise.offset(seed) for seed, _ in rows])
    positions = torch.stack([torch.arange(start, start + 64) for _, start in rows])
    values = noise.values(TABLE, offsets, layer, positions).numpy()
    for (seed, start), row in zip(rows, values, strict=True):
        np.testing.assert_array_equal(row, drawn(seed, layer, start, 64))


def test_the_table_is_the_same_everywhere() -> None:
    """The table is fixed: these are its first and last deviates, whatever the machine."""
    np.testing.assert_allclose(TABLE[:3], [1.7640524, 0.4001572, 0.978738], rtol=1e-6)
    np.testing.assert_allclose(TABLE[-2:], [0.3472664, 0.3620192], rtol=1e-6)
    assert torch.equal(TABLE, noise.table("cpu", torch.float32))


def test_the_table_is_normal() -> None:
    """Mean 0, variance 1, as much beyond one, two and three deviations as there should be, and
    white: no sample tells anything of those near it."""
    table = TABLE.double().numpy()
    error = len(table) ** -0.5
    assert abs(table.mean()) < 4 * error
    assert abs(table.var() - 1) < 4 * 2**0.5 * error
    for deviations, share in ((1, 0.31731), (2, 0.04550), (3, 0.00270)):
        assert abs((np.abs(table) > deviations).mean() - share) < 4 * share**0.5 * error
    for lag in (1, 2, 3, 7, 64, 2048):
        assert abs((table * np.roll(table, lag)).mean()) < 4.5 * error


@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=20)
def test_layers_have_nothing_in_common(seed: int) -> None:
    """At the same positions, and at the same time, no layer's noise is like another's."""
    frames = 30
    for one in range(noise.LAYERS):
        for other in range(one):
            count = frames * RATES[other]
            slow = drawn(seed, other, 0, count)
            fast = drawn(seed, one, 0, frames * RATES[one])
            for same in (fast[:count], fast[:: RATES[one] // RATES[other]]):
                assert abs((slow * same).mean()) < 6 * count**-0.5


@given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2, unique=True))
def test_seeds_begin_elsewhere(seeds: list[int]) -> None:
    """Two seeds hardly ever have the same noise, seeds next to each other never."""
    first, second = map(noise.offset, seeds)
    assert 0 <= first < noise.TABLE_SIZE
    assert first != second or abs(seeds[0] - seeds[1]) > 1000
    assert len({noise.offset(seeds[0] + n) for n in range(1000)}) == 1000


# Sound ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depthwise", [True, False])
@given(plans=st.lists(PLANS, min_size=1, max_size=5), slots=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_streams_have_their_own_noise(depthwise: bool, plans: list[Plan], slots: int) -> None:
    """Whatever shares its steps, a stream is what snac's own layers make of its codes when they
    are given the noise of its seed from position 0 on."""
    model = small_model(depthwise=depthwise, noisy=True)
    for plan, samples in zip(plans, play(streaming(model, slots), plans), strict=True):
        if plan.length:
            whole = decode_whole(with_noise_of(model, plan.seed), plan.frames)
            assert_same(samples, whole if plan.leaves is None else whole[: len(samples)])


@pytest.mark.parametrize("sizes", [[1], [3, 0, 1], [8, 5], [2, 9]])
def test_a_stream_gets_all_its_noise(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    """In any pieces, alone or not, a stream gets the noise of its seed, to the bit, at every
    position of every layer."""
    heard: dict[tuple[int, int], NDArray[np.float32]] = {}
    original, count = noise.values, 13

    def noted(
        deviates: torch.Tensor, offsets: torch.Tensor, layer: int, positions: torch.Tensor
    ) -> torch.Tensor:
        values = original(deviates, offsets, layer, positions)
        for offset, row, places in zip(offsets, values, positions, strict=True):
            size = count * RATES[layer]
            whole = heard.setdefault((int(offset), layer), np.full(size, np.nan, np.float32))
            inside = (places >= 0) & (places < size)
            whole[places[inside]] = row[inside]
        return values

    monkeypatch.setattr(noise, "values", noted)
    play(streaming(small_model(noisy=True), 3), [Plan(count, sizes, seed=n) for n in range(4)])
    monkeypatch.undo()
    for seed in range(4):
        for layer, rate in enumerate(RATES):
            expected = drawn(seed, layer, 0, count * rate)
            np.testing.assert_array_equal(heard[noise.offset(seed), layer], expected)


@given(cuts=CUTS, others=CUTS, seed=st.integers(0, 2**64 - 1))
@settings(max_examples=15, deadline=None)
def test_the_seed_decides(cuts: list[int], others: list[int], seed: int) -> None:
    """The same seed gives the same sound in any pieces, another seed gives another."""
    decoder, frames = streaming(small_model(noisy=True)), random_frames(12)
    sound = play_one(decoder, frames, cuts, seed=seed)
    assert_same(play_one(decoder, frames, others, seed=seed), sound)
    other = play_one(decoder, frames, cuts, seed=seed + 1)
    assert np.abs(other - sound).std() > 0.01


def test_noise_does_not_stop() -> None:
    """A stream that is longer than the table goes on with noise, the table's from its start."""
    table = drawn(3, 0, 0, noise.TABLE_SIZE)
    np.testing.assert_array_equal(drawn(3, 0, noise.TABLE_SIZE, 1000), table[:1000])
    model = small_model(noisy=True)
    frames = random_frames(noise.TABLE_SIZE // SAMPLES_PER_FRAME + 8)
    whole = decode_whole(with_noise_of(model, 3), frames)
    assert_same(play_one(streaming(model), frames, [8], seed=3), whole)


@pytest.mark.parametrize("depthwise", [True, False])
def test_noise_can_be_left_out(depthwise: bool) -> None:
    """Without noise, a model that was trained with it decodes as if its noise were silent, and the
    seed does not matter."""
    config = SMALL | {"depthwise": depthwise}
    quiet = prepare(random_model(config), noise=False)
    silenced = random_model(config)
    for name, weight in silenced.named_parameters():
        if name.endswith("block.2.linear.parametrizations.weight.original0"):
            torch.nn.init.zeros_(weight)
    frames = random_frames(9)
    whole = decode_whole(silenced.eval(), frames)
    for seed in (0, 1):
        decoder = StreamingDecoder(EagerPasses(StreamingNetwork(quiet), 1), 1, early_frames=0)
        assert_same(play_one(decoder, frames, [2, 3], seed=seed), whole)
