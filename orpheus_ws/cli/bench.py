"""`orpheus-ws bench …`: what parts of the program cost on this machine."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from orpheus_ws.cli.files import expect_writable, write
from orpheus_ws.cli.options import Command, examples
from orpheus_ws.cli.progress import parts
from orpheus_ws.errors import BenchFailed, StartupError
from orpheus_ws.named_parts import install_advice

if TYPE_CHECKING:
    from orpheus_ws.bench import codec as codec_bench
    from orpheus_ws.bench.codec_queue import Result as QueueResult
    from orpheus_ws.bench.gpu_check import Report
    from orpheus_ws.bench.storm import Result as StormResult


@click.group(
    short_help="Measure parts of the program.",
    epilog=examples("orpheus-ws bench gateway", "orpheus-ws bench codec --json"),
)
def bench() -> None:
    """Measure parts of the program on this machine, each against a baseline in the same run."""


def _seconds_option(default: float, most: float) -> Callable[[Command], Command]:
    kind = click.FloatRange(1, most)
    return click.option(
        "--seconds", default=default, show_default=True, type=kind, help="For each part."
    )


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")


@contextlib.contextmanager
def _needing(extra: str) -> Iterator[None]:
    """What is imported here may not be installed; say how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise StartupError(
            f"this benchmark needs the package {error.name!r}: {install_advice(extra)}"
        ) from error


@bench.command(
    short_help="What the gateway costs for each frame.",
    epilog=examples("orpheus-ws bench gateway --streams 100 --seconds 10 --lead-ms 1000"),
)
@click.option("--streams", default=300, show_default=True, type=click.IntRange(1, 10_000))
@_seconds_option(20.0, most=3600)
@click.option(
    "--lead-ms",
    default=0,
    show_default=True,
    type=click.IntRange(0, 10_000),
    help="Also measure frames sent in groups once a context has so much lead.",
)
@as_json_option
def gateway(streams: int, seconds: float, lead_ms: int, *, as_json: bool) -> None:
    """What the gateway costs for each frame of audio, beside bare WebSocket sends.

    \b
    floor         bare sends of the same frames by the WebSocket library
    free codec    the gateway, decoding at no cost on the event loop
    codec thread  the gateway, decoding on the codec's thread, where it sleeps 4 ms a step
    timed         the same without the sleep, timed from the engine's step to the transport
    grouped       with --lead-ms: frames of contexts with so much lead leave several at a time

    Engine and codec are simulated, the engine at 1.05 times real time (1.5 for the last part);
    sockets, client processes, threads and CPU time are real. It takes about four seconds more for
    each part. Needs the extra `bench`.
    """
    with _needing("bench"):
        from orpheus_ws.bench.gateway import measure

    with parts(5 if lead_ms else 4) as progress:
        result = measure(streams, seconds, lead_ms, progress)
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
        return
    click.echo(
        f"{streams} streams, {seconds:g} s each part, prebuffer {result.prebuffer_ms:g} ms, switch "
        f"interval {result.switch_interval * 1000:g} ms; simulated: {result.simulated}"
    )
    click.echo("part          µs/frame  × floor  frames/msg  lateness p50     p99 ms  underruns")
    for part in result.parts:
        click.echo(
            f"{part.name:12}{part.cpu_us_per_frame:10.1f}{part.times_floor or 1:9.2f}"
            f"{part.frames_per_message:12.2f}{part.lateness_ms_p50:14.2f}"
            f"{part.lateness_ms_p99:11.2f}{part.underruns:11}"
        )
    for part in result.parts:
        if part.gateway_ms_p99 is not None:
            click.echo(
                f"from the engine to the transport: p50 {part.gateway_ms_p50:g} ms, "
                f"p99 {part.gateway_ms_p99:g} ms"
            )


