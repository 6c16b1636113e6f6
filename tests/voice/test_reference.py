"""The page of the configuration, which takes every engine and codec to make."""

import re
from typing import get_type_hints

import pytest

from docs import generate
from orpheus_ws.config import Config, load
from orpheus_ws.named_parts import known_parts
from tests.test_reference import committed


def test_the_configuration_page() -> None:
    """`docs/configuration.md` is what `make docs` makes of the keys and of the parts' options."""
    page = generate.configuration_page()
    assert committed("configuration.md") == page, (
        "docs/configuration.md is out of date: run `make docs`"
    )


def test_every_key_is_on_the_page() -> None:
    """Every key has one line, and the variable on that line sets it."""
    page = committed("configuration.md")
    for section, schema in Config.__annotations__.items():
        for field, kind in get_type_hints(schema).items():
            (line,) = re.findall(rf"^\| `{section}\.{field}(?:\.NAME)?` .*", page, re.MULTILINE)
            if kind is str:
                (variable,) = re.findall(r"`(ORPHEUS_WS_\w+)` \|$", line)
                loaded = load(environment={variable: "set"})
                assert getattr(getattr(loaded, section), field) == "set"


@pytest.mark.parametrize("section", generate.PARTS)
def test_every_part_is_named(section: str) -> None:
    """The meaning of `engine.name` and `codec.name` lists the parts there are."""
    meaning = generate.meanings(Config.__annotations__[section])["name"]
    for part in known_parts(f"orpheus_ws.{section}", generate.PARTS[section]):
        assert f"`{part}`" in meaning
