"""Writes the pages of this folder that say what the code says: `make docs`.

Rule: a page is made of what is registered, declared and written below the fields, so whoever adds a
metric or a key describes it there and nowhere else. `tests/test_reference.py` and
`tests/voice/test_reference.py` fail while a page is not what this program makes.
"""

import ast
import importlib
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from docs.capacity_tables import capacity_page
from docs.cli_pages import cli_page
from orpheus_ws.audio import AUDIBLE, Player
from orpheus_ws.config import Config
from orpheus_ws.engine import EngineStatistics
from orpheus_ws.metrics import Metrics
from orpheus_ws.named_parts import known_parts
from orpheus_ws.settings import ENVIRONMENT_PREFIX, describe

FOLDER: Final = Path(__file__).parent
PARTS: Final = {"engine": "open_engine", "codec": "open_decoder"}
"""The sections that name a module, and the function that opens it."""

METRICS_INTRODUCTION: Final = """\
<!-- Made by `make docs` from orpheus_ws/metrics.py: change it there. -->

# Metrics

`/metrics` is served for Prometheus on its own port (`server.metrics_host` and `server.metrics_port`).
Durations are in seconds. No label carries text of a user or an id.

- **t0** of an utterance is the arrival of the message that completed its first segment. Latencies
  start there unless they say otherwise; the histograms of an utterance are filled at its first byte,
  at the end of each segment and at its terminal message.
- **Audible** is a sample of at least {audible:g} % of full scale; silence before it does not count as
  audio.
- **The virtual player** counts underruns as a listener would hear them. It starts {prebuffer:g} ms
  (the prebuffer) after the first chunk was sent and plays at the sample rate. An underrun is
  starvation of more than {tolerance:g} ms before the terminal message, joins between segments included.
- **`orpheus_engine_*`** is what the engine says of itself; what it does not know is not there.
- **`process_*`** is what Prometheus's own client reads of the process, on Linux.
- **The real-time factor** is audio seconds over the wall seconds that generating them took: more than
  1 is faster than real time.
"""

CONFIGURATION_INTRODUCTION: Final = """\
<!-- Made by `make docs` from orpheus_ws/config.py and the `Options` of engines and codecs: change
it there. -->

# Configuration

Three sources, later ones winning: a TOML file (`orpheus-ws serve --config FILE`), environment
variables, and options (`--set server.port=9000`, and the shortcuts of `orpheus-ws serve --help`). An
unknown key is an error that names the nearest known one, a value that does not fit one that says what
the key takes. `orpheus-ws doctor` takes the same sources and says what would keep the server from
starting.

```toml
[server]
port = 9000        # or {prefix}SERVER__PORT=9000, or --set server.port=9000
```

The name of a variable is `{prefix}` and the key in capitals, with two underscores for a dot. In
variables and in `--set`, the items of a list have commas between them, and what follows the last dot
of a key in a table is a name of its own (`{prefix}AUTH__KEYS__ALICE=secret` makes the key `alice`).
"""


class Instrument(NamedTuple):
    """One line of the metrics page."""

    name: str
    kind: str
    labels: tuple[str, ...]
    buckets: tuple[str, ...]
    meaning: str


