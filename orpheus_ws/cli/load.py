"""`orpheus-ws load`: put a load on a server and report what its listeners heard."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from orpheus_ws.cli.exits import Exit
from orpheus_ws.cli.files import expect_writable, write
from orpheus_ws.cli.options import examples
from orpheus_ws.cli.say import API_KEY_VARIABLE, CA, trust
from orpheus_ws.planning.cost import TALK_SHARE, UTILISATION, Usage

if TYPE_CHECKING:
    from orpheus_ws.loadtest import Plan, Progress, Result, Watch
    from orpheus_ws.loadtest.report import Table

LINE_SECONDS: Final = 5.0
"""Between lines of progress where there is no terminal."""
OPEN_LOOP_SOCKETS: Final = 1000
NAME: Final = 32
"""As wide as the longest quantity: with its figures it fits into a terminal of 80 columns."""


@click.command(
    short_help="Put a load on a server, and hear it.",
    epilog=examples(
        "orpheus-ws load ws://127.0.0.1:8765/v1/tts",
        "orpheus-ws load ws://127.0.0.1:8765/v1/tts --streams 50 --seconds 120 --report load.html",
        "orpheus-ws load wss://speech.example.com/v1/tts --rate 2 --objective-ms 300 --json",
    ),
)
@click.argument("url")
@click.option("--streams", type=click.IntRange(1, 10_000), help="Sockets that speak.  [10]")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Turns that begin in a second, whatever the server does; --streams are the most sockets.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="How long turns begin, after the ramp.  [30]",
)
@click.option("--utterances", type=click.IntRange(1), help="So many turns instead of --seconds.")
@click.option("--ramp", type=click.FloatRange(0), help="Seconds in which the streams join.  [2]")
@click.option(
    "--traffic",
    type=click.Choice(["conversation", "steady"]),
    help="With pauses as in a conversation, or without.  [conversation]",
)
@click.option("--pause", type=click.FloatRange(0), help="Mean pause between turns, seconds.  [3]")
@click.option(
    "--words-per-second",
    type=click.FloatRange(0, min_open=True),
    help="How fast a language model writes.  [30]",
)
@click.option("--whole", is_flag=True, help="Send each text whole.")
@click.option(
    "--sizes",
    type=(click.FloatRange(0), click.FloatRange(0), click.FloatRange(0)),
    help="How often short, medium and long turns are taken.  [3 4 1]",
)
@click.option("--barge-in", type=click.FloatRange(0, 1), help="Share of turns interrupted.  [0]")
@click.option(
    "--objective-ms",
    type=click.FloatRange(0, min_open=True),
    help="Bound on the 99th percentile of the time to first byte.",
)
@click.option("--lead-ms", type=click.IntRange(200, 10_000), help="As in the protocol.  [2000]")
@click.option(
    "--prebuffer-ms",
    type=click.FloatRange(min=0),
    help="What the player waits for after its first chunk, as your client's does.  [80]",
)
@click.option("--voice", help="One of the server's voices.")
@click.option(
    "--price",
    type=click.FloatRange(min=0),
    help="Of the machine for an hour: gives what speech costs if these streams are its capacity.",
)
@click.option(
    "--talk-share",
    type=click.FloatRange(0, 1, min_open=True),
    help=f"With --price: part of a conversation in which the agent speaks.  [{TALK_SHARE:g}]",
)
@click.option(
    "--utilisation",
    type=click.FloatRange(0, 1, min_open=True),
    help="With --price: part of the sockets in use, as a mean over the hours paid for.  "
    f"[{UTILISATION:g}]",
)
@click.option("--seed", type=int, help="Another one gives other turns.  [0]")
@click.option("--processes", type=click.IntRange(1, 256), help="Of clients.  [one for 50 streams]")
@click.option("--label", help="What is measured, for the report: the engine, if it is simulated.")
@click.option("--naive", is_flag=True, help="Also use the server the wrong way, to compare.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="JSON file to write.")
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), help="HTML page to write."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--api-key", envvar=API_KEY_VARIABLE, show_envvar=True, help="The server's key.")
@CA
def load(
    url: str,
    *,
    naive: bool,
    out: Path | None,
    report: Path | None,
    as_json: bool,
    api_key: str | None,
    ca: Path | None,
    price: float | None,
    talk_share: float | None,
    utilisation: float | None,
    **options: Any,
) -> None:
    """Speak on many streams to the server at URL, and report what was heard.

    Streams are spread over processes of clients, which keep their sockets from turn to turn. Every
    turn is played by a virtual player. The exit code is 1 if a turn was broken in any way, had an
    underrun, or came too late for --objective-ms; a refused handshake is no fault. Ctrl-C ends it
    early and reports what was measured.
    """
    # Imported here, so that the other commands need neither what it needs nor its time.
    from orpheus_ws.loadtest.report import page

    for path in filter(None, (report, out)):
        expect_writable(path)
    trust(ca)
    plan = _plan(url, **options)
    usage = _usage(plan, price, talk_share=talk_share, utilisation=utilisation)
    result = _run(plan, api_key, naive=naive)
    if usage is not None:
        result = msgspec.structs.replace(result, usage=usage, cost=usage.cost(plan.streams))
    if report is not None:
        write(report, page(result, _cost_tables(result)).encode())
    _tell(result, out, as_json=as_json)
    sys.exit(Exit.FAILED if result.broken else Exit.DONE)


def _run(plan: "Plan", api_key: str | None, *, naive: bool) -> "Result":
    from orpheus_ws.loadtest import run, run_naive

    with _watching(plan) as watch:
        result = run(plan, api_key=api_key, watch=watch)
    if naive and not result.interrupted:
        click.echo("the naive way …", err=True)
        with _watching(plan) as watch:
            compared = run_naive(plan, api_key=api_key, watch=watch)
        result = msgspec.structs.replace(result, naive=compared)
    return result


def _tell(result: "Result", out: Path | None, *, as_json: bool) -> None:
    encoded = msgspec.json.encode(result)
    if out is not None:
        write(out, encoded + b"\n")
    click.echo(encoded.decode() if as_json else _summary(result))
    for line in result.broken:
        click.echo(f"orpheus-ws: {line}", err=True)


def _plan(url: str, *, whole: bool, **options: Any) -> "Plan":
    """What was given; the rest is the plan's default."""
    names = {"ramp": "ramp_seconds", "pause": "pause_seconds"}
    given = {names.get(name, name): value for name, value in options.items() if value is not None}
    if whole and "words_per_second" in given:
        raise click.UsageError("--whole sends the text at once; leave out --words-per-second")
    if "utterances" in given and "seconds" in given:
        raise click.UsageError("a run ends after --seconds or after --utterances; give one")
    if sum(given.get("sizes", (1,))) == 0:
        raise click.UsageError("--sizes must have a number above 0")
    from orpheus_ws.loadtest import Plan

    if whole:
        given["words_per_second"] = None
    if "rate" in given:
        given.setdefault("streams", OPEN_LOOP_SOCKETS)
    return Plan(url=url, **given)


