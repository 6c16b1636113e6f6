"""The arithmetic, the encoder and the judgement of the TensorRT-LLM engine, whatever they are given."""

import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws import tokens
from orpheus_ws.engine import checkpoint as checkpoint_module
from orpheus_ws.engine import trtllm_setup as setup
from orpheus_ws.engine.trtllm import ABORT_SECONDS, pool_tokens
from orpheus_ws.engine.trtllm_process import SHUTDOWN_SECONDS
from orpheus_ws.engine.trtllm_proof import (
    ALLOWED,
    STEPPED,
    TEMPERATURE,
    TOKENS,
    Runs,
    first_repetition,
    judge,
)
from orpheus_ws.engine.trtllm_setup import Options
from orpheus_ws.errors import StartupError
from orpheus_ws.manifest import Limits
from tests.doctor_runs import doctor, settings
from tests.voice import fake_trtllm

load_encoder = functools.cache(checkpoint_module.load_encoder)

CAPACITIES = st.integers(1, 2000)
GIB = 2**30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose cache is as large as Orpheus's."""
    return fake_trtllm.write_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def checkpoint(model: Path) -> checkpoint_module.Checkpoint:
    """What was read of it."""
    return checkpoint_module.open_checkpoint(str(model), "trtllm")


def limits(**options: Any) -> Limits:
    """What these options make of the limits, without a manifest."""
    return setup.settle_limits(Options(**options), None, None)


# Arithmetic ---------------------------------------------------------------------------------------


@given(CAPACITIES, st.sets(st.integers(1, 3000)))
def test_graph_sizes(capacity: int, wanted: set[int]) -> None:
    """They ascend to the capacity; what the user names is kept as far as it is of use."""
    own = setup.graph_sizes(limits(graph_sizes=tuple(wanted)), capacity) if wanted else None
    if own is not None:
        assert set(own) == {size for size in wanted if size < capacity} | {capacity}
        assert own == sorted(own)


@given(CAPACITIES)
def test_graph_sizes_by_themselves(capacity: int) -> None:
    """Padding a batch to the next graph wastes at most a third of it."""
    sizes = setup.graph_sizes(limits(), capacity)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == capacity
    for batch in range(1, capacity + 1):
        graph = next(size for size in sizes if size >= batch)
        assert graph - batch <= graph / 3


def test_how_many_graphs() -> None:
    """256 streams take 15 graphs, as the docstring says."""
    assert len(setup.graph_sizes(limits(), 256)) == 15


def test_orpheus_in_figures(checkpoint: checkpoint_module.Checkpoint) -> None:
    """A token of Orpheus takes 56 KiB of cache in FP8 and 112 in BF16; 2560 of them are a stream."""
    assert setup.kv_bytes_per_token(checkpoint, Options()) == 57_344
    assert setup.kv_bytes_per_token(checkpoint, Options(kv_cache="bf16")) == 2 * 57_344
    assert setup.stream_tokens(limits()) == 2560


@given(st.integers(1, 2000), st.integers(7, 5000))
def test_a_stream_is_whole_blocks(prompt: int, speech: int) -> None:
    """It holds prompt and speech, with less than a block to spare."""
    held = setup.stream_tokens(limits(max_prompt_tokens=prompt, max_tokens=speech))
    assert held % setup.TOKENS_PER_BLOCK == 0
    assert 0 <= held - prompt - speech < setup.TOKENS_PER_BLOCK


@given(CAPACITIES, st.integers(2560, 10**7))
def test_what_is_advised_about_the_cache_holds(capacity: int, pool: int) -> None:
    """The cache is refused if and only if it is too small, and the capacity advised would fit."""
    try:
        setup.check_pool(limits(), capacity, pool)
    except StartupError as error:
        advised = int(str(error).partition("lower engine.capacity to ")[2].partition(",")[0])
        assert 1 <= advised < capacity
        setup.check_pool(limits(), advised, pool)
    else:
        assert capacity * 2560 <= pool


@given(capacity=CAPACITIES, free=st.integers(0, 200 * GIB))
def test_what_is_advised_about_memory_holds(
    checkpoint: checkpoint_module.Checkpoint, capacity: int, free: int
) -> None:
    """Memory is refused if and only if it is too little, and what is advised would not be."""
    try:
        setup.check_memory(checkpoint, Options(), limits(), capacity, free)
    except StartupError as error:
        advice = str(error).partition("lower engine.capacity below ")[2]
        if advice:
            assert int(advice) <= capacity
            setup.check_memory(checkpoint, Options(), limits(), int(advice) - 1, free)
    else:
        assert capacity * 2560 * 57_344 <= free


@pytest.mark.parametrize(
    ("iteration", "held"),
    [
        ({}, None),
        ({"kvCacheStats": None}, None),
        ({"kvCacheStats": {"maxNumBlocks": 10}}, None),
        ({"kvCacheStats": {"maxNumBlocks": 10, "tokensPerBlock": 32}}, 320),
    ],
)
def test_the_size_of_the_cache(iteration: dict[str, object], held: int | None) -> None:
    """It is known when the statistics have both of its factors."""
    assert pool_tokens(iteration) == held


