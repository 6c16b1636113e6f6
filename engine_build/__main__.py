"""`python -m engine_build`: the command line. Errors of ours become one line and exit code 1."""

import sys
from pathlib import Path

import click

from engine_build.plan import Usage, as_json, make_plan, table
from orpheus_ws.errors import OrpheusError, StartupError
from orpheus_ws.planning.memory import MAX_PROMPT_TOKENS, Request
from orpheus_ws.planning.profiles import BYTES, GPUS, GpuName, Precision
from orpheus_ws.planning.steps import HOST, Segment, Traffic, Variant
from orpheus_ws.tokens import MAX_TOKENS

_PRECISION = click.Choice(list(BYTES))
_SHARE = click.FloatRange(min=0, max=1, min_open=True)


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
@click.option("--gpu", required=True, type=click.Choice(list(GPUS)), help="Which GPU.")
@click.option("--kv", default="fp8", type=_PRECISION, show_default=True, help="The KV cache.")
@click.option("--weights", default="fp8", type=_PRECISION, show_default=True, help="The layers.")
@click.option(
    "--prompt",
    default=MAX_PROMPT_TOKENS,
    type=click.IntRange(min=1),
    show_default=True,
    help="Ids of a prompt at most.",
)
@click.option(
    "--max-tokens",
    default=MAX_TOKENS,
    type=click.IntRange(min=1),
    show_default=True,
    help="Ids of a segment at most.",
)
@click.option(
    "--variant",
    default="floor",
    type=click.Choice(list(HOST)),
    show_default=True,
    help="What the host adds: nothing, as after work on the system, as usual.",
)
@click.option(
    "--silence",
    default=Segment().silent_seconds,
    type=click.FloatRange(min=0, max=2),
    show_default=True,
    help="Seconds of near-silence that a segment begins with.",
)
@click.option("--price", type=click.FloatRange(min=0), help="Of the GPU for an hour; gives costs.")
@click.option(
    "--talk-share",
    default=0.4,
    type=_SHARE,
    show_default=True,
    help="Part of a conversation in which the agent speaks.",
)
@click.option(
    "--utilisation",
    default=0.6,
    type=_SHARE,
    show_default=True,
    help="Part of the sockets in use, as a mean over the hours paid for.",
)
@click.option("--json", "as_program", is_flag=True, help="Print JSON.")
def plan(
    gpu: GpuName,
    kv: Precision,
    weights: Precision,
    prompt: int,
    max_tokens: int,
    variant: Variant,
    silence: float,
    price: float | None,
    talk_share: float,
    utilisation: float,
    as_program: bool,
) -> None:
    """Say how many streams a GPU should hold and keep in real time: arithmetic, not a measurement."""
    usage = None
    if price is not None:
        usage = Usage(price=price, talk_share=talk_share, utilisation=utilisation)
    request = Request(prompt_tokens=prompt, max_tokens=max_tokens, weights=weights, kv=kv)
    traffic = Traffic(segments=(Segment(silent_seconds=silence),) * 3)
    made = make_plan(gpu, request, traffic, variant, usage)
    click.echo(as_json(made) if as_program else table(made))


if __name__ == "__main__":
    try:
        cli(prog_name="python -m engine_build")
    except OrpheusError as error:
        click.echo(f"engine_build: {error}", err=True)
        sys.exit(1)
