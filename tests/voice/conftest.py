"""Fixtures of the tests that need torch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.voice import fake_trtllm
from tests.voice.checkpoint_faults import declare_fp8
from tests.voice.warm_commands import WarmCommands


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmCommands]:
    """Runs `orpheus-ws` and `engine_build` without importing torch each time."""
    started = WarmCommands(tmp_path_factory.mktemp("commands"))
    yield started
    started.close()


@pytest.fixture(params=fake_trtllm.SHAPES)
def behaviour(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, in both shapes."""
    return fake_trtllm.install(monkeypatch, request.param)


@pytest.fixture
async def opened(behaviour: Any, tmp_path: Path) -> Any:
    """Opens engines with these options, and closes them afterwards."""
    from orpheus_ws.config import EngineConfig
    from orpheus_ws.engine import trtllm
    from tests.voice.trtllm_engines import CAPACITY

    engines: list[trtllm.TrtllmEngine] = []

    async def open_with(**options: Any) -> trtllm.TrtllmEngine:
        model = str(fake_trtllm.write_checkpoint(tmp_path))
        config = EngineConfig(name="trtllm", capacity=CAPACITY, options={"model": model, **options})
        engines.append(await trtllm.open_engine(config))
        return engines[-1]

    yield open_with
    for engine in engines:
        await engine.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint that nothing is wrong with."""
    return fake_trtllm.write_checkpoint(tmp_path / "model")


@pytest.fixture
def nothing_is_left() -> Any:
    """However a start goes, no process is left behind."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.fixture
def quantised(model: Path) -> Path:
    """The same in FP8, as ModelOpt 0.47 exports it."""
    declare_fp8(model, {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"})
    fake_trtllm.write_weights(model / "model.safetensors", fake_trtllm.tensors(fp8=True))
    return model
