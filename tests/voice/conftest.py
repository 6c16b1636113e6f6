"""Fixtures of the tests that need torch."""

from collections.abc import Iterator

import pytest

from tests.voice.warm_commands import WarmCommands


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmCommands]:
    """Runs `orpheus-ws` and `engine_build` without importing torch each time."""
    started = WarmCommands(tmp_path_factory.mktemp("commands"))
    yield started
    started.close()
