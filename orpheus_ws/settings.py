"""Tables of settings, read into frozen structs.

Rule: an unknown key is an error that names where it stands and the nearest known one, a wrong value one that
says what the key takes; no value is repeated in an error, for it may be a secret in the wrong place.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from orpheus_ws.errors import StartupError

ENVIRONMENT_PREFIX = "ORPHEUS_WS_"


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that belong together."""


_T = TypeVar("_T", bound=msgspec.Struct)


def read_options(options: Mapping[str, Any], schema: type[_T], where: str) -> _T:
    """Read a named part's own options; raises `StartupError` like `load`."""
    check_names(options, schema, ANYWHERE, where)
    return convert(options, schema, where)


def read_toml(file: Path) -> dict[str, Any]:
    """The tables of a file; raises `StartupError` when there is no such file or it is no TOML."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{file} is not valid TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        advice = "a number in it is too long, or a list in it too deep"
        raise StartupError(f"{file} is not valid TOML: {advice}") from error


def nested(path: list[str], value: str) -> dict[str, Any]:
    """Tables in tables down to `value`, one for each part of the path."""
    table: Any = value
    for part in reversed(path):
        table = {part: table}
    assert isinstance(table, dict)
    return table


def merge(into: dict[str, Any], source: Mapping[str, Any]) -> None:
    """Write `source` over `into`, table by table."""
    for key, value in source.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


_PATH = re.compile(r"`\$\.?([^`\[]*)[^`]*`\Z")
"""Where msgspec says that an error was: a path, up to what is inside a list or a table."""


def convert(values: Mapping[str, Any], schema: type[_T], where: str = "") -> _T:
    """Read `values`, which lie at the path `where` and whose names were checked (`check_names`).

    Raises `StartupError` with one line.
    """
    prepared = _prepare(values, schema, where)
    try:
        # Not strict: what comes from the environment and from flags is text.
        return msgspec.convert(prepared, schema, strict=False)
    except msgspec.ValidationError as error:
        # Its text is not passed on: it can contain the value.
        found = _PATH.search(str(error))
        path = found[1].split(".") if found and found[1] else []
        key = ".".join([where, *path] if where else path)
        kind = describe(_type_at(path, schema))
        raise StartupError(
            f"the configuration has a wrong value: `{key}` must be {kind}"
        ) from error


def _type_at(path: list[str], schema: type[msgspec.Struct]) -> inspect.Type:
    kind = inspect.type_info(schema)
    for name in path:
        parts = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        sections = [part for part in parts if isinstance(part, inspect.StructType)]
        kind = next(field.type for part in sections for field in part.fields if field.name == name)
    return kind


def describe(kind: inspect.Type) -> str:
    """Say in words what a key of this type takes, such as `a whole number of at least 1`."""
    match kind:
        case inspect.UnionType():
            return " or ".join(
                describe(part) for part in kind.types if not isinstance(part, inspect.NoneType)
            )
        case inspect.LiteralType():
            return "one of " + ", ".join(f"`{value}`" for value in kind.values)
        case inspect.IntType():
            return "a whole number" + _bounds(kind)
        case inspect.FloatType():
            return "a number" + _bounds(kind)
        case inspect.BoolType():
            return "`true` or `false`"
        case inspect.StrType():
            return "text that is not empty" if kind.min_length else "text"
        case inspect.VarTupleType():
            return f"a list, each item {describe(kind.item_type)}"
        case inspect.DictType(value_type=inspect.AnyType()):
            return "a table"
        case inspect.DictType():
            return f"a table of names, each with {describe(kind.value_type)}"
        case _:
            return "a section with keys of its own"


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    least, most = kind.ge, kind.le
    if kind.gt is not None:
        return f" above {kind.gt:.15g}" + (f", at most {most:.15g}" if most is not None else "")
    if least is not None and most is not None:
        return f" from {least:.15g} to {most:.15g}"
    if least is not None:
        return f" of at least {least:.15g}"
    return f" of at most {most:.15g}" if most is not None else ""


class Source(NamedTuple):
    """Where settings were written, and how a key is spelt there."""

    where: str
    spelt: Callable[[str], str] = repr


def _variable(path: str) -> str:
    name = ENVIRONMENT_PREFIX + path.upper().replace(".", "__")
    return name if name.isprintable() else repr(name)


ENVIRONMENT: Final = Source(" in the environment", _variable)
FLAGS: Final = Source(" in --set")
ANYWHERE: Final = Source("")


def check_names(
    values: Mapping[str, Any], schema: type[msgspec.Struct], source: Source, where: str = ""
) -> None:
    """Raise `StartupError` with the nearest known key if one is unknown, both as `source` spells them."""
    hints = get_type_hints(schema)
    for key, value in values.items():
        path = f"{where}.{key}" if where else key
        if key not in hints:
            advice = f"{where!r} takes nothing here"
            if hints:
                advice = f"the nearest is {source.spelt(_nearest(key, hints, where))}"
            raise StartupError(
                f"unknown configuration key {source.spelt(path)}{source.where}; {advice}"
            )
        kind = hints[key]
        if isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, Mapping):
            check_names(value, kind, source, path)


def _nearest(key: str, hints: Mapping[str, Any], where: str) -> str:
    """What somebody may have meant who wrote `key` where `hints` are known."""
    # A key without its section, or with one underscore where a variable's name needs two.
    leaves = {
        spelling: f"{section}.{field}"
        for section, kind in hints.items()
        if isinstance(kind, type) and issubclass(kind, Section)
        for field in get_type_hints(kind)
        for spelling in (field, f"{section}_{field}")
    }
    if key in leaves:
        return leaves[key]
    (found,) = difflib.get_close_matches(key.lower(), hints, n=1, cutoff=0)
    return f"{where}.{found}" if where else found


def _prepare(values: Mapping[str, Any], schema: type[msgspec.Struct], where: str) -> dict[str, Any]:
    """Split lists that came as text. All names are known."""
    hints = get_type_hints(schema)
    prepared: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else key
        kind = hints[key]
        if isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, Mapping):
            prepared[key] = _prepare(value, kind, path)
        elif get_origin(kind) is tuple and isinstance(value, str):
            if value.startswith("["):
                raise StartupError(f"write {path!r} as values with commas between them")
            prepared[key] = [item.strip() for item in value.split(",") if item.strip()]
        else:
            prepared[key] = value
    return prepared