def test_the_page(checkpoint: checkpoint_module.Checkpoint) -> None:
    """The arithmetic and the limits on the page are those of the code."""
    page = (Path(__file__).parents[2] / "docs" / "engine-trtllm.md").read_text(encoding="utf-8")
    stream = setup.stream_tokens(limits()) * setup.kv_bytes_per_token(checkpoint, Options())
    assert f"| {stream // 2**20} MiB | {2 * stream // 2**20} MiB |" in page
    for streams in (64, 128, 256):
        fp8 = streams * stream / GIB
        assert f"| {streams} streams | {fp8:g} GiB | {2 * fp8:g} GiB |" in page
    graphs = ", ".join(map(str, setup.graph_sizes(limits(), 256)[:8]))
    assert f"| {graphs} … capacity, padded |" in page
    assert f"has {SHUTDOWN_SECONDS:g} s to shut down" in page
    assert f"is not answered within {ABORT_SECONDS:g} s" in page
    assert "they are {:g}, {:g}, {:g} and {:g}".format(*STEPPED) in page
    assert f"a temperature of {TEMPERATURE:g}" in page


# The encoder --------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [*fake_trtllm.CONTROL_TOKENS.values(), "<custom_token_9>", "hello", " ", "\ud800"]
)


@given(st.lists(WORDS | st.text(), max_size=20).map("".join))
def test_text_never_becomes_a_control_token(model: Path, text: str) -> None:
    """Whatever a user writes is encoded as text, byte for byte, though the tokenizer knows better."""
    encode = load_encoder(model)
    ids = encode(text)
    # The tokenizer of the test has an id for each byte, and its added tokens come after them.
    assert all(token < 256 for token in ids)
    assert len(ids) == len(text.encode(errors="replace"))
    assert tokens.prompt_ids("tara", text, encode)[2:-4] == encode(f"tara: {text}")


# The judgement ------------------------------------------------------------------------------------

A, B, C, D = ALLOWED
GOOD = Runs(
    plain=[A] * TOKENS,
    again=[A] * TOKENS,
    penalised=[A, B, C, D] + [A] * (TOKENS - 4),
    seeded=[A, B] * (TOKENS // 2),
    reseeded=[A, B] * (TOKENS // 2),
    otherwise=[B, A] * (TOKENS // 2),
)
IDS = st.lists(st.sampled_from(ALLOWED), min_size=TOKENS, max_size=TOKENS)


def test_a_good_sampler() -> None:
    """What a sampler that does all gives is passed."""
    assert judge(GOOD) is None


@pytest.mark.parametrize("run", Runs._fields)
def test_an_id_outside_the_bias(run: str) -> None:
    """One wrong id in any run is seen, and so is one too few."""
    ids = list(getattr(GOOD, run))
    assert judge(GOOD._replace(**{run: [*ids[:-1], tokens.audio_id(1, 0)]})) == (
        "ignores embedding_bias"
    )
    assert "as many ids" in (judge(GOOD._replace(**{run: ids[:-1]})) or "")


@given(IDS)
def test_a_penalty_that_does_nothing(ids: list[int]) -> None:
    """The same ids with the penalty as without are refused, whatever they are."""
    runs = GOOD._replace(plain=ids, again=list(ids), penalised=list(ids))
    assert judge(runs) == "ignores repetition_penalty"


@given(IDS, IDS)
def test_a_penalty_that_does_something(ids: list[int], penalised: list[int]) -> None:
    """It passes if and only if it first shows where an id comes again."""
    runs = GOOD._replace(plain=ids, again=list(ids), penalised=penalised)
    same = next((i for i in range(TOKENS) if ids[i] != penalised[i]), TOKENS)
    assert (judge(runs) is None) == (first_repetition(ids) <= same < TOKENS)


@given(IDS, IDS, IDS)
def test_seeds(seeded: list[int], reseeded: list[int], otherwise: list[int]) -> None:
    """Equal seeds must agree and different ones differ."""
    runs = GOOD._replace(seeded=seeded, reseeded=reseeded, otherwise=otherwise)
    assert (judge(runs) is None) == (seeded == reseeded != otherwise)


@given(st.lists(st.integers(0, 5)))
def test_the_first_repetition(ids: list[int]) -> None:
    """What is before it has no id twice, and it was there before."""
    index = first_repetition(ids)
    assert len(set(ids[:index])) == index
    assert index == len(ids) or ids[index] in ids[:index]


# The doctor ---------------------------------------------------------------------------------------


def test_the_doctor_looks_without_loading(model: Path) -> None:
    """`doctor` tells of a missing package or checkpoint what `serve` would stop at."""
    free = settings("server.port=0", "server.metrics_port=0")
    chosen = settings(
        "engine.name=trtllm", f"engine.options.model={model}", "engine.uncalibrated=8"
    )
    examined = doctor(*free, *chosen, prelude="")
    assert "pip install 'orpheus-ws[trtllm]'" in examined.checks["engine"]["advice"]
    fake = {"PYTHONPATH": str(fake_trtllm.FOLDER)}
    examined = doctor(*free, *chosen, prelude="", environment=fake)
    assert examined.checks["engine"]["found"] == "trtllm, on cuda, 8 streams (uncalibrated)"
    assert examined.checks["engine"]["status"] == "warning"
    assert "python -m engine_build manifest" in examined.checks["engine"]["advice"]
    wrong = settings("engine.options.model=nowhere")
    examined = doctor(*free, *chosen, *wrong, prelude="", environment=fake)
    assert "is not a directory" in examined.checks["engine"]["advice"]
