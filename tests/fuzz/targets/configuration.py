"""The configuration: a file, variables and flags.

An input is a file in TOML; lines that begin with `--` are flags, and those with `$` variables. It is a
configuration, which read again from what it holds is the same one, or an error of one line that repeats
no value.
"""

import contextlib
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec

from orpheus_ws import config
from orpheus_ws.engine.simulated import Options
from orpheus_ws.errors import StartupError
from orpheus_ws.settings import ENVIRONMENT_PREFIX, Section, convert, read_options

WORDS = (
    *get_type_hints(config.Config),
    *(
        field
        for kind in get_type_hints(config.Config).values()
        if isinstance(kind, type) and issubclass(kind, Section)
        for field in get_type_hints(kind)
    ),
    "--engine.", "=", "[", "[[", "]", "{", "}", '"""', "'''", f"${ENVIRONMENT_PREFIX}SERVER__PORT", "inf", "nan",
    "1979-05-27T07:32:00Z", "0x", "true", "\\u0000",
)  # fmt: skip

_FOLDER: Final = tempfile.TemporaryDirectory(prefix="configuration-")
_FILE: Final = Path(_FOLDER.name) / "config.toml"
_LONG: Final = 8
"""Characters from which on a value is taken for one that nobody else writes."""


def one(data: bytes) -> None:
    """See `Target`."""
    lines = data.split(b"\n")
    flags = [line[2:].decode(errors="replace") for line in lines if line.startswith(b"--")]
    variables = [line[1:].decode(errors="replace") for line in lines if line.startswith(b"$")]
    toml = b"\n".join(line for line in lines if not line.startswith((b"--", b"$")))
    _FILE.write_bytes(toml)
    environment = dict(variable.partition("=")[::2] for variable in variables)
    try:
        found = config.load(file=_FILE, environment=environment, flags=flags)
    except StartupError as error:
        _check(str(error), toml, flags)
        return
    with contextlib.suppress(RecursionError):  # of writing it down, which nobody does
        again = convert(msgspec.to_builtins(found), config.Config, where="")
        assert again == found or "nan" in str(again)
    try:
        read_options(found.engine.options, Options, "engine.options")
    except StartupError as error:
        _check(str(error), toml, flags)


def _check(error: str, toml: bytes, flags: list[str]) -> None:
    assert error.isprintable(), "an error of several lines"
    try:
        table = tomllib.loads(toml.decode())
        keys, values = set(_keys(table)), list(_values(table))
    except (ValueError, RecursionError):
        return
    for value in values:
        if len(value) >= _LONG and not any(value in key for key in keys) and not flags:
            assert value not in error.replace(str(_FILE), ""), "an error repeats a value"


def _keys(table: Any) -> Iterator[str]:
    if isinstance(table, dict):
        yield from table
    for inner in table.values() if isinstance(table, dict) else table:
        if isinstance(inner, dict | list):
            yield from _keys(inner)


def _values(table: Any) -> Iterator[str]:
    for inner in table.values() if isinstance(table, dict) else table:
        if isinstance(inner, dict | list):
            yield from _values(inner)
        elif isinstance(inner, str):
            yield inner
