"""What single engines need before they can be opened here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Prepared = Callable[[str], dict[str, Any]]


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Prepared:
    """The options to open an engine with, by its name; sets up what it needs."""

    def trtllm() -> dict[str, Any]:
        # It needs torch, without which that engine is skipped.
        from tests.voice import fake_trtllm

        fake_trtllm.install(monkeypatch)
        return {"model": str(fake_trtllm.write_checkpoint(tmp_path))}

    known: dict[str, Callable[[], dict[str, Any]]] = {"trtllm": trtllm}
    return lambda name: known.get(name, dict)()