@bench.command(
    short_help="What a storm of connections does to those who are served.",
    epilog=examples("orpheus-ws bench storm --only health --seconds 3"),
)
@click.option("--speakers", default=20, show_default=True, type=click.IntRange(1, 1000))
@click.option(
    "--per-second",
    default=2000,
    show_default=True,
    type=click.IntRange(1, 5000),
    help="Connections attempted.",
)
@_seconds_option(10.0, most=60)
@click.option("--only", default="", help="One storm, by its name; otherwise all.")
@as_json_option
def storm(speakers: int, per_second: int, seconds: float, only: str, *, as_json: bool) -> None:
    """What a storm of connections does to those who are being spoken to, and to who wants to come in.

    \b
    bare         the WebSocket library alone refuses the storm
    calm         the speakers without a storm
    no key       upgrades without a key          wrong key    and with a wrong one
    full         a full server without keys      come and go  handshakes that succeed, and leave
    silent       connections that say nothing    health       questions whether it is alive
    http         the port of requests            metrics      the port of the metrics

    Engine and codec are simulated, the engine at 1.05 times real time; everything else is real, and
    on 127.0.0.1 only. Needs the extra `bench`.
    """
    with _needing("bench"):
        from orpheus_ws.bench.storm import STORMS, measure

    names = [storm.name for storm in STORMS]
    if only not in ("", *names):
        raise click.UsageError(f"there is no storm {only!r}; there are {', '.join(names)}")
    with parts(3 if only else 2 + len(STORMS)) as progress:
        result = measure(speakers, per_second, seconds, only, progress)
    click.echo(msgspec.json.encode(result).decode() if as_json else _storm_table(result))


def _storm_table(result: "StormResult") -> str:
    head = f"{result.speakers} speakers, {result.per_second} attempts/s for {result.seconds:g} s"
    bare = f"a refusal by the library alone: {result.bare_us_per_refusal:g} µs"
    columns = "attempts/s  µs/answer  core  underruns  late p99  worst ms  turn p99  worst ms  visits  median  worst s"
    lines = [f"{head}; simulated: {result.simulated}; {bare}", f"storm         {columns}"]
    lines += [
        f"{part.name:12}{part.attempts_per_second:12.0f}{part.cpu_us_per_answer or 0:11.1f}"
        f"{part.cpu_share:6.0%}{part.underruns:11}{part.lateness_ms_p99:10.2f}"
        f"{part.lateness_ms_worst:10.2f}{part.turn_cpu_ms_p99:10.2f}"
        f"{part.turn_cpu_ms_worst:10.2f}{part.visits:8}{part.visit_seconds_median or 0:8.3f}"
        f"{part.visit_seconds_worst or 0:9.3f}  {part.answers}"
        for part in (result.calm, *result.storms)
    ]
    return "\n".join(lines)


@bench.command(
    short_help="What decoding costs on this CPU.",
    epilog=examples("orpheus-ws bench codec --streams 1 --streams 16 --threads 2"),
)
@click.option(
    "--streams",
    multiple=True,
    default=(1, 8, 32),
    show_default=True,
    type=click.IntRange(1, 1024),
    help="Streams in a step; may be given several times.",
)
@click.option(
    "--seconds",
    default=8.0,
    show_default=True,
    type=click.FloatRange(0, 3600),
    help="For each model and number of streams; three steps of each decoder are always made.",
)
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1, 1024))
@as_json_option
def codec(streams: tuple[int, ...], seconds: float, threads: int, *, as_json: bool) -> None:
    """What decoding costs on this CPU: the sliding window, the exact window, and streaming."""
    with _needing("codec"):
        from orpheus_ws.bench.codec import measure

    with parts(2 * len(streams)) as progress:
        result = measure(streams, seconds, threads, progress)
    click.echo(msgspec.json.encode(result).decode() if as_json else _codec_table(result))


def _codec_table(result: "codec_bench.Result") -> str:
    machine = f"torch {result.torch}, load average before: {result.load_average:g}"
    lines = [f"threads: {result.threads}, {machine}"]
    of = ("", 0)
    for figure in result.figures:
        if of != (figure.weights, figure.streams):
            of = (figure.weights, figure.streams)
            head = f"{figure.weights}, {figure.streams} streams"
            lines += ["", f"{head:42} ms/step   audio s/core s   × sliding window"]
        name = f"{figure.decoder}, {figure.frames} frames a step"
        lines.append(
            f"{name:38} {figure.ms_per_step:11.2f} {figure.audio_seconds_per_core_second:16.2f} "
            f"{figure.times_sliding_window:18.2f}"
        )
    return "\n".join(lines)


