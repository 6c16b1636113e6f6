"""Configuration: frozen, nested, from a TOML file, the environment and flags, in that order.

Rule: what the program can be told is written here once, with its default; an unknown key is an
error that names the nearest known one. Environment variables are `ORPHEUS_WS_` and the path with
`__` between its parts (`ORPHEUS_WS_SERVER__PORT=9000`); flags are `--set server.port=9000`.
Parts that are chosen by name (`engine.name`, `codec.name`) read their own `options` with
`read_options`.
"""

import difflib
import importlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from orpheus_ws.errors import StartupError

ENVIRONMENT_PREFIX = "ORPHEUS_WS_"
# What Kubernetes sets in every pod beside a Service that is called orpheus-ws.
_SERVICE_LINK = re.compile(r"ORPHEUS_WS_(SERVICE_(HOST|PORT)|PORT)(_\w+)?\Z")

Port = Annotated[int, Meta(ge=0, le=65_535)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class EngineConfig(_Section, frozen=True, kw_only=True):
    """Which engine speaks. `capacity` is its number of slots and the number of sockets admitted."""

    name: str = "pocket"
    capacity: Positive | None = None
    options: dict[str, Any] = {}


class CodecConfig(_Section, frozen=True, kw_only=True):
    """Which decoder runs. `weights` is `pocket` or a directory with a SNAC checkpoint.

    `slots` follows the engine's capacity unless it is set.
    """

    name: str = "streaming"
    weights: str = "pocket"
    slots: Positive | None = None
    options: dict[str, Any] = {}


class ServerConfig(_Section, frozen=True, kw_only=True):
    """Where to listen. Port 0 takes a free one; `metrics_port` is on `metrics_host`."""

    host: str = "127.0.0.1"
    port: Port = 8765
    metrics_host: str = "127.0.0.1"
    metrics_port: Port = 9464
    drain_seconds: Seconds = 30.0
    handshake_seconds: Seconds = 10.0
    ping_seconds: Seconds = 20.0
    write_seconds: Seconds = 5.0
    retry_after_seconds: Positive = 1
    group_lead_ms: Annotated[int, Meta(ge=0, le=10_000)] = 1000
    """With so much audio in hand, a listener gets several frames in one message; 0: never."""


class AuthConfig(_Section, frozen=True, kw_only=True):
    """Who may connect: `keys` maps a name, which may be logged, to the secret.

    Without keys only a loopback address may be listened on, unless `anonymous` is true. `origins`,
    when given, are the only values a browser's Origin may have.
    """

    keys: dict[str, Annotated[str, Meta(min_length=1)]] = {}
    anonymous: bool = False
    origins: tuple[str, ...] = ()


class LimitsConfig(_Section, frozen=True, kw_only=True):
    """What one socket may do; announced in `ready`."""

    contexts: Annotated[int, Meta(ge=1, le=1024)] = 32
    text_chars: Positive = 20_000
    message_bytes: Annotated[int, Meta(ge=256)] = 65_536
    idle_seconds: Seconds = 900.0
    session_seconds: Seconds = 86_400.0
    context_idle_seconds: Seconds = 30.0


class LogConfig(_Section, frozen=True, kw_only=True):
    """Structured logs go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class Config(_Section, frozen=True, kw_only=True):
    """Everything."""

    engine: EngineConfig = EngineConfig()
    codec: CodecConfig = CodecConfig()
    server: ServerConfig = ServerConfig()
    auth: AuthConfig = AuthConfig()
    limits: LimitsConfig = LimitsConfig()
    log: LogConfig = LogConfig()


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Iterable[str] = (),
) -> Config:
    """Merge the three sources, later ones winning. `flags` are `section.key=value` strings.

    Raises `StartupError` with one line that names the key and what to do.
    """
    merged: dict[str, Any] = {}
    if file is not None:
        _merge(merged, _read_toml(file))
    for name, value in sorted((environment or {}).items()):
        if name.startswith(ENVIRONMENT_PREFIX) and not _SERVICE_LINK.match(name):
            path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            _merge(merged, _nested(path, value))
    for flag in flags:
        key, separator, value = flag.partition("=")
        if not separator:
            raise StartupError(f"cannot read the setting {flag!r}; write section.key=value")
        _merge(merged, _nested(key.strip().split("."), value))
    return _convert(merged, Config, where="")


_T = TypeVar("_T", bound=msgspec.Struct)


def read_options(options: Mapping[str, Any], schema: type[_T], where: str) -> _T:
    """Read a named part's own options; raises `StartupError` like `load`."""
    return _convert(dict(options), schema, where=where)


def load_part(package: str, name: str, opener: str, *, extra: str) -> Any:
    """Import the part that the configuration names and return its function `opener`.

    `name` is a module of `package`, or a dotted name. Raises `StartupError` that says which name or
    which package is missing.
    """
    module_name = name if "." in name else f"{package}.{name}"
    kind = package.rpartition(".")[2]
    if not all(part.isidentifier() for part in name.split(".")):
        raise StartupError(f"{name!r} cannot be the name of a module; name the {kind} differently")
    try:
        return getattr(importlib.import_module(module_name), opener)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == module_name or module_name.startswith(f"{missing}."):
            raise StartupError(_no_such_part(package, name, opener)) from error
        how = f"pip install {missing}" if "." in name else f"pip install 'orpheus-ws[{extra}]'"
        raise StartupError(f"{kind} {name!r} needs the package {missing!r}: {how}") from error
    except ImportError as error:
        raise StartupError(
            f"{kind} {name!r} cannot be imported; try: python -c 'import {module_name}'"
        ) from error
    except AttributeError as error:
        raise StartupError(_no_such_part(package, name, opener)) from error


def _no_such_part(package: str, name: str, opener: str) -> str:
    """Say that there is no such part, and which there are."""
    folder = Path(__file__).parent.joinpath(*package.split(".")[1:])
    known = [
        file.stem
        for file in sorted(folder.glob("[a-z]*.py"))
        if f"def {opener}(" in file.read_text(encoding="utf-8")
    ]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return (
        f"there is no {package.rpartition('.')[2]} {name!r}; the nearest is {near[0]!r}, and a "
        f"dotted name is a module of your own with {opener}"
    )


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{file} is not valid TOML: {error}") from error


def _nested(path: list[str], value: str) -> dict[str, Any]:
    nested: Any = value
    for part in reversed(path):
        nested = {part: nested}
    assert isinstance(nested, dict)
    return nested


def _merge(into: dict[str, Any], source: Mapping[str, Any]) -> None:
    for key, value in source.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _convert(values: dict[str, Any], schema: type[_T], where: str) -> _T:
    prepared = _prepare(values, schema, where)
    try:
        # Not strict: what comes from the environment and from flags is text.
        return msgspec.convert(prepared, schema, strict=False)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$.", f"`{where}." if where else "`").replace("`$", f"`{where}")
        raise StartupError(f"the configuration has a wrong value: {text}") from error


def _prepare(values: Mapping[str, Any], schema: type[msgspec.Struct], where: str) -> dict[str, Any]:
    """Check the names of the keys and split lists that came as text."""
    hints = get_type_hints(schema)
    prepared: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else key
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1, cutoff=0)
            hint = f"; the nearest is {path.removesuffix(key) + near[0]!r}" if near else ""
            raise StartupError(f"unknown configuration key {path!r}{hint}")
        kind = hints[key]
        if isinstance(kind, type) and issubclass(kind, _Section) and isinstance(value, Mapping):
            prepared[key] = _prepare(value, kind, path)
        elif get_origin(kind) is tuple and isinstance(value, str):
            if value.startswith("["):
                raise StartupError(f"write {path!r} as values with commas between them")
            prepared[key] = [item.strip() for item in value.split(",") if item.strip()]
        else:
            prepared[key] = value
    return prepared