def _usage(plan: "Plan", price: float | None, **parts: float | None) -> Usage | None:
    """What a cost takes, if a price is given."""
    given = {name: value for name, value in parts.items() if value is not None}
    if price is None:
        if given:
            raise click.UsageError("--talk-share and --utilisation go with --price")
        return None
    if plan.rate is not None:
        raise click.UsageError("--price is for so many --streams; leave out --rate")
    return Usage(price=price, **given)


def _cost_tables(result: "Result") -> list["Table"]:
    from orpheus_ws.loadtest.report import Table

    cost, usage = result.cost, result.usage
    if cost is None or usage is None:
        return []
    note = (
        f"If {result.plan.streams} streams are what a machine at {usage.price:g} an hour serves, the "
        f"agent speaks for {usage.talk_share:.0%} of a conversation, and {usage.utilisation:.0%} of "
        "the sockets carry one, as a mean over the hours paid for."
    )
    if result.broken:
        note += " They were not all as they should be, so speech will cost more."
    rows = [
        ("speech", f"{cost.speech_hour:.4f}"),
        ("conversation", f"{cost.conversation_hour:.4f}"),
    ]
    return [Table("Cost", ("", "an hour"), rows, note)]


@contextmanager
def _watching(plan: "Plan") -> Iterator["Watch"]:
    """Progress on standard error: a bar on a terminal, a line now and then elsewhere."""
    length = plan.utterances or round(plan.ramp_seconds + plan.seconds)
    if sys.stderr.isatty():
        with click.progressbar(
            length=length, file=sys.stderr, item_show_func=lambda text: text, width=20
        ) as bar:

            def show(progress: "Progress") -> None:
                done = progress.figures.turns if plan.utterances else int(progress.seconds)
                bar.update(max(0, min(done, length) - bar.pos), _line(progress))

            yield show
        return
    told = -LINE_SECONDS

    def tell(progress: "Progress") -> None:
        nonlocal told
        if progress.seconds - told >= LINE_SECONDS:
            told = progress.seconds
            click.echo(f"{progress.seconds:5.0f} s  {_line(progress)}", err=True)

    yield tell


