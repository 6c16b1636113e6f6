"""`orpheus-ws calibrate`: find out how many streams this machine serves in real time."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
import msgspec

from orpheus_ws import config as configuration
from orpheus_ws.cli.exits import Exit
from orpheus_ws.cli.files import expect_writable, write
from orpheus_ws.cli.options import configured, examples, flags
from orpheus_ws.errors import BenchFailed, OrpheusError
from orpheus_ws.keys import new_key

if TYPE_CHECKING:
    from orpheus_ws.calibration.probe import Attempt, Purpose
    from orpheus_ws.calibration.record import Report, Target
    from orpheus_ws.calibration.run import Calibration, Settings, Show
    from orpheus_ws.loadtest import Plan, Progress

PROBE_SECONDS: Final = 15.0
CONFIRM_SECONDS: Final = 600.0


@click.command(
    short_help="Find out how many streams this machine serves.",
    epilog=examples(
        "orpheus-ws calibrate --engine trtllm --model /models/orpheus --out calibration.json",
        "orpheus-ws calibrate --set engine.manifest=manifest.json --objective-ms 300 --max 16",
    ),
)
@configured("engine", "model")
@click.option(
    "--objective-ms",
    type=click.FloatRange(0, min_open=True),
    help="Bound on the 99th percentile of the time to first byte.  [150; 200 on a MIG slice]",
)
@click.option(
    "--max",
    "most",
    type=click.IntRange(1, 10_000),
    help="Batch of the search, and so the most streams that are tried.  [the manifest's limit, or 64]",
)
@click.option(
    "--start",
    type=click.IntRange(1, 10_000),
    help="Streams of the first probe.  [what `engine_build plan` says of the GPU, or 8]",
)
@click.option(
    "--probe-seconds",
    type=click.FloatRange(1),
    default=PROBE_SECONDS,
    show_default=True,
    help="Of full load in a probe, for each of the two kinds of traffic.",
)
@click.option(
    "--confirm-seconds",
    type=click.FloatRange(1),
    default=CONFIRM_SECONDS,
    show_default=True,
    help="Of full load in a confirmation, both kinds of traffic together.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Another one gives other turns."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="JSON file to write.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def calibrate(
    file: Path | None,
    engine: str | None,
    model: str | None,
    settings: tuple[str, ...],
    *,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how many streams stay in real time on this machine, and write it into the manifest.

    Starts `orpheus-ws serve` with the configuration, which it takes from the same sources, and puts
    loads on it that production clients might. Only a number that was confirmed is written. Ctrl-C
    prints what was measured and writes nothing into the manifest (exit code 6). Nothing else should run
    on the machine meanwhile.
    """
    # Imported here, so that the client's commands need nothing that only a server needs.
    from orpheus_ws.calibration.run import Calibration

    if out is not None:
        expect_writable(out)
    given = flags(settings, {"engine": engine, "model": model})
    config = configuration.load(file=file, environment=os.environ, flags=given)
    asked = _settings(config, _arguments(file, given), **options)
    calibration = Calibration(asked, _show())
    with _terminated_like_interrupted():
        try:
            streams = calibration.run()
        except (KeyboardInterrupt, OrpheusError) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            report = calibration.report(streams=None, written=None, interrupted=interrupted)
            _tell(report, out, as_json=as_json)
            if not interrupted:
                raise
            _leave_interrupted()
    _conclude(calibration, streams, asked.target, config.engine, out, as_json=as_json)


