"""`python -m engine_build`: the command line. Errors of ours become one line and exit code 1."""

import sys
from pathlib import Path
from typing import Literal

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


@cli.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="JSON Lines: `ids`, or `text`, `voice` and `audio` ids.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="Texts, one a line, that the model speaks to be calibrated on.  [default: a list of ours]",
)
@click.option(
    "--kv",
    type=click.Choice(["fp8", "bf16"]),
    default="fp8",
    show_default=True,
    help="What the engine keeps keys and values in.",
)
@click.option("--device", default="cpu", show_default=True, help="What torch calls it.")
def quantize(
    model: Path,
    out: Path,
    calibration: Path | None,
    prompts: Path | None,
    kv: Literal["fp8", "bf16"],
    device: str,
) -> None:
    """Write an FP8 checkpoint of the one in the directory MODEL into the directory OUT.

    It is calibrated on prompts with their speech: a file's, or what the model itself says.
    """
    if calibration and prompts:
        raise click.UsageError("Give --calibration or --prompts, not both.")
    try:
        from engine_build.calibration import PROMPTS
        from engine_build.quantize import write
    except ModuleNotFoundError as error:
        raise StartupError(
            f"`quantize` needs the package {error.name!r}: pip install 'orpheus-ws[quantize]'"
        ) from error
    made = write(
        model, out, sequences=calibration, prompts=prompts or PROMPTS, kv=kv, device=device
    )
    click.echo(
        f"Wrote {out}, calibrated on {len(made.sequences)} sequences of {made.ids} ids, "
        f"{made.audio_ids} of them audio.\n"
        "Next, check it and describe it to the server:\n"
        f"  python -m engine_build verify {out}\n"
        f"  python -m engine_build manifest {out}"
    )


if __name__ == "__main__":
    try:
        cli(prog_name="python -m engine_build")
    except OrpheusError as error:
        click.echo(f"engine_build: {error}", err=True)
        sys.exit(1)
