"""What several commands share: how their help looks, and the options of `serve`.

Rule: what `serve` can be told, each command that takes its configuration can be told in the same words.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

SHORTCUTS: Final = {
    "host": ("server.host", "Address to listen on."),
    "port": ("server.port", "Port; 0 takes a free one."),
    "http_port": ("server.http_port", "Port of requests over HTTP, such as OpenAI's."),
    "metrics_port": ("server.metrics_port", "Port of /metrics."),
    "engine": ("engine.name", "pocket, torch, trtllm, simulated, or a dotted module."),
    "model": ("engine.options.model", "Directory of the engine's checkpoint."),
    "capacity": ("engine.capacity", "Streams at once."),
    "capacity_override": ("engine.capacity_override", "Streams at once, whatever was measured."),
    "uncalibrated": ("engine.uncalibrated", "Streams at once where nothing was measured."),
}
"""The key of each, and what it means."""

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

Command = TypeVar("Command", bound=Callable[..., Any])


def examples(*lines: str) -> str:
    """The end of a command's help. Each line is a command as it may be typed."""
    # Click fills paragraphs, but for those that begin with this.
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def configured(*shortcuts: str) -> Callable[[Command], Command]:
    """`--config`, the shortcuts of these names, and `--set`."""

    def decorate(command: Command) -> Command:
        path = click.Path(path_type=Path, dir_okay=False)
        options = [click.option("--config", "file", type=path, help="TOML file.")]
        for name in shortcuts:
            key, meaning = SHORTCUTS[name]
            options.append(
                click.option(f"--{name.replace('_', '-')}", name, help=f"{meaning}  [{key}]")
            )
        any_key = "Any configuration key."
        options.append(
            click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=any_key)
        )
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def flags(settings: Iterable[str], shortcuts: Mapping[str, str | None]) -> list[str]:
    """What was given, as `KEY=VALUE`; what `--set` says wins."""
    given = [
        f"{SHORTCUTS[name][0]}={value}" for name, value in shortcuts.items() if value is not None
    ]
    return [*given, *settings]
