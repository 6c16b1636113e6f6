"""The parts of other people's frameworks, where those are not installed."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("extra", "framework"), [("livekit", "livekit.agents"), ("pipecat", "pipecat.frames.frames")]
)
def test_a_framework_that_is_missing(
    extra: str, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import says what to install."""
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(ImportError, match=rf"pip install 'orpheus-ws\[{extra}\]'"):
        importlib.import_module(f"orpheus_ws.integrations.{extra}")
