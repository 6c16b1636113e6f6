"""The locks: each says exactly what is installed, which is what `pyproject.toml` asks for."""

import re
import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.licences import permitted
from tests.locks import LOCKS, ROOT, pins, requirements

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ("3.11.0", "3.12.4", "3.13.1", "3.14.0")
every_lock = pytest.mark.parametrize("name", LOCKS)


def wanted(name: str) -> list[Requirement]:
    """What `pyproject.toml` asks for, with the extra of that name."""
    extra = [] if name == "base" else PROJECT["optional-dependencies"][name]
    return [Requirement(text) for text in [*PROJECT["dependencies"], *extra]]


@every_lock
def test_all_is_pinned_with_hashes(name: str) -> None:
    """Every line is one version, with the hash of each file that it may be, and names no registry."""
    for pinned, hashes in requirements(name).items():
        assert [version.operator for version in pinned.specifier] == ["=="]
        assert hashes > 0
        assert pinned.url is None
    text = (ROOT / LOCKS[name]).read_text(encoding="utf-8")
    assert not re.search(r"://|--(?:extra-)?index|--find-links|--trusted-host", text)


@every_lock
@pytest.mark.parametrize("python", PYTHONS)
def test_it_is_what_the_project_asks_for(name: str, python: str) -> None:
    """Each package that the project names is there in a version that fits."""
    found = pins(name, python=python)
    for one in wanted(name):
        if one.marker is None or one.marker.evaluate({"python_full_version": python}):
            assert one.specifier.contains(found[canonicalize_name(one.name)])


@every_lock
def test_it_holds_together(name: str) -> None:
    """What the pinned packages ask for is pinned as well; and nothing is that nobody asks for."""
    found = pins(name, python="3.11.0")
    reached, left = set(), [canonicalize_name(each.name) for each in wanted(name)]
    while left:
        package = left.pop()
        if package in reached:
            continue
        reached.add(package)
        for text in requires(package) or ():
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                assert one.specifier.contains(found[canonicalize_name(one.name)])
                left.append(canonicalize_name(one.name))
    assert reached == found.keys()


def test_locks_agree() -> None:
    """A package is pinned to one version, whichever lock is installed from."""
    base, http = (pins(name, python="3.11.0") for name in ("base", "http"))
    assert base.items() <= http.items()


def test_what_may_be_needed() -> None:
    """A licence that is not allowed is not, with others or in one of several that all count."""
    rules = tomllib.loads((ROOT / "requirements" / "licences.toml").read_text(encoding="utf-8"))
    for licence in ("MIT", "MIT License; Apache Software License", "GPL-3.0 OR MIT", "MIT AND ISC"):
        assert permitted(licence, rules), licence
    for licence in ("UNKNOWN", "GPL-3.0", "MIT AND GPL-3.0", "MIT License; GPL-3.0", ""):
        assert not permitted(licence, rules), licence
    assert all(rules["exceptions"].values())
