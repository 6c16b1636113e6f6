"""`python -m engine_build`: the command line. Errors of ours become one line and exit code 1."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from orpheus_ws import manifest as manifests
from orpheus_ws import tokens
from orpheus_ws.errors import OrpheusError, StartupError
from orpheus_ws.manifest import Limits

if TYPE_CHECKING:
    from engine_build.quantize import KvFormat
    from orpheus_ws.engine.checkpoint import EngineName

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
COUNT = click.IntRange(min=1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Prepare checkpoints for the engines."""


@contextmanager
def _needs(extra: str) -> Iterator[None]:
    """Say which extra brings a package that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        command = click.get_current_context().command.name
        raise StartupError(
            f"`{command}` needs the package {error.name!r}: pip install 'orpheus-ws[{extra}]'"
        ) from error


@cli.command()
@click.argument("out", type=FOLDER)
@click.option("--seed", default=0, show_default=True, help="Of the random weights.")
def tiny(out: Path, seed: int) -> None:
    """Write a tiny checkpoint into the directory OUT.

    It has Orpheus's format and ids and random weights: it speaks noise, the longer the text the more.
    """
    with _needs("torch"):
        from engine_build.tiny import write
    try:
        write(out, seed=seed)
    except OSError as error:
        raise StartupError(f"cannot write {out}: {error.strerror}") from error


@cli.command()
@click.argument("model", type=FOLDER)
@click.argument("out", type=FOLDER)
@click.option(
    "--calibration",
    type=FILE,
    help="JSON Lines: `ids`, or `text`, `voice` and `audio` ids.",
)
@click.option(
    "--prompts",
    type=FILE,
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
    kv: "KvFormat",
    device: str,
) -> None:
    """Write an FP8 checkpoint of the one in the directory MODEL into the directory OUT.

    It is calibrated on prompts with their speech: a file's, or what the model itself says.
    """
    if calibration and prompts:
        raise click.UsageError("Give --calibration or --prompts, not both.")
    with _needs("quantize"):
        from engine_build.calibration import PROMPTS
        from engine_build.quantize import write
    made = write(
        model, out, sequences=calibration, prompts=prompts or PROMPTS, kv=kv, device=device
    )
    click.echo(
        f"Wrote {out}, calibrated on {len(made.sequences)} sequences of {made.ids} ids, "
        f"{made.audio_ids} of them audio.\n"
        "Next, check it and describe it to the server:\n"
        f"  python -m engine_build verify {out} --for trtllm\n"
        f"  python -m engine_build manifest {out}"
    )


@cli.command()
@click.argument("model", type=FOLDER)
@click.option(
    "--voices",
    default=",".join(tokens.VOICES),
    show_default=True,
    help="Names that the model was trained on, with commas between them; the first is the default.",
)
@click.option(
    "--max-batch-size", type=COUNT, default=256, show_default=True, help="Streams at once."
)
@click.option(
    "--max-num-tokens", type=COUNT, default=8192, show_default=True, help="Ids in one step."
)
@click.option(
    "--max-prompt-tokens", type=COUNT, default=512, show_default=True, help="Ids of a prompt."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=tokens.CODES_PER_FRAME),
    default=tokens.MAX_TOKENS,
    show_default=True,
    help="Ids of a segment's speech.",
)
@click.option(
    "--graph-size",
    "graph_sizes",
    type=COUNT,
    multiple=True,
    help="A batch size with a CUDA graph; may be given again. Without any, the engine chooses.",
)
@click.option(
    "--tensorrt-llm", metavar="VERSION", help="Version that will serve it.  [the installed one]"
)
def manifest(model: Path, voices: str, tensorrt_llm: str | None, **limits: Any) -> None:
    """Write manifest.json for the model in the directory MODEL, all of which is read.

    What was measured before is kept while the model is the same, and dropped with a message when not.
    """
    with _needs("torch"):
        from engine_build.manifest import make
    versions = {"tensorrt_llm": tensorrt_llm} if tensorrt_llm else {}
    names = tuple(name.strip() for name in voices.split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise StartupError(
            "give --voices names that differ, at least one, with commas between them"
        )
    made = make(model, Limits(**limits), names, versions)
    manifests.write(model / manifests.NAME, made.manifest)
    for note in made.notes:
        click.echo(f"engine_build: {note}", err=True)


@cli.command()
@click.argument("model", type=FOLDER)
@click.option(
    "--for",
    "engine",
    type=click.Choice(["torch", "trtllm"]),
    help="The engine that is to serve it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def verify(model: Path, engine: "EngineName | None", *, as_json: bool) -> None:
    """Say everything that is wrong with the model in the directory MODEL, all of which is read.

    The exit code is 1 if something is that an engine would stop at, or should.
    """
    with _needs("torch"):
        from engine_build import verify as verifying
    report = verifying.verify(model, engine)
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        for finding in report.findings:
            click.echo(f"{finding.severity}: {finding.text}", err=True)
        click.echo(f"problems: {report.problems}" if report.problems else "ok")
    if report.problems:
        sys.exit(1)


if __name__ == "__main__":
    try:
        cli(prog_name="python -m engine_build")
    except OrpheusError as error:
        click.echo(f"engine_build: {error}", err=True)
        sys.exit(1)
