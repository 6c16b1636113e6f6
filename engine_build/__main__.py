"""`python -m engine_build`: the command line. Errors of ours become one line and exit code 1."""

import sys
from pathlib import Path

import click

from orpheus_ws.errors import OrpheusError, StartupError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Prepare checkpoints for the engines."""


@cli.command()
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--seed", default=0, show_default=True, help="Of the random weights.")
def tiny(out: Path, seed: int) -> None:
    """Write a tiny checkpoint into the directory OUT.

    It has Orpheus's format and ids and random weights: it speaks noise, the longer the text the more.
    """
    try:
        from engine_build.tiny import write
    except ModuleNotFoundError as error:
        raise StartupError(
            f"`tiny` needs the package {error.name!r}: pip install 'orpheus-ws[torch]'"
        ) from error
    try:
        write(out, seed=seed)
    except OSError as error:
        raise StartupError(f"cannot write {out}: {error.strerror}") from error


if __name__ == "__main__":
    try:
        cli(prog_name="python -m engine_build")
    except OrpheusError as error:
        click.echo(f"engine_build: {error}", err=True)
        sys.exit(1)
