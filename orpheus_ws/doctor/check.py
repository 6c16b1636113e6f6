"""What a check says: a status, what was found, and what to do about it."""

from enum import StrEnum

import msgspec


class Status(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    ABSENT = "absent"
    """Not there. Whether the configuration needs it, other checks tell."""
    WARNING = "warning"
    """`serve` can start, but would serve worse than it could."""
    PROBLEM = "problem"
    """`serve` cannot start."""


class Check(msgspec.Struct, frozen=True):
    """One finding. `advice` may be empty; it is also given where nothing is wrong."""

    name: str
    status: Status
    found: str
    advice: str = ""
