"""Fixtures of the tests of TensorRT-LLM's adapter."""

from pathlib import Path
from typing import Any

import pytest

from tests.voice import fake_trtllm


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