@bench.command(
    short_help="Simulate the codec's queue.",
    epilog=examples("orpheus-ws bench codec-queue --step-ms 4 --plot queue.svg"),
)
@click.option("--step-ms", default=2.0, show_default=True, type=click.FloatRange(0.001, 1000))
@click.option("--stream-ms", default=0.02, show_default=True, type=click.FloatRange(0, 1000))
@click.option("--arrivals", default=200_000, show_default=True, type=click.IntRange(1, 10_000_000))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Also draw them, as an SVG."
)
@as_json_option
def codec_queue(
    step_ms: float, stream_ms: float, arrivals: int, seed: int, plot: Path | None, *, as_json: bool
) -> None:
    """Simulate the codec's queue: batching in flight and in dynamic batches.

    A simulation in virtual time: a step is said to take --step-ms and --stream-ms for each stream,
    as a GPU might. Only the policies are real.
    """
    from orpheus_ws.bench.codec_queue import Cost, measure
    from orpheus_ws.bench.queue_plot import draw

    result = measure(arrivals, seed, Cost(step_ms / 1000, stream_ms / 1000))
    click.echo(msgspec.json.encode(result).decode() if as_json else _queue_table(result))
    if plot is not None:
        write(plot, draw(result).encode())


def _queue_table(result: "QueueResult") -> str:
    cost = f"a step takes {result.step_ms:g} ms + {result.stream_ms:g} ms a stream"
    lines = [
        f"simulated: {result.simulated}; {cost}",
        "load   policy      added latency p50     p99   streams/step   device busy",
    ]
    lines += [
        f"{point.load:4.0%}   {point.policy:10} {point.added_ms_p50:15.2f} ms "
        f"{point.added_ms_p99:5.2f} ms {point.streams_per_step:11.1f} {point.busy:13.0%}"
        for point in result.points
    ]
    return "\n".join(lines)


@bench.command(
    short_help="Check and time the codec on a GPU.",
    epilog=examples("orpheus-ws bench gpu-check --out gpu-check.json"),
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="JSON file to write.")
@as_json_option
def gpu_check(out: Path | None, *, as_json: bool) -> None:
    """Check the codec on a CUDA device and time it there; without one, on the CPU, and slowly.

    The exit code is 1 if what is heard is not exact.
    """
    if out is not None:
        expect_writable(out)
    with _needing("codec"):
        from orpheus_ws.bench.gpu_check import measure

    with parts(5) as progress:
        report = measure(progress)
    if out is not None:
        write(out, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    click.echo(msgspec.json.encode(report).decode() if as_json else _report_table(report))
    if not report.passed:
        raise BenchFailed(f"the codec is not exact on {report.device}: see the checks above")


def _report_table(report: "Report") -> str:
    lines = [f"device: {report.device} ({report.device_name}), torch {report.torch}"]
    if report.device == "cpu":
        lines.append("There is no CUDA device: none of these figures is a GPU's.")
    for check in report.checks:
        verdict = "ok" if check.passed else "FAILED"
        lines.append(f"{verdict:7} {check.claim} (largest error: {check.largest_error})")
    for build in report.builds:
        lines.append(f"{build.dtype}: prepared in {build.prepare_seconds:g} s")
        lines += [
            f"  {bucket.streams:4} streams × {bucket.frames} frames: {bucket.ms_p50:9.3f} ms, p99 "
            f"{bucket.ms_p99:9.3f} ms, {bucket.audio_seconds_per_second:9.2f} audio s/s"
            for bucket in build.buckets
        ]
    lines += [
        f"{entry.dtype}, {entry.weights}: {entry.signal_to_error_db} dB above its error"
        for entry in report.precision
    ]
    lines += [
        f"early after {early.early_frames} frames: {early.samples} samples in {early.ms:.3f} ms"
        for early in report.early
    ]
    return "\n".join(lines)
