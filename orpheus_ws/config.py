"""Configuration: frozen, nested, from a TOML file, the environment and flags, in that order.

Rule: what the program can be told is written here once, with its default and its meaning (the text
below a field; `docs/configuration.md` is made from them). Environment variables are `ORPHEUS_WS_`
and the path with `__` between its parts (`ORPHEUS_WS_SERVER__PORT=9000`); flags are
`--set server.port=9000`. Parts that are chosen by name (`engine.name`, `codec.name`) read their own
`options` with `settings.read_options`.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from orpheus_ws.errors import StartupError
from orpheus_ws.settings import (
    ENVIRONMENT,
    ENVIRONMENT_PREFIX,
    FLAGS,
    Section,
    Source,
    check_names,
    convert,
    merge,
    nested,
    read_toml,
)

# What Kubernetes sets in every pod beside a Service that is called orpheus-ws.
_SERVICE_LINK = re.compile(r"ORPHEUS_WS_(SERVICE_(HOST|PORT)|PORT)(_\w+)?\Z")

Port = Annotated[int, Meta(ge=0, le=65_535)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]


class EngineConfig(Section, frozen=True, kw_only=True):
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
    options: dict[str, Any] = field(default_factory=dict)
    """What this engine alone can be told, below."""


class CodecConfig(Section, frozen=True, kw_only=True):
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
    options: dict[str, Any] = field(default_factory=dict)
    """What this decoder alone can be told, below."""


class ServerConfig(Section, frozen=True, kw_only=True):
    """Where to listen, and how long to wait for what."""

    host: str = "127.0.0.1"
    """Address or name to listen on."""
    port: Port = 8765
    """Port of the WebSocket and of the health checks; 0 takes a free one."""
    http_port: Port | None = None
    """Port of requests over HTTP, such as OpenAI's; 0 takes a free one. Unset: there are none. It
    needs the extra `http`."""
    tls_certificate: str = ""
    """File with the certificate of this server and those between it and its authority, in PEM. With it
    `server.port` and `server.http_port` speak TLS, 1.2 at least, and nothing else."""
    tls_key: str = ""
    """File with the certificate's private key, in PEM and without a passphrase. Both files are read
    again when they change, and on SIGHUP."""
    metrics_host: str = "127.0.0.1"
    """Address or name that serves `/metrics`."""
    metrics_port: Port = 9464
    """Port of `/metrics`; 0 takes a free one."""
    drain_seconds: Seconds = 30.0
    """How long open utterances may take to finish once the server is told to stop."""
    handshake_seconds: Seconds = 10.0
    """How long a client may take to open a socket, and to send the head and the body of a request."""
    handshakes_per_second: Positive = 200
    """Sockets and requests over HTTP that are dealt with in a second, whoever asks. What is more
    waits its turn, those with a key first, or is refused with 503 `busy`."""
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
    page: bool = True
    """A page at `/` of `server.port`, with which people hear the server and see where its time goes."""
    group_lead_ms: Annotated[int, Meta(ge=0, le=10_000)] = 1000
    """With so much audio in hand, a listener gets several frames in one message; 0: never."""


class AuthConfig(Section, frozen=True, kw_only=True):
    """Who may connect. Without keys, only a loopback address may be listened on."""

    keys: dict[str, Annotated[str, Meta(min_length=1)]] = field(default_factory=dict)
    """The key of each name, or `sha256:` and the hash of it, as `orpheus-ws key new` prints it. Names
    may be logged, keys never are."""
    file: str = ""
    """TOML file with a table for each name: `keys`, a list, and the limits below where others are to
    hold. It is read again when it changes, and on SIGHUP."""
    sockets: Positive | None = None
    """Sockets, and requests that are being answered, of one name at once. Unset: no limit but the
    server's, as for the two below. Without keys everybody has one name."""
    contexts: Positive | None = None
    """Utterances open at once on all sockets of one name."""
    text_per_minute: Positive | None = None
    """Characters of text of one name in a minute; so many at once after a minute without."""
    anonymous: bool = False
    """Let anybody in, on any address."""
    origins: tuple[str, ...] = ()
    """The only values that a browser's Origin may have, such as `https://app.example`. Empty: any
    page that knows a key, and without keys a page of the same host, which must be a loopback address
    unless `auth.anonymous`."""

    def __repr__(self) -> str:
        """Nothing of the keys."""
        return "AuthConfig(...)"


class LimitsConfig(Section, frozen=True, kw_only=True):
    """What one socket may do; announced in `ready`, but for the last."""

    contexts: Annotated[int, Meta(ge=1, le=1024)] = 32
    """Utterances open at once."""
    text_chars: Positive = 20_000
    """Characters of an utterance that wait to be spoken."""
    message_bytes: Annotated[int, Meta(ge=256)] = 65_536
    """Length of one message, or of the body of a request."""
    messages_per_second: Positive = 500
    """Frames of any kind; four times as many may come at once. A socket that sends more is read from
    no faster."""
    idle_seconds: Seconds = 900.0
    """A socket without an open utterance is closed after so long."""
    session_seconds: Seconds = 86_400.0
    """A socket as old as this is closed between two utterances."""
    context_idle_seconds: Seconds = 30.0
    """An utterance without text for so long ends if another waits behind it."""


class LogConfig(Section, frozen=True, kw_only=True):
    """Structured logs, one JSON object a line, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged."""


class TracingConfig(Section, frozen=True, kw_only=True):
    """OpenTelemetry, for which the extra `otel` must be installed."""

    endpoint: Annotated[str, Meta(min_length=1)] | None = None
    """The collector that gets a trace of every utterance by OTLP over HTTP, such as
    `http://127.0.0.1:4318`; `/v1/traces` is added. Unset: none. OpenTelemetry's own variables
    (`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS` and so on) say the rest."""


class Config(Section, frozen=True, kw_only=True):
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

    def take(values: dict[str, Any], source: Source) -> None:
        check_names(values, Config, source)
        merge(merged, values)

    if file is not None:
        take(read_toml(file), Source(f" in {file}"))
    for name, value in sorted((environment or {}).items()):
        if name.startswith(ENVIRONMENT_PREFIX) and not _SERVICE_LINK.match(name):
            path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            take(nested(path, value), ENVIRONMENT)
    for flag in flags:
        key, separator, value = flag.partition("=")
        if not separator:
            raise StartupError(f"cannot read the setting {flag!r}; write section.key=value")
        take(nested(key.strip().split("."), value), FLAGS)
    return convert(merged, Config)
