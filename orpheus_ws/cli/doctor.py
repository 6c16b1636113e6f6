"""`orpheus-ws doctor`: what would keep `serve` from starting, or from serving well."""

import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from orpheus_ws import config as configuration
from orpheus_ws.cli.exits import Exit
from orpheus_ws.cli.options import SHORTCUTS, configured, examples, flags
from orpheus_ws.errors import StartupError

if TYPE_CHECKING:
    from orpheus_ws.doctor import Report

COLOURS: Final = {"ok": "green", "absent": None, "warning": "yellow", "problem": "red"}
MARGIN: Final = 25
"""Where what was found begins, behind the longest status and the longest name."""
NARROWEST: Final = 60


@click.command(
    short_help="Say whether serve can start, and serve well.",
    epilog=examples(
        "orpheus-ws doctor",
        "orpheus-ws doctor --config server.toml",
        "orpheus-ws doctor --engine trtllm --model /models/orpheus --json",
    ),
)
@configured(*SHORTCUTS)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def doctor(
    file: Path | None, settings: tuple[str, ...], *, as_json: bool, **shortcuts: str | None
) -> None:
    """Say what is installed, what this machine has, and whether `serve` can start.

    Takes the configuration from the same sources as `serve`, in the same words. The exit code is 1 if something was
    found that `serve` would stop at, and 0 otherwise, whatever else there is to warn of.
    """
    # Imported here, so that the client's commands need nothing that only a server needs.
    from orpheus_ws.doctor import examine

    config: configuration.Config | StartupError
    try:
        given = flags(settings, shortcuts)
        config = configuration.load(file=file, environment=os.environ, flags=given)
    except StartupError as error:
        config = error
    report = examine(config, os.environ)
    click.echo(msgspec.json.encode(report).decode() if as_json else _table(report))
    if report.problems:
        sys.exit(Exit.FAILED)


def _table(report: "Report") -> str:
    """The checks with their advice, wrapped to the terminal. Where there is none, no colours."""
    width = max(NARROWEST, shutil.get_terminal_size().columns) - MARGIN
    lines = []
    for check in report.checks:
        body = textwrap.wrap(check.found, width, break_on_hyphens=False)
        if check.advice:
            body += textwrap.wrap(f"→ {check.advice}", width, break_on_hyphens=False)
        # Colours have no width, so what has one is aligned before.
        status = click.style(f"{check.status:<9}", fg=COLOURS[check.status])
        lines.append(f"{status}{check.name.replace('_', ' '):<{MARGIN - 9}}{body[0]}")
        lines += [" " * MARGIN + line for line in body[1:]]
    found = f"{report.problems} found" if report.problems else "nothing found"
    lines += ["", f"orpheus-ws {report.version}: {found} that serve would stop at"]
    return "\n".join(lines)
