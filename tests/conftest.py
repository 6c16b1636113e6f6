"""Fixtures of all tests.

Rule: no blocking call on an event loop, in any test; nothing from the outside: no configuration, no ignored signal.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import uvloop
from blockbuster import blockbuster_ctx

from orpheus_ws.settings import ENVIRONMENT_PREFIX

# How long an example takes says how busy the machine is. Examples are the same in each run, so that what a change is
# told depends on the change alone; `--hypothesis-profile explore` draws others.
hypothesis.settings.register_profile(
    "explore", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "same", hypothesis.settings.get_profile("explore"), derandomize=True
)
hypothesis.settings.load_profile("same")

# A shell has what it runs in the background ignore it, and every process that is started from there inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

Write = Callable[[str | bytes], Path]


@pytest.fixture
def toml(tmp_path: Path) -> Write:
    """Writes a configuration file."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "orpheus.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture(autouse=True)
def _no_blocking_calls() -> Iterator[None]:
    """Our code never blocks the event loop: a blocking call there raises."""
    with blockbuster_ctx("orpheus_ws") as detector:
        for function in detector.functions.values():
            # Importing the parts that the configuration names, before the port is open.
            function.can_block_in("orpheus_ws/named_parts.py", {"load_part"})
            function.can_block_in("orpheus_ws/wire/__init__.py", {"wires"})
            # The loop of the metrics' own thread, where /proc is read for them.
            function.can_block_in("orpheus_ws/server/scrapes.py", {"_respond"})
            function.can_block_in("orpheus_ws/surfaces/__init__.py", {"_modules"})
        yield


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the person who runs the tests do not reach them."""
    for name in list(os.environ):
        if name.startswith((ENVIRONMENT_PREFIX, "ORPHEUS_API_KEY", "OTEL_")):
            monkeypatch.delenv(name)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on 127.0.0.1 that nobody listens on, and that nobody can take meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tiny checkpoint in Orpheus's format. Read only; needs torch."""
    from engine_build import tiny

    folder = tmp_path_factory.mktemp("tiny")
    tiny.write(folder)
    return folder


def pytest_asyncio_loop_factories(
    config: pytest.Config,
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What uses sockets is tested on asyncio's event loop and on uvloop, which production runs.

    They order callbacks differently. Everything else runs on asyncio's alone.
    """
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.SelectorEventLoop
    }
    if Path(item.path).name.startswith(("test_server", "test_client", "test_surfaces")):
        factories["uvloop"] = uvloop.new_event_loop
    return factories


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that hangs on uvloop ends the process, with the stacks of all threads.

    On asyncio's loop the timeout is raised in the test. uvloop loses what a signal raises, and would turn
    on for ever.
    """
    for item in items:
        if "uvloop" in item.name.partition("[")[2]:
            item.add_marker(pytest.mark.timeout(method="thread"))