def _line(progress: "Progress") -> str:
    live, figures = progress.live, progress.figures
    first = live.first_byte_ms or figures.first_byte_ms
    parts = [
        f"{live.speaking} of {live.sockets} sockets speak",
        f"{figures.turns} turns",
        "" if first is None else "first byte {:.0f}, {} {:.0f} ms".format(first.p50, *first.tail),
        f"{live.underruns} underruns",
        f"{sum(figures.refused.values())} refused" if figures.refused else "",
        f"{sum(figures.faults.values())} faults" if figures.faults else "",
    ]
    return ", ".join(filter(None, parts))


def _summary(result: "Result") -> str:
    from orpheus_ws.loadtest.report import STATISTICS, TOO_FEW, number, rows

    plan, figures, pace = result.plan, result.figures, result.figures.slowest_stream
    lines = [
        f"{figures.turns} turns: {figures.done} spoken to the end, {figures.cancelled} interrupted, "
        + f"{figures.cut} cut off by the end of the run, {figures.failed} failed",
        f"{figures.audio_seconds / 60:.1f} minutes of speech in {result.seconds:.0f} s",
        f"{figures.underruns} underruns with a buffer of {plan.prebuffer_ms:g} ms"
        + ("" if pace is None else f"; the slowest stream at {number(pace)} times real time"),
    ]
    found = rows(figures)
    lines += [
        f"{name:{NAME}}" + "".join(f"{cell:>8}" for cell in cells)
        for name, *cells in [("", *STATISTICS), *found]
    ]
    lines += [TOO_FEW] if any("–" in row for row in found) else []
    lines += [f"refused, {why}: {count}" for why, count in figures.refused.items()]
    if figures.refused.get("full"):
        lines.append(
            f"the server had no room for all of {plan.streams} sockets; its /capacity says how many it admits"
        )
    if result.naive is not None:
        speech = result.naive.figures.audio_seconds / max(result.naive.seconds, 0.001)
        ours = figures.audio_seconds / max(result.seconds, 0.001)
        lines.append(
            f"one request after the other, a socket for each: {speech:.2f} s of speech a second "
            f"({number(ours)} in this run)"
        )
    if result.cost is not None:
        lines.append(
            f"an hour of speech costs {result.cost.speech_hour:.4f}, of conversation "
            f"{result.cost.conversation_hour:.4f}, if {plan.streams} streams are the capacity"
        )
    if result.stopped is not None:
        lines.append(f"ended before its time: {result.stopped}")
    return "\n".join(lines)