def _conclude(
    calibration: "Calibration",
    streams: int,
    target: "Target",
    engine: configuration.EngineConfig,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write what was confirmed, and tell it."""
    from orpheus_ws.calibration import record

    report = calibration.report(streams=streams or None, written=None, interrupted=False)
    try:
        if not streams:
            raise BenchFailed(_why_not(calibration))
        record.write(target, engine, report, calibration.voices)
        report = msgspec.structs.replace(report, written=str(target.path))
    finally:
        # Also what could not be written was measured.
        _tell(report, out, as_json=as_json)


def _leave_interrupted() -> NoReturn:
    click.echo("orpheus-ws: interrupted; nothing was written to the manifest", err=True)
    sys.exit(Exit.INTERRUPTED)


def _settings(
    config: configuration.Config,
    arguments: list[str],
    *,
    objective_ms: float | None,
    most: int | None,
    start: int | None,
    probe_seconds: float,
    confirm_seconds: float,
    seed: int,
) -> "Settings":
    from orpheus_ws.calibration.record import find_target
    from orpheus_ws.calibration.run import Settings, first_guess

    target = find_target(config.engine)
    most = most or target.batch
    return Settings(
        target=target,
        arguments=arguments,
        codec=config.codec.name,
        objective_ms=objective_ms or target.objective_ms,
        start=min(start or first_guess(target, most), most),
        most=most,
        probe_seconds=probe_seconds,
        confirm_seconds=confirm_seconds,
        seed=seed,
        # The server may know but hashes of its keys, so this one is made for the run.
        api_key=new_key()[0],
    )


def _arguments(file: Path | None, given: list[str]) -> list[str]:
    """Of `serve`, for the same configuration. The environment is its own to read."""
    named = [] if file is None else ["--config", str(file)]
    return named + [part for flag in given for part in ("--set", flag)]


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM is a Ctrl-C meanwhile."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# What is shown -----------------------------------------------------------------------------------


def _show() -> "Show":
    """Everything on standard error. On a terminal the last line is the probe under way."""
    from orpheus_ws.calibration.run import Show

    terminal = sys.stderr.isatty()
    clear = "\r\x1b[K" if terminal else ""

    def line(text: str) -> None:
        click.echo(f"{clear}{text}", err=True)

    def progress(purpose: "Purpose", plan: "Plan", seen: "Progress") -> None:
        if not terminal:
            return
        first = seen.live.first_byte_ms
        told = "" if first is None else ", first byte {} {:.0f} ms".format(*first.tail)
        of = "" if seen.of_seconds is None else f" of {seen.of_seconds:.0f}"
        text = f"{purpose} {plan.streams:>5} streams, {seen.seconds:.0f}{of} s{told}"
        click.echo(f"{clear}{text}", nl=False, err=True)

    return Show(line, progress, lambda attempt: line(_line(attempt)))


def _line(attempt: "Attempt") -> str:
    """One attempt."""
    first = {"p50": attempt.first_byte_ms_p50, "p99": attempt.first_byte_ms_p99}
    known = ", ".join(f"{name} {ms:.0f}" for name, ms in first.items() if ms is not None)
    found = [
        f"first byte {known} ms" if known else "",
        "" if attempt.slowest_stream is None else f"slowest {attempt.slowest_stream:.2f} x",
        f"{attempt.underruns} underruns",
        f"{attempt.audio_seconds / 60:.1f} min of speech in {attempt.seconds:.0f} s",
    ]
    verdict = "ok" if attempt.held else "no"
    head = f"{attempt.purpose:<7} {attempt.streams:>5} streams, {attempt.traffic:<8}  {verdict}  "
    lines = [head + ", ".join(filter(None, found))]
    reasons = attempt.broken or ((attempt.stopped,) if attempt.stopped else ())
    return "\n".join(lines + [f"          {reason}" for reason in reasons])


def _tell(report: "Report", out: Path | None, *, as_json: bool) -> None:
    content = msgspec.json.encode(report)
    if out is not None:
        try:
            write(out, content + b"\n")
        except BenchFailed as error:
            # It is printed all the same, and what was confirmed is in the manifest.
            click.echo(f"orpheus-ws: {error}", err=True)
    click.echo(content.decode() if as_json else _summary(report))


def _summary(report: "Report") -> str:
    simulated = "SIMULATED: there was no model, and this is no measurement of one\n"
    lines = [
        f"{report.gpu}, driver {report.driver}",
        f"objective {report.objective_ms:g} ms, player's buffer {report.prebuffer_ms:g} ms",
        *map(_line, report.attempts),
    ]
    if report.streams is None:
        lines.append("no number of streams was confirmed")
        return "\n".join(lines)
    tried = max(attempt.batch for attempt in report.attempts)
    written = f"and written to {report.written}" if report.written else "and not written"
    lines.append(f"{report.streams} streams, confirmed {written}")
    if report.streams == tried:
        lines.append("all that were tried: more may be possible, with a larger --max")
    return (simulated if report.simulated else "") + "\n".join(lines)


def _why_not(calibration: "Calibration") -> str:
    """One line: which bound failed with one stream, and what to do."""
    last = calibration.attempts[-1]
    return (
        f"not one stream holds, so nothing was written: {last.broken[0]} ({last.traffic} traffic, "
        f"{last.purpose}); give the machine to the server alone, use a faster engine, or allow more "
        "with --objective-ms"
    )
