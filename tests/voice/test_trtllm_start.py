"""What the TensorRT-LLM engine needs to start, what it says when that is not there, what its sampler is put to."""

import asyncio
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orpheus_ws.engine import trtllm_proof
from tests.voice import fake_trtllm
from tests.voice.trtllm_engines import refusal, running

pytestmark = pytest.mark.usefixtures("nothing_is_left")


# What is not there --------------------------------------------------------------------------------


async def test_without_tensorrt_llm(model: Path) -> None:
    """Without the package the error names the extra that brings it. It is not installed here."""
    said = await refusal(model)
    assert "pip install 'orpheus-ws[trtllm]'" in said


def test_importing_the_adapter_imports_no_tensorrt_llm() -> None:
    """Whoever lists engines and options does not load it."""
    code = (
        "import sys; sys.path.insert(0, 'tests/fakes'); import orpheus_ws.engine.trtllm; "
        "sys.exit('tensorrt_llm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_tensorrt_llm_that_does_not_fit(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that cannot be imported is named with the command that shows why."""
    fake_trtllm.show_gpu(monkeypatch)
    (tmp_path / "tensorrt_llm").mkdir()
    package = tmp_path / "tensorrt_llm" / "__init__.py"
    monkeypatch.syspath_prepend(tmp_path)
    package.write_text("raise OSError('libcuda.so.1')")
    assert "python -c 'import tensorrt_llm'" in await refusal(model)
    package.write_text("import mpi4py_that_is_not_there")
    assert "needs the package 'mpi4py_that_is_not_there'" in await refusal(model)
    package.write_text("__version__ = '0.9'")
    assert "needs TensorRT-LLM 1.2 or later" in await refusal(model)
    sys.modules.pop("tensorrt_llm")


def test_a_worker_that_imports_the_main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-LLM's worker may run it under another name, and must not become a server."""
    # A worker has not imported it before, as another test may have.
    monkeypatch.delitem(sys.modules, "orpheus_ws.__main__", raising=False)
    runpy.run_module("orpheus_ws.__main__", run_name="__worker__")


async def test_without_a_gpu(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch sees no GPU, as here, nothing is loaded and the error says what is needed."""
    behaviour = fake_trtllm.install(monkeypatch, gpu=False)
    assert "no GPU can be used" in await refusal(model)
    assert behaviour.opened == []


async def test_without_a_capacity(behaviour: Any, model: Path) -> None:
    """There is no capacity to assume: it must have been measured."""
    assert "set it to the number of streams" in await refusal(model, None)
    assert behaviour.opened == []


async def test_without_a_model(behaviour: Any) -> None:
    """A checkpoint must be named."""
    assert "set engine.options.model" in await refusal(None)
    assert behaviour.opened == []


# A checkpoint that is not one ---------------------------------------------------------------------


def _change(**config: Any) -> Callable[[Path], object]:
    return lambda model: fake_trtllm.write_checkpoint(model, **config)


def _write(name: str, content: str) -> Callable[[Path], object]:
    return lambda model: (model / name).write_text(content, encoding="utf-8")


def _remove(name: str) -> Callable[[Path], object]:
    return lambda model: (model / name).unlink()


QUANTISED_CACHE = json.dumps({"quantization": {"kv_cache_quant_algo": "FP8"}})


def _declare_cache(model: Path) -> None:
    scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
    _change(quantization_config={"kv_cache_scheme": scheme})(model)
    _write("hf_quant_config.json", QUANTISED_CACHE)(model)


@pytest.mark.parametrize(
    ("damage", "options", "advice"),
    [
        (_remove("config.json"), {}, "no config.json"),
        (_write("config.json", "{"), {}, "is not valid JSON"),
        (_write("config.json", "[]"), {}, "is not a JSON object"),
        (_change(architectures=["BertModel"]), {}, "is not a LlamaForCausalLM"),
        (_change(vocab_size=128_256), {}, "a vocabulary of 128256"),
        (_change(rope_theta=None), {}, "export with 4.57"),
        (
            _change(rope_scaling=None, rope_parameters={"rope_type": "llama3"}),
            {},
            "export with 4.57",
        ),
        (_remove("tokenizer.json"), {}, "no tokenizer.json"),
        (_write("tokenizer.json", "{}"), {}, "cannot be loaded"),
        (_remove("model.safetensors"), {}, "no model.safetensors"),
        (_write("hf_quant_config.json", QUANTISED_CACHE), {}, "or one is missing"),
        (_declare_cache, {"kv_cache": "bf16"}, "kv_cache to 'fp8'"),
        (lambda model: None, {"max_num_tokens": 100}, "max_num_tokens to at least that"),
        (lambda model: None, {"beam": 1}, "unknown configuration key"),
    ],
)
async def test_a_wrong_checkpoint(
    behaviour: Any,
    model: Path,
    damage: Callable[[Path], object],
    options: dict[str, Any],
    advice: str,
) -> None:
    """What is wrong with checkpoint or options is said before anything is loaded."""
    damage(model)
    assert advice in await refusal(model, **options)
    assert behaviour.opened == []


@pytest.mark.parametrize(
    ("owner", "setting", "fatal"),
    [
        ("TorchLlmArgs", "max_seq_len", True),
        ("TorchLlmArgs", "skip_tokenizer_init", True),
        ("TorchLlmArgs", "kv_cache_config", True),
        ("KvCacheConfig", "dtype", True),
        ("KvCacheConfig", "max_tokens", True),
        ("KvCacheConfig", "enable_block_reuse", True),
        ("KvCacheConfig", "use_kv_cache_manager_v2", False),
        ("TorchLlmArgs", "stream_interval", False),
        ("TorchLlmArgs", "cuda_graph_config", False),
    ],
)
async def test_a_version_without_a_setting(
    behaviour: Any,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: str,
    setting: str,
    fatal: bool,
) -> None:
    """What a version does not know is left out and logged, but not what streams would suffer from."""
    kind = getattr(sys.modules["tensorrt_llm.llmapi.llm_args"], owner)
    left = {name: None for name in kind.model_fields if name != setting}
    monkeypatch.setattr(kind, "model_fields", left)
    if fatal:
        assert f"has no {setting}, " in await refusal(model)
        assert behaviour.opened == []
        return
    async with running(model):
        pass
    assert [setting] in [getattr(record, "settings", None) for record in caplog.records]


async def test_a_version_without_the_cache(
    behaviour: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that has the KV cache's settings under another name is not started with defaults."""
    monkeypatch.delattr("tensorrt_llm.llmapi.llm_args.KvCacheConfig")
    assert "has no KvCacheConfig, " in await refusal(model)
    assert behaviour.opened == []


# The manifest -------------------------------------------------------------------------------------


async def test_what_the_manifest_says(behaviour: Any, model: Path) -> None:
    """Voices and limits are the manifest's, and the batch is the capacity within them."""
    version = sys.modules["tensorrt_llm"].__version__
    built_with = {"tensorrt_llm": version}
    changes = {"built_with": built_with, "max_num_tokens": 1024}
    await asyncio.to_thread(fake_trtllm.write_manifest, model, **changes)
    async with running(model) as engine:
        assert engine.voices == ("ava", "ben")
        (llm,) = behaviour.opened
        args = llm.args
        assert (args.max_batch_size, args.max_num_tokens, args.max_seq_len) == (3, 1024, 1500)


async def test_a_manifest_of_another_tensorrt_llm(behaviour: Any, model: Path) -> None:
    """What was measured with another version is not promised with this one."""
    built_with = {"tensorrt_llm": "1.2.0"}
    await asyncio.to_thread(fake_trtllm.write_manifest, model, built_with=built_with)
    assert "is for TensorRT-LLM 1.2.0" in await refusal(model)
    assert behaviour.opened == []


async def test_without_a_manifest(
    behaviour: Any, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is served, and a warning says what nothing vouches for."""
    async with running(model):
        assert len(behaviour.opened) == 1
    assert "the model has no manifest" in caplog.text
    assert "python -m engine_build manifest" in caplog.text


# Memory -------------------------------------------------------------------------------------------


async def test_too_little_memory(
    behaviour: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and cache that cannot fit are an error before the load, which says what would."""
    fake_trtllm.show_gpu(monkeypatch, free=2**30)
    # 2560 ids of 56 KiB are 140 MiB a stream, and 1024 less the weights are there.
    assert "lower engine.capacity below 6" in await refusal(model, 8, kv_fraction=1.0)
    assert "lower engine.capacity below 3" in await refusal(model, 8, kv_fraction=0.5)
    assert "lower engine.capacity below 3" in await refusal(
        model, 8, kv_fraction=1.0, kv_cache="bf16"
    )
    assert "use a larger GPU" in await refusal(model, 8, max_tokens=100_000)
    assert behaviour.opened == []


async def test_memory_that_runs_out_while_loading(behaviour: Any, model: Path) -> None:
    """An error from the worker that is about memory is told from one that is not."""
    cause = RuntimeError("CUDA out of memory. Tried to allocate")
    behaviour.load_error = RuntimeError("Executor worker returned error")
    assert "what it printed says why" in await refusal(model)
    behaviour.load_error.__cause__ = cause
    assert "ran out of it while loading" in await refusal(model)


async def test_a_cache_that_is_too_small(behaviour: Any, model: Path) -> None:
    """A cache that does not hold every stream at its longest is refused, with what would fit."""
    behaviour.kv_tokens = 2 * 2560 + 31
    assert "lower engine.capacity to 2" in await refusal(model, 3)
    async with running(model, 2) as engine:
        assert engine.statistics().kv_blocks == 160


async def test_a_cache_of_unknown_size(behaviour: Any, model: Path) -> None:
    """Without figures nothing is promised."""
    behaviour.kv_statistics = False
    assert "does not say how large its KV cache is" in await refusal(model)


# The proof of the sampler -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("honours_penalty", "ignores repetition_penalty"),
        ("honours_seed", "gives different ids for the same seed"),
        ("honours_bias", "ignores embedding_bias"),
    ],
)
async def test_a_sampler_that_ignores(behaviour: Any, model: Path, fault: str, said: str) -> None:
    """A sampler that ignores what it is asked is refused, with what to change."""
    setattr(behaviour, fault, False)
    message = await refusal(model)
    assert said in message
    assert "use TensorRT-LLM 1.2.1 or a later version" in message


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ("repetition_penalty", "ignores repetition_penalty"),
        ("seed", "gives different ids for the same seed"),
    ],
)
async def test_a_sampler_that_mixes_up(
    behaviour: Any, model: Path, parameter: str, said: str
) -> None:
    """A sampler that is right for one request at a time, and not for several, is refused as well."""
    behaviour.mixes_up = parameter
    assert said in await refusal(model)


@pytest.mark.parametrize("sampler", ["auto", "TorchSampler"])
async def test_the_default_sampler_of_1_2(
    model: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    """It ignores the penalty in silence; the error names the setting that chooses the other."""
    fake_trtllm.install(monkeypatch, "1.2.1")
    message = await refusal(model, sampler=sampler)
    assert "ignores repetition_penalty" in message
    assert "set engine.options.sampler to 'TRTLLMSampler'" in message


@pytest.mark.parametrize("sampler", ["auto", "TorchSampler", "TRTLLMSampler"])
async def test_later_versions_have_no_choice(
    model: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    """A version without the argument is not given it, whatever the option says."""
    fake_trtllm.install(monkeypatch, "1.4.0")
    async with running(model, sampler=sampler) as engine:
        assert engine.alive


async def test_an_engine_that_says_nothing(
    behaviour: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof that does not end in time is a failed start, and so is one that raises."""
    behaviour.dies_after_steps = 10
    assert "failed on its first requests" in await refusal(model)
    monkeypatch.setattr(trtllm_proof, "PROOF_SECONDS", 0.01)
    behaviour.silent = True
    assert "gave no 16 ids" in await refusal(model)
