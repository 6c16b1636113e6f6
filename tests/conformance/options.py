"""What an engine cannot be opened without."""

from typing import Any

import pytest


def engine_options(name: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of the engine of this name; most need none."""
    if name == "torch":
        return {"model": str(request.getfixturevalue("tiny_checkpoint"))}
    return {}
