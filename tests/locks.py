"""The files that pin what is installed, and how they are read."""

import re
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = {"base": Path("requirements/base.lock"), "http": Path("requirements/http.lock")}
"""By the extras that they are of."""
_HASH: Final = re.compile(r"\s*--hash=sha256:[0-9a-f]{64}")


def requirements(name: str) -> dict[Requirement, int]:
    """What a lock pins, and how many files each may be."""
    text = (ROOT / LOCKS[name]).read_text(encoding="utf-8")
    entries = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "")
    found: dict[Requirement, int] = {}
    for line in filter(str.strip, entries.splitlines()):
        pinned, hashes = _HASH.subn("", line)
        found[Requirement(pinned)] = hashes
    return found


def pins(name: str, *, python: str) -> dict[str, str]:
    """Versions by package, as they are for this version of Python on this machine."""
    found: dict[str, str] = {}
    environment = {
        "python_version": ".".join(python.split(".")[:2]),
        "python_full_version": python.strip(),
    }
    for pinned in requirements(name):
        if pinned.marker is None or pinned.marker.evaluate(environment):
            (version,) = pinned.specifier
            assert version.operator == "=="
            found[canonicalize_name(pinned.name)] = version.version
    return found
