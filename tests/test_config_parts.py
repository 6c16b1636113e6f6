"""Config: parts that are chosen by name, and their options."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from orpheus_ws.errors import StartupError
from orpheus_ws.named_parts import load_part
from orpheus_ws.settings import read_options

# Named parts --------------------------------------------------------------------------------------


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section inside the options."""

    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.9


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a part, as a part would declare them."""

    speed: float = 1.0
    names: tuple[str, ...] = ()
    memory: Memory | None = None


def test_read_options() -> None:
    """A part's options are read like the rest: text becomes numbers and lists."""
    assert read_options({}, Options, "engine.options") == Options()
    read = read_options({"speed": "2.5", "names": "a, b"}, Options, "engine.options")
    assert read == Options(speed=2.5, names=("a", "b"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sped": 1}, ["'engine.options.sped'", "'engine.options.speed'"]),
        ({"speed": "fast"}, ["`engine.options.speed`"]),
        ({"names": [1]}, ["`engine.options.names` must be a list, each item text"]),
        ({"memory": {"share": 2}}, ["`engine.options.memory.share` must be a number from 0 to 1"]),
        ({"memory": 2}, ["`engine.options.memory` must be a section"]),
    ],
)
def test_read_options_mistakes(options: dict[str, object], expected: list[str]) -> None:
    """Errors in a part's options name the whole key."""
    with pytest.raises(StartupError) as caught:
        read_options(options, Options, "engine.options")
    assert all(text in str(caught.value) for text in expected)


def test_load_part_finds_modules() -> None:
    """A plain name is a module of the package, a dotted name any module."""
    simulated = load_part("orpheus_ws.engine", "simulated", "open_engine", extra="pocket")
    assert simulated.__module__ == "orpheus_ws.engine.simulated"
    scanner = load_part("orpheus_ws.engine", "json.decoder", "scanstring", extra="pocket")
    assert scanner is sys.modules["json.decoder"].scanstring


def test_load_part_that_is_none() -> None:
    """A module without the function is no part, and is not offered as one."""
    with pytest.raises(StartupError, match="there are pocket, simulated, torch, trtllm, and"):
        load_part("orpheus_ws.engine", "pocket_encode", "open_engine", extra="pocket")
    with pytest.raises(StartupError, match="no codec 'loop'"):
        load_part("orpheus_ws.codec", "loop", "open_decoder", extra="codec")


@pytest.mark.parametrize(
    "name", ["nope", "simulatd", "no.such", "json.nope", "json", "", "a b", "x."]
)
def test_load_part_unknown(name: str) -> None:
    """A part that does not exist is named, in a `StartupError`; a plain name is none of Python's."""
    with pytest.raises(StartupError) as caught:
        load_part("orpheus_ws.engine", name, "open_engine", extra="pocket")
    assert repr(name) in str(caught.value)
    assert "engine" in str(caught.value)


@pytest.mark.parametrize("name", [".", "..", ".simulated", "..tokens"])
def test_load_part_relative_name(name: str) -> None:
    """A name that starts with a dot is refused like any other that is no module's."""
    with pytest.raises(StartupError) as caught:
        load_part("orpheus_ws.engine", name, "open_engine", extra="pocket")
    assert repr(name) in str(caught.value)


def test_load_part_names_the_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part whose own import is missing says which package to install."""
    (tmp_path / "custom_part").mkdir()
    (tmp_path / "custom_part" / "__init__.py").touch()
    (tmp_path / "custom_part" / "engine.py").write_text("import a_package_nobody_has.part\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StartupError) as caught:
        load_part("orpheus_ws.engine", "custom_part.engine", "open_engine", extra="trtllm")
    monkeypatch.delitem(sys.modules, "custom_part")
    assert "'custom_part.engine'" in str(caught.value)
    assert "'a_package_nobody_has'" in str(caught.value)
    assert "pip install a_package_nobody_has" in str(caught.value)


@pytest.mark.parametrize("body", ["raise OSError('hunter2')", "1 / 0", "(", "import math.nothing"])
def test_load_part_that_cannot_be_imported(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a part raises when it is imported is a `StartupError` without its text."""
    (tmp_path / "broken_part").mkdir()
    (tmp_path / "broken_part" / "__init__.py").touch()
    (tmp_path / "broken_part" / "engine.py").write_text(body + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StartupError) as caught:
        load_part("orpheus_ws.engine", "broken_part.engine", "open_engine", extra="pocket")
    monkeypatch.delitem(sys.modules, "broken_part")
    assert "'broken_part.engine'" in str(caught.value)
    assert "hunter2" not in str(caught.value)