class _Registry(CollectorRegistry):
    """Remembers what is registered, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self.collectors.append(collector)


def instruments() -> Iterator[Instrument]:
    """Everything that a server registers, as it is scraped."""
    registry = _Registry()
    metrics = Metrics(registry)
    none_yet = EngineStatistics(*[0] * len(EngineStatistics._fields))
    metrics.watch_engine(lambda: none_yet)
    metrics.watch_codec(lambda: 0.0, lambda: 0.0)
    metrics.watch_turns(lambda: 0.0, lambda: 0.0)
    metrics.watch_parts(engine=lambda: True, codec=lambda: True)
    metrics.watch_process(lambda: 0.0)
    metrics.watch_loop(lambda: 0.0, lambda: 0.0)
    engine = {f"orpheus_engine_{field}": text for field, text in meanings(EngineStatistics).items()}
    for collector in registry.collectors:
        # What has labels shows nothing before it has been used; and only it itself knows their names.
        if names := getattr(collector, "_labelnames", ()):
            collector.labels(*names)  # type: ignore[attr-defined]
        for family in collector.collect():
            yield _instrument(family, engine)


def _instrument(family: Metric, engine: dict[str, str]) -> Instrument:
    labels = {label: None for sample in family.samples for label in sample.labels}
    bounds = {s.labels["le"]: None for s in family.samples if "le" in s.labels}
    return Instrument(
        name=family.name + ("_total" if family.type == "counter" else ""),
        kind=family.type,
        labels=tuple(label for label in labels if label != "le"),
        buckets=tuple(f"{float(bound):g}" for bound in bounds if bound != "+Inf"),
        meaning=engine.get(family.name, family.documentation),
    )


def metrics_page() -> str:
    """`docs/metrics.md`."""
    prebuffer: float = inspect.signature(Player).parameters["prebuffer"].default
    page = [
        METRICS_INTRODUCTION.format(
            audible=AUDIBLE * 100, prebuffer=prebuffer * 1000, tolerance=Player.TOLERANCE * 1000
        )
    ]
    found = list(instruments())
    for kind in dict.fromkeys(instrument.kind for instrument in found):
        page.append(f"## {kind.capitalize()}s\n")
        rows = [
            (_code(i.name), " ".join(map(_code, i.labels)), i.meaning)
            for i in found
            if i.kind == kind
        ]
        page.append(_table(("name", "labels", "meaning"), rows))
        if kind == "histogram":
            page.append(_buckets(found))
    return "\n".join(page)


def _buckets(found: list[Instrument]) -> str:
    """Upper bounds, once for all histograms that share them."""
    users: dict[tuple[str, ...], list[str]] = {}
    for instrument in found:
        if instrument.buckets:
            users.setdefault(instrument.buckets, []).append(instrument.name)
    lines = [
        "Each is scraped as `_bucket`, `_count` and `_sum`. The upper bounds of the buckets:\n"
    ]
    for bounds, names in users.items():
        lines.append(_item(f"{', '.join(map(_code, names))}: {', '.join(bounds)}"))
    return "\n".join(lines) + "\n"


def configuration_page() -> str:
    """`docs/configuration.md`. Imports every engine and codec."""
    page = [CONFIGURATION_INTRODUCTION.format(prefix=ENVIRONMENT_PREFIX)]
    for section, schema in Config.__annotations__.items():
        page += [f"## {_code(section)}\n", _about(schema), _keys(section, schema)]
        for part in (
            known_parts(f"orpheus_ws.{section}", PARTS[section]) if section in PARTS else ()
        ):
            module = importlib.import_module(f"orpheus_ws.{section}.{part}")
            page += [f"### `{section}.options` of {_code(part)}\n", _about(module.Options)]
            if module.Options.__struct_fields__:
                page.append(_keys(f"{section}.options", module.Options))
    return "\n".join(page)


def _keys(section: str, schema: type[msgspec.Struct]) -> str:
    """The table of a section's keys."""
    info = msgspec.inspect.type_info(schema)
    assert isinstance(info, msgspec.inspect.StructType)
    defaults, texts = schema(), meanings(schema)
    rows = []
    for field in info.fields:
        key, kind = f"{section}.{field.name}", field.type
        if isinstance(kind, msgspec.inspect.DictType):
            key, kind = f"{key}.NAME", kind.value_type
        takes = "" if isinstance(kind, msgspec.inspect.AnyType) else describe(kind)
        default = _value(getattr(defaults, field.name))
        variable = ENVIRONMENT_PREFIX + key.upper().replace(".", "__")
        rows.append((_code(key), takes, default, texts[field.name], _code(variable)))
    return _table(("key", "takes", "default", "meaning", "variable"), rows)


def meanings(schema: type) -> dict[str, str]:
    """The text below each field of a class and of ours that it extends, in one line."""
    found = {}
    for each in reversed(schema.__mro__):
        if each is schema or each.__module__.startswith("orpheus_ws."):
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
            assert isinstance(definition, ast.ClassDef)
            for field, below in itertools.pairwise(definition.body):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                    text = ast.literal_eval(below.value)
                    found[ast.unparse(field.target)] = " ".join(text.split())
    return found


def _about(schema: type) -> str:
    return inspect.cleandoc(schema.__doc__ or "") + "\n"


def _value(default: Any) -> str:
    match default:
        case None:
            return "unset"
        case "":
            return "empty"
        case bool():
            return _code(str(default).lower())
        case str() | int() | float():
            return _code(f"{default:.15g}" if isinstance(default, float) else str(default))
        case _:
            assert not default
            return "empty"


def _code(text: str) -> str:
    return f"`{text}`"


def _item(text: str) -> str:
    return textwrap.fill(
        text, 100, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
    )


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [heads, ["---" for _ in heads], *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


PAGES: Final = {
    "metrics.md": metrics_page,
    "configuration.md": configuration_page,
    "capacity.md": capacity_page,
    "cli.md": cli_page,
}


if __name__ == "__main__":
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
