"""The table of limits: every one is the code's, and has a test."""

import importlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from orpheus_ws import config
from tests.pages import ROOT, names, table

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = table("what", PAGE)
MODULES = {
    "messages.MAX_FRAGMENTS": "websockets.asyncio.messages",
    "messages.ContextId": "orpheus_ws.messages",
    "context.MAX_FLUSHES": "orpheus_ws.context",
    "session.REMEMBERED_CONTEXTS": "orpheus_ws.session",
}
"""Where constants are that are not the server's."""
UNTESTED = {"handshake_queue.BACKLOG", "http.KEEP_ALIVE_SECONDS"}
"""The kernel's affair, and uvicorn's."""
NO_NUMBER = {"engine.capacity", "server.oversubscription", "http._dated"}


def value(name: str) -> Any:
    """Of a key, as the configuration has it by default, or of a constant."""
    section, _, field = name.partition(".")
    defaults = msgspec.to_builtins(config.Config())
    if section in defaults and field in defaults[section]:
        return defaults[section][field]
    found = getattr(
        importlib.import_module(MODULES.get(name, f"orpheus_ws.server.{section}")), field
    )
    if name == "messages.ContextId":
        kind = inspect.type_info(found)
        assert isinstance(kind, inspect.StrType)
        return kind.max_length
    return found


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row(row: list[str]) -> None:
    """Its number is the default of the key or the constant that it names, and its tests exist."""
    _, limit, where, past, tests = row
    for name in names(where):
        if name not in NO_NUMBER:
            assert float(limit) == value(name)
    assert past
    sources = "".join(
        path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py")
    )
    for test in names(tests):
        assert re.search(rf"def {test}\(", sources), test
    assert names(tests) or set(names(where)) <= UNTESTED


def test_every_limit_is_listed() -> None:
    """Each key of the section `limits` has a row."""
    listed = {name for row in ROWS for name in names(row[2])}
    assert listed >= {f"limits.{name}" for name in config.LimitsConfig.__struct_fields__}
