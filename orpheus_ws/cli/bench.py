"""`orpheus-ws bench …`: what parts of the program cost on this machine."""

import click
import msgspec

from orpheus_ws.errors import StartupError


@click.group()
def bench() -> None:
    """Measure parts of the program on this machine, each against a baseline in the same run."""


@bench.command()
@click.option("--streams", default=300, show_default=True, type=click.IntRange(1, 10_000))
@click.option(
    "--seconds",
    default=20.0,
    show_default=True,
    type=click.FloatRange(1, 3600),
    help="For each part.",
)
@click.option(
    "--lead-ms",
    default=0,
    show_default=True,
    type=click.IntRange(0, 10_000),
    help="Also measure frames sent in groups once a context has so much lead.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def gateway(streams: int, seconds: float, lead_ms: int, *, as_json: bool) -> None:
    """What the gateway costs for each frame of audio, beside bare WebSocket sends.

    Engine and codec are simulated; sockets, clients, threads and CPU time are real.
    """
    try:
        from orpheus_ws.bench.gateway import measure
    except ModuleNotFoundError as error:
        raise StartupError(
            f"the benchmarks need the package {error.name!r}: pip install 'orpheus-ws[bench]'"
        ) from error

    result = measure(streams, seconds, lead_ms, lambda part: click.echo(f"{part} …", err=True))
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
