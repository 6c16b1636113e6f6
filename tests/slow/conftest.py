"""A browser and two servers for the tests of the page."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.slow.browser import chromium
from tests.test_cli import serving

QUIET = ("--set", "log.level=error")

LONG = "This sentence is one of very many that follow each other without an end. " * 12


POCKET = ("--engine", "pocket", "--set", "codec.name=streaming", *QUIET)


SLOW_SPEECH = ("--set", "engine.options.step_seconds=0.05")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all."""
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def voice() -> Iterator[dict[str, str]]:
    """A server with the embedded voice."""
    with serving(*POCKET) as (_, announced):
        yield announced


@pytest.fixture(scope="module")
def tones() -> Iterator[dict[str, str]]:
    """A server with test tones, a little faster than real time."""
    with serving(*QUIET, *SLOW_SPEECH) as (_, announced):
        yield announced
