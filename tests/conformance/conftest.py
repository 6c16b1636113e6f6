"""What single engines need before they can be opened here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Prepared = Callable[[str], dict[str, Any]]


@pytest.fixture
def prepared(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Prepared:
    """The options to open an engine with, by its name; sets up what it needs."""

    def trtllm() -> dict[str, Any]:
        # It needs torch, without which that engine is skipped.
        from tests.voice import fake_trtllm

        fake_trtllm.install(monkeypatch)
        return {"model": str(fake_trtllm.write_checkpoint(tmp_path))}

    def torch() -> dict[str, Any]:
        return {"model": str(request.getfixturevalue("tiny_checkpoint"))}

    known: dict[str, Callable[[], dict[str, Any]]] = {"torch": torch, "trtllm": trtllm}
    return lambda name: known.get(name, dict)()
