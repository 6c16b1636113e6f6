"""The command line. Errors of ours become one line and exit code 1."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from engine_build import plan as plans
from orpheus_ws import manifest as manifests
from orpheus_ws import tokens
from orpheus_ws.cli.exits import run
from orpheus_ws.cli.options import CONTEXT, examples
from orpheus_ws.cli.progress import advancing
from orpheus_ws.errors import StartupError
from orpheus_ws.manifest import Limits
from orpheus_ws.named_parts import install_advice
from orpheus_ws.planning.cost import TALK_SHARE, UTILISATION, Usage
from orpheus_ws.planning.memory import MAX_PROMPT_TOKENS, Request
from orpheus_ws.planning.profiles import BYTES, GPUS, GpuName, Precision
from orpheus_ws.planning.steps import HOST, Segment, Traffic, Variant

if TYPE_CHECKING:
    from engine_build.quantize import KvFormat
    from orpheus_ws.engine.checkpoint import EngineName
    from orpheus_ws.engine.checkpoint_files import Told

# Whether it can be read or written is said by who does it.
FOLDER = click.Path(path_type=Path, readable=False)
FILE = click.Path(path_type=Path, dir_okay=False)
COUNT = click.IntRange(min=1)
PRECISION = click.Choice(list(BYTES))
SHARE = click.FloatRange(min=0, max=1, min_open=True)


@click.group(
    context_settings=CONTEXT,
    epilog=examples(
        "python -m engine_build verify /models/orpheus --for trtllm",
        "python -m engine_build plan --gpu h100",
    ),
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Prepare checkpoints for the engines."""
    if os.environ.get("NO_COLOR"):
        context.color = False


