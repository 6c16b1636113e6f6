"""The adapter of TensorRT-LLM against a stand-in, in the shape of 1.2 and in a later one.

Nothing here says that it works with the real one: the stand-in has what is known of it.
"""

import asyncio
import math
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from orpheus_ws import messages as m
from orpheus_ws import tokens
from orpheus_ws.engine import trtllm
from orpheus_ws.errors import EngineFailed
from orpheus_ws.metrics import Metrics
from tests.harness import pcm, peer, server, turns_until
from tests.voice import fake_trtllm
from tests.voice.trtllm_engines import CAPACITY, LONG_TEXT, PROOF_REQUESTS, Open, groups_of, prompt


async def test_what_the_model_is_started_with(behaviour: Any, opened: Open) -> None:
    """Batch, lengths, cache, graphs and interval are what capacity and options make them."""
    await opened(max_prompt_tokens=500, max_tokens=1000, max_num_tokens=4096)
    (llm,) = behaviour.opened
    args = llm.args
    assert (args.max_batch_size, args.max_num_tokens, args.max_seq_len) == (CAPACITY, 4096, 1500)
    assert args.stream_interval == 7
    assert args.cuda_graph_config.batch_sizes == [1, 2, 3]
    assert args.cuda_graph_config.enable_padding
    cache = args.kv_cache_config
    # 1500 ids are 47 blocks of 32; each stream has one more, and so has the padding.
    assert cache.max_tokens == 32 * (CAPACITY * 47 + CAPACITY + 1)
    assert (cache.dtype, cache.tokens_per_block, cache.free_gpu_memory_fraction) == ("fp8", 32, 0.9)
    off = (
        cache.enable_block_reuse,
        cache.enable_partial_reuse,
        cache.copy_on_partial_reuse,
        cache.use_kv_cache_manager_v2,
        args.enable_chunked_prefill,
    )
    assert off == (False,) * 5
    assert cache.host_cache_size is None
    assert args.max_input_len == 500
    assert llm.skips_tokenizer
    assert not hasattr(args, "sampler_type") or args.sampler_type == "TRTLLMSampler"


async def test_a_cache_in_bf16(behaviour: Any, opened: Open) -> None:
    """With `bf16` the cache is of the type that a checkpoint without FP8 KV implies."""
    await opened(kv_cache="bf16")
    assert behaviour.opened[0].args.kv_cache_config.dtype == "auto"


async def test_the_first_frame_is_not_delayed(opened: Open) -> None:
    """The first id comes at once, the first frame with its seventh, and then a frame a group."""
    engine = await opened()
    *groups, last = await groups_of(engine, prompt(LONG_TEXT))
    assert [len(group) for group in groups] == [1, 6] + [7] * (len(groups) - 2)
    assert len(groups) > 10
    assert last == [tokens.END_OF_SPEECH]


@pytest.mark.parametrize("end_id_in_ids", [False, True])
@pytest.mark.parametrize("empty_last_response", [False, True])
async def test_the_end(
    behaviour: Any, opened: Open, end_id_in_ids: bool, empty_last_response: bool
) -> None:
    """End of speech comes once and last, whether or not the engine gives it, and however late."""
    behaviour.end_id_in_ids = end_id_in_ids
    behaviour.empty_last_response = empty_last_response
    engine = await opened()
    groups = await groups_of(engine, prompt())
    ids = [token for group in groups for token in group]
    assert ids[-1] == tokens.END_OF_SPEECH
    assert ids.count(tokens.END_OF_SPEECH) == 1
    assert len(ids) % 7 == 1
    assert all(groups)


async def test_a_slow_consumer_gets_all(opened: Open) -> None:
    """Ids that arrive while nobody asks are kept, in order, and the slot does not wait for them."""
    engine = await opened()
    asked = prompt(LONG_TEXT)
    expected = [token for group in await groups_of(engine, asked) for token in group]
    async with aclosing(engine.generate(asked)) as groups:
        ids = list(await anext(groups))
        await turns_until(lambda: engine.statistics().active == 0)
        async for group in groups:
            ids += group
    assert ids == expected


