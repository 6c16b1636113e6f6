"""The targets, found by looking.

Rule: a module here has `one(data)`, which raises for a fault and nothing else, and `WORDS`, pieces that
inputs are likely to hold.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Protocol, cast

CORPUS = Path(__file__).parent.parent / "corpus"
PLANTED = "planted"
"""A target with a fault, which shows that faults are found."""


class Target(Protocol):
    """A module of this package."""

    WORDS: tuple[str, ...]

    def one(self, data: bytes) -> None:
        """Try one input. Raises whatever it finds."""
        ...


def names() -> list[str]:
    """All that have no fault on purpose."""
    return [found.name for found in pkgutil.iter_modules(__path__) if found.name != PLANTED]


def load(name: str) -> Target:
    """The target of that name. Raises `ModuleNotFoundError`."""
    return cast("Target", importlib.import_module(f"{__name__}.{name}"))


def corpus(name: str) -> list[Path]:
    """The inputs of a target that were written by hand."""
    return sorted((CORPUS / name).iterdir())