@contextmanager
def _needs(extra: str) -> Iterator[None]:
    """Say which extra brings a package that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        command = click.get_current_context().command.name
        raise StartupError(
            f"`{command}` needs the package {error.name!r}: {install_advice(extra)}"
        ) from error


@contextmanager
def _reading(model: Path) -> "Iterator[Told]":
    """A bar for people while all of a model is read, which is gigabytes."""
    from orpheus_ws.engine.checkpoint_files import count_bytes

    with advancing(count_bytes(model), "reading") as told:
        yield told


def _show(wrote: str, *commands: str) -> None:
    """Say what was written, and what to do next."""
    following = ["Next:", *(f"  {command}" for command in commands)] if commands else []
    click.echo("\n".join([wrote, *following]))


@cli.command(epilog=examples("python -m engine_build tiny /tmp/tiny"))
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
    folder = shlex.quote(str(out))
    _show(
        f"Wrote {out}, which speaks noise.",
        f"python -m engine_build verify {folder}",
        f"orpheus-ws serve --engine torch --model {folder}",
    )


@cli.command(
    epilog=examples(
        "python -m engine_build quantize /models/orpheus /models/orpheus-fp8 --device cuda"
    )
)
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
    """Write an FP8 checkpoint of another one.

    It is made of the one in the directory MODEL and written into the directory OUT. It is calibrated on
    prompts with their speech: a file's, or what the model itself says.
    """
    if calibration and prompts:
        raise click.UsageError("Give --calibration or --prompts, not both.")
    with _needs("quantize"):
        from engine_build.calibration import PROMPTS
        from engine_build.quantize import write
    made = write(
        model, out, sequences=calibration, prompts=prompts or PROMPTS, kv=kv, device=device
    )
    folder = shlex.quote(str(out))
    _show(
        f"Wrote {out}, calibrated on {len(made.sequences)} sequences of {made.ids} ids, "
        f"{made.audio_ids} of them audio.",
        f"python -m engine_build verify {folder} --for trtllm",
        f"python -m engine_build manifest {folder}",
    )


@cli.command(
    epilog=examples("python -m engine_build manifest /models/orpheus-fp8 --max-batch-size 48")
)
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
    """Write manifest.json for the model in a directory.

    All of the directory MODEL is read. What was measured before is kept while the model is the same, and
    dropped with a message when not.
    """
    with _needs("torch"):
        from engine_build.manifest import make
    versions = {"tensorrt_llm": tensorrt_llm} if tensorrt_llm else {}
    names = tuple(name.strip() for name in voices.split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise StartupError(
            "give --voices names that differ, at least one, with commas between them"
        )
    with _reading(model) as told:
        made = make(model, Limits(**limits), names, versions, told)
    manifests.write(model / manifests.NAME, made.manifest)
    for note in made.notes:
        click.echo(f"engine_build: {note}", err=True)
    _show(_summary(model, made.manifest))


def _summary(model: Path, made: manifests.Manifest) -> str:
    """What a manifest that was written says."""
    limits, first, others = made.limits, made.voices[0], made.voices[1:]
    return (
        f"Wrote {model / manifests.NAME}: weights {made.quantization.weights or 'not quantised'}, "
        f"KV cache {made.quantization.kv_cache or 'as the engine is told'}; "
        f"voices {', '.join((f'{first} (the default)', *others))}; "
        f"at most {limits.max_batch_size} streams of {limits.max_prompt_tokens} + {limits.max_tokens} "
        f"ids; TensorRT-LLM {made.built_with.get('tensorrt_llm', 'not named')}."
    )


@cli.command(
    epilog=examples(
        "python -m engine_build verify /models/orpheus-fp8 --for trtllm",
        "python -m engine_build verify /models/orpheus --json",
    )
)
@click.argument("model", type=FOLDER)
@click.option(
    "--for",
    "engine",
    type=click.Choice(["torch", "trtllm"]),
    help="The engine that is to serve it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def verify(model: Path, engine: "EngineName | None", *, as_json: bool) -> None:
    """Say everything that is wrong with the model in a directory.

    All of the directory MODEL is read. The exit code is 1 if something is that an engine would stop at, or should.
    """
    with _needs("torch"):
        from engine_build import verify as verifying
    with _reading(model) as told:
        report = verifying.verify(model, engine, told)
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        for finding in report.findings:
            click.echo(f"{finding.severity}: {finding.text}", err=True)
        click.echo(f"problems: {report.problems}" if report.problems else "ok")
    if report.problems:
        sys.exit(1)


@cli.command(
    epilog=examples(
        "python -m engine_build plan --gpu h100 --price 3.0",
        "python -m engine_build plan --gpu h100-mig-3g.40gb --weights bf16 --json",
    )
)
@click.option("--gpu", required=True, type=click.Choice(list(GPUS)), help="Which GPU.")
@click.option("--kv", default="fp8", type=PRECISION, show_default=True, help="The KV cache.")
@click.option("--weights", default="fp8", type=PRECISION, show_default=True, help="The layers.")
@click.option(
    "--prompt",
    default=MAX_PROMPT_TOKENS,
    type=click.IntRange(min=1),
    show_default=True,
    help="Ids of a prompt at most.",
)
@click.option(
    "--max-tokens",
    default=tokens.MAX_TOKENS,
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
    default=TALK_SHARE,
    type=SHARE,
    show_default=True,
    help="Part of a conversation in which the agent speaks.",
)
@click.option(
    "--utilisation",
    default=UTILISATION,
    type=SHARE,
    show_default=True,
    help="Part of the sockets in use, as a mean over the hours paid for.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    *,
    as_json: bool,
) -> None:
    """Say how many streams a GPU should serve, by arithmetic.

    How many its memory should hold and how many it should keep in real time. Nothing is measured.
    """
    usage = None
    if price is not None:
        usage = Usage(price=price, talk_share=talk_share, utilisation=utilisation)
    request = Request(prompt_tokens=prompt, max_tokens=max_tokens, weights=weights, kv=kv)
    traffic = Traffic(segments=(Segment(silent_seconds=silence),) * 3)
    made = plans.make_plan(gpu, request, traffic, variant, usage)
    click.echo(plans.as_json(made) if as_json else plans.table(made))


def main() -> None:
    """Run the command line; what goes wrong is one line on standard error and an exit code."""
    sys.exit(run(cli, "python -m engine_build", "engine_build"))