async def test_how_it_samples(behaviour: Any, opened: Open) -> None:
    """Sampling reaches the engine as it was asked for; 0 for either means the likeliest id."""
    engine = await opened()
    chance: dict[str, Any] = {
        "temperature": 0.7,
        "top_p": 0.9,
        "repetition_penalty": 1.3,
        "seed": 99,
    }
    await groups_of(engine, prompt(max_tokens=70, **chance))
    params, _ = behaviour.opened[0].requests[-1]
    assert {name: getattr(params, name) for name in chance} == chance
    assert (params.max_tokens, params.end_id) == (70, tokens.END_OF_SPEECH)
    assert not params.detokenize
    assert params.embedding_bias is None
    for greedy in ("temperature", "top_p"):
        await groups_of(engine, msgspec.structs.replace(prompt(max_tokens=7), **{greedy: 0.0}))
        assert behaviour.opened[0].requests[-1][0].greedy


async def test_the_bias_towards_legal_ids(behaviour: Any, opened: Open) -> None:
    """With the switch, each request has one float for each id: 0 where it is legal, low elsewhere."""
    engine = await opened(legal_bias=True)
    assert (await groups_of(engine, prompt()))[-1] == [tokens.END_OF_SPEECH]
    bias = behaviour.opened[0].requests[-1][0].embedding_bias
    assert bias.nbytes == 4 * fake_trtllm.CONFIG["vocab_size"]
    legal = (bias == 0).nonzero().flatten().tolist()
    assert legal == [tokens.END_OF_SPEECH, *range(tokens.AUDIO_BASE, tokens.AUDIO_END)]
    assert bias.min() == bias[0] < -1000


async def test_more_ids_than_there_is_room_for(behaviour: Any, opened: Open) -> None:
    """A request gets as many ids as the cache was sized for, and no more."""
    engine = await opened(max_tokens=70)
    groups = await groups_of(engine, prompt(LONG_TEXT, max_tokens=4096))
    assert sum(map(len, groups)) == 70
    assert behaviour.opened[0].requests[-1][0].max_tokens == 70


async def test_a_text_that_is_too_long(behaviour: Any, opened: Open) -> None:
    """A prompt over the limit fails alone and never reaches the engine."""
    engine = await opened(max_prompt_tokens=20)
    with pytest.raises(EngineFailed, match="too long"):
        await groups_of(engine, prompt(LONG_TEXT))
    assert len(behaviour.opened[0].requests) == PROOF_REQUESTS
    assert engine.alive
    assert engine.statistics().active == 0


async def test_leaving_aborts(behaviour: Any, opened: Open) -> None:
    """Who leaves has aborted the request, and goes when the engine has answered for the last time."""
    engine = await opened()
    groups = engine.generate(prompt(LONG_TEXT))
    await anext(groups)
    await groups.aclose()
    _, result = behaviour.opened[0].requests[-1]
    assert result.aborted()
    assert result.finished
    assert result.outputs[0].finish_reason == "cancelled"
    assert engine.statistics().active == 0


async def test_a_slot_is_taken_until_the_engine_says_otherwise(
    behaviour: Any, opened: Open
) -> None:
    """Between abort and the engine's last answer a request still has its slot."""
    engine = await opened()
    behaviour.ignores_aborts = True
    groups = engine.generate(prompt(LONG_TEXT))
    await anext(groups)
    leaving = asyncio.create_task(groups.aclose())
    _, result = behaviour.opened[0].requests[-1]
    await turns_until(result.aborted)
    assert engine.statistics().active == 1
    behaviour.ignores_aborts = False
    await leaving
    assert engine.statistics().active == 0


