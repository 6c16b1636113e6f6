"""Configuration: frozen, nested, from a TOML file, the environment and flags, in that order.

Rule: what the program can be told is written here once, with its default and its meaning (the text
below a field; `docs/configuration.md` is made from them). An unknown key is an error that names the
nearest known one, a wrong value one that says what the key takes; no value is repeated in an error,
for it may be a secret in the wrong place. Environment variables are `ORPHEUS_WS_` and the path with
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
from msgspec import Meta, inspect

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
    """Which engine speaks."""

    name: str = "pocket"
    """`pocket`, `torch`, `trtllm`, `simulated`, or the dotted name of a module of your own."""
    capacity: Positive | None = None
    """Streams at once, and so the sockets admitted (times `server.oversubscription`). Unset: what
    was measured on this machine, or else the engine's own number; 8 for `pocket`, 64 for
    `simulated`. Where something was measured it can be no other number, and `trtllm` takes none
    that was not measured."""
    capacity_override: Positive | None = None
    """Streams at once, whatever was measured."""
    uncalibrated: Positive | None = None
    """Streams at once where nothing was measured."""
    manifest: Annotated[str, Meta(min_length=1)] | None = None
    """File with what was measured. Unset: `manifest.json` beside the model, if there is one."""
    options: dict[str, Any] = {}
    """What this engine alone can be told, below."""


class CodecConfig(_Section, frozen=True, kw_only=True):
    """Which decoder turns frames into sound."""

    name: str = "streaming"
    """`streaming`, `window` (slower, to compare with), `simulated`, or the dotted name of a module
    of your own."""
    weights: str = "pocket"
    """`pocket`, the embedded voice, or a directory with a SNAC checkpoint."""
    slots: Positive | None = None
    """Streams it can hold: at least one more than the engine. Unset: just that, or 65 if the engine
    does not say beforehand how many it has."""
    batching: Literal["in_flight", "dynamic"] = "in_flight"
    """When a step is made. `in_flight`: as soon as something is ready; `dynamic`: when a batch is
    full or 15 ms old, to compare with."""
    max_batch: Positive = 64
    """Streams in one step at most."""
    options: dict[str, Any] = {}
    """What this decoder alone can be told, below."""


class ServerConfig(_Section, frozen=True, kw_only=True):
    """Where to listen, and how long to wait for what."""

    host: str = "127.0.0.1"
    """Address or name to listen on."""
    port: Port = 8765
    """Port of the WebSocket and of the health checks; 0 takes a free one."""
    http_port: Port | None = None
    """Port of requests over HTTP, such as OpenAI's; 0 takes a free one. Unset: there are none. It
    needs the extra `http`."""
    metrics_host: str = "127.0.0.1"
    """Address or name that serves `/metrics`."""
    metrics_port: Port = 9464
    """Port of `/metrics`; 0 takes a free one."""
    drain_seconds: Seconds = 30.0
    """How long open utterances may take to finish once the server is told to stop."""
    handshake_seconds: Seconds = 10.0
    """How long a client may take to open a socket, and to send the head and the body of a request."""
    ping_seconds: Seconds = 20.0
    """Time between pings. A missing pong closes nothing."""
    write_seconds: Seconds = 5.0
    """How long a client may read nothing while audio is due; then it is a slow consumer."""
    retry_after_seconds: Positive = 1
    """What a full server says in `Retry-After`."""
    oversubscription: Annotated[float, Meta(ge=1, le=100)] = 1.0
    """Sockets admitted for each stream that can be spoken at once. Above 1, contexts may have to wait
    for their turn."""
    max_queue_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 5000
    """How long a context may wait for its turn; then it fails with `overloaded`."""
    group_lead_ms: Annotated[int, Meta(ge=0, le=10_000)] = 1000
    """With so much audio in hand, a listener gets several frames in one message; 0: never."""


class AuthConfig(_Section, frozen=True, kw_only=True):
    """Who may connect. Without keys, only a loopback address may be listened on."""

    keys: dict[str, Annotated[str, Meta(min_length=1)]] = {}
    """The secret of each name. Names may be logged, secrets never are."""
    anonymous: bool = False
    """Let anybody in, on any address."""
    origins: tuple[str, ...] = ()
    """The only values that a browser's Origin may have, such as `https://app.example`. Empty: any
    page that knows a key, and without keys a page of the same host."""


class LimitsConfig(_Section, frozen=True, kw_only=True):
    """What one socket may do; announced in `ready`, but for the last."""

    contexts: Annotated[int, Meta(ge=1, le=1024)] = 32
    """Utterances open at once."""
    text_chars: Positive = 20_000
    """Characters of an utterance that wait to be spoken."""
    message_bytes: Annotated[int, Meta(ge=256)] = 65_536
    """Length of one message, or of the body of a request."""
    idle_seconds: Seconds = 900.0
    """A socket without an open utterance is closed after so long."""
    session_seconds: Seconds = 86_400.0
    """A socket as old as this is closed between two utterances."""
    context_idle_seconds: Seconds = 30.0
    """An utterance without text for so long ends if another waits behind it."""


class LogConfig(_Section, frozen=True, kw_only=True):
    """Structured logs, one JSON object a line, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged."""


class TracingConfig(_Section, frozen=True, kw_only=True):
    """OpenTelemetry, for which the extra `otel` must be installed."""

    endpoint: Annotated[str, Meta(min_length=1)] | None = None
    """The collector that gets a trace of every utterance by OTLP over HTTP, such as
    `http://127.0.0.1:4318`; `/v1/traces` is added. Unset: none. OpenTelemetry's own variables
    (`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS` and so on) say the rest."""


class Config(_Section, frozen=True, kw_only=True):
    """Everything, in sections."""

    engine: EngineConfig = EngineConfig()
    codec: CodecConfig = CodecConfig()
    server: ServerConfig = ServerConfig()
    auth: AuthConfig = AuthConfig()
    limits: LimitsConfig = LimitsConfig()
    log: LogConfig = LogConfig()
    tracing: TracingConfig = TracingConfig()


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
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == module_name or module_name.startswith(f"{missing}."):
            raise StartupError(_no_such_part(package, name, opener)) from error
        how = f"pip install {missing}" if "." in name else install_advice(extra)
        raise StartupError(f"{kind} {name!r} needs the package {missing!r}: {how}") from error
    except Exception as error:
        # What a library raises when it does not fit the machine is its own affair.
        raise StartupError(
            f"{kind} {name!r} cannot be imported ({type(error).__name__}); try: "
            f"python -c 'import {module_name}'"
        ) from error
    if not hasattr(module, opener):
        raise StartupError(_no_such_part(package, name, opener))
    return getattr(module, opener)


def install_advice(extra: str) -> str:
    """How to get what an extra of this package brings."""
    return f"pip install 'orpheus-ws[{extra}]', or '.[{extra}]' in a clone"


def known_parts(package: str, opener: str) -> list[str]:
    """Names of the modules of `package` that have the function `opener`; imports none of them."""
    folder = Path(__file__).parent.joinpath(*package.split(".")[1:])
    return [
        file.stem
        for file in sorted(folder.glob("[a-z]*.py"))
        if f"def {opener}(" in file.read_text(encoding="utf-8")
    ]


def _no_such_part(package: str, name: str, opener: str) -> str:
    """Say that there is no such part, and which there are."""
    there_are = ", ".join(known_parts(package, opener))
    return (
        f"there is no {package.rpartition('.')[2]} {name!r}; there are {there_are}, and a dotted "
        f"name is a module of your own with {opener}"
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


_PATH = re.compile(r"`\$\.?([^`\[]*)[^`]*`\Z")
"""Where msgspec says that an error was: a path, up to what is inside a list or a table."""


def _convert(values: dict[str, Any], schema: type[_T], where: str) -> _T:
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


def _nearest(key: str, hints: Mapping[str, Any], where: str) -> str:
    """What somebody may have meant who wrote `key` where `hints` are known."""
    if not hints:
        return f"{where!r} takes nothing here"
    # A key without its section, or with one underscore where a variable's name needs two.
    leaves = {
        spelling: f"{section}.{field}"
        for section, kind in hints.items()
        if isinstance(kind, type) and issubclass(kind, _Section)
        for field in get_type_hints(kind)
        for spelling in (field, f"{section}_{field}")
    }
    if key in leaves:
        near = leaves[key]
    else:
        (found,) = difflib.get_close_matches(key.lower(), hints, n=1, cutoff=0)
        near = f"{where}.{found}" if where else found
    variable = ENVIRONMENT_PREFIX + near.upper().replace(".", "__")
    return f"the nearest is {near!r}, in the environment {variable}"


def _prepare(values: Mapping[str, Any], schema: type[msgspec.Struct], where: str) -> dict[str, Any]:
    """Check the names of the keys and split lists that came as text."""
    hints = get_type_hints(schema)
    prepared: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else key
        if key not in hints:
            raise StartupError(f"unknown configuration key {path!r}; {_nearest(key, hints, where)}")
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