async def test_an_abort_that_is_never_answered(
    behaviour: Any, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that does not let go of a request in time is dead, as it answers nobody."""
    monkeypatch.setattr(trtllm, "ABORT_SECONDS", 0.01)
    engine = await opened()
    _, stuck = behaviour.opened[0].requests[-1]
    monkeypatch.setattr(type(stuck), "__anext__", lambda self: asyncio.Event().wait())
    groups = engine.generate(prompt(LONG_TEXT))
    asking = asyncio.create_task(anext(groups))
    await turns_until(lambda: engine.statistics().active == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await engine.wait_dead()
    await turns_until(lambda: engine.statistics().active == 0)


async def test_one_with_all_its_ids_is_not_aborted(behaviour: Any, opened: Open) -> None:
    """Whoever stops after the last id that was asked for disturbs nobody."""
    behaviour.empty_last_response = True
    engine = await opened()
    async with aclosing(engine.generate(prompt(LONG_TEXT, max_tokens=70))) as groups:
        taken = 0
        async for group in groups:
            taken += len(group)
            if taken == 70:
                break
    _, result = behaviour.opened[0].requests[-1]
    assert not result.aborted()
    assert result.outputs[0].finish_reason == "length"


async def test_one_that_has_ended_is_not_aborted(behaviour: Any, opened: Open) -> None:
    """Whoever stops at end of speech, as a reader of frames does, disturbs nobody either."""
    engine = await opened()
    async with aclosing(engine.generate(prompt())) as groups:
        async for group in groups:
            if group[-1] == tokens.END_OF_SPEECH:
                break
    assert not behaviour.opened[0].requests[-1][1].aborted()
    assert engine.statistics().active == 0


async def test_its_own_figures_become_gauges(behaviour: Any, opened: Open) -> None:
    """What the iteration statistics say is in the engine's, and so on `/metrics`."""
    engine = await opened()
    figures = engine.statistics()
    cache = behaviour.opened[0].args.kv_cache_config
    assert figures.kv_blocks == cache.max_tokens // 32
    assert figures.iteration_seconds == 0.005
    assert (figures.paused, figures.queued_inside, figures.gpu_bytes) == (0, 0, 2**30)
    registry = CollectorRegistry()
    Metrics(registry).watch_engine(engine.statistics)
    assert registry.get_sample_value("orpheus_engine_kv_blocks") == figures.kv_blocks


async def test_what_later_statistics_leave_out(
    behaviour: Any, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A figure that is no longer given is shown as not a number, and nothing fails."""
    monkeypatch.setattr(trtllm, "FOLLOW_SECONDS", 0.01)
    engine = await opened()
    registry = CollectorRegistry()
    Metrics(registry).watch_engine(engine.statistics)
    behaviour.kv_statistics = False
    await groups_of(engine, prompt())
    await turns_until(lambda: engine.statistics().kv_blocks is None)
    value = registry.get_sample_value("orpheus_engine_kv_blocks")
    assert value is not None
    assert math.isnan(value)


async def test_voices_are_those_of_the_options(opened: Open) -> None:
    """A fine-tune names its own voices; the published ones are the default."""
    assert (await opened(voices=["ada", "grace"])).voices == ("ada", "grace")
    assert (await opened()).voices == tokens.VOICES


async def test_a_server_with_it(behaviour: Any, tmp_path: Path) -> None:
    """Over a real socket it speaks whole frames, and a cancel aborts the request in mid-speech."""
    model = fake_trtllm.write_checkpoint(tmp_path)
    mine = ("engine.name=trtllm", f"engine.options.model={model}", "engine.uncalibrated=3")
    async with server(*mine) as started, peer(started.address.url) as client:
        await client.send(m.Config(segment=m.Segmentation(mode="flush")))
        await client.say("a", LONG_TEXT)
        received = await client.utterance("a")
        assert isinstance(received[-1], m.Done)
        spoken = behaviour.opened[0].requests[-1][1].outputs[0].token_ids
        assert len(spoken) > 70
        assert len(pcm(received)) == 2 * (len(spoken) // 7) * tokens.SAMPLES_PER_FRAME
        await client.say("b", LONG_TEXT)
        await client.send(m.Cancel(context="b"))
        assert isinstance((await client.utterance("b"))[-1], m.Cancelled)
        await turns_until(lambda: started.engine.statistics().active == 0)
        assert behaviour.opened[0].requests[-1][1].aborted()
