"""A result as a page for people: one file that asks nobody for anything.

Rule: everything is in the page, styles and pictures included. Its one script draws what is on an axis of
time, with the same program as the page of a server does; the page lets no other run. What comes from a
person or a server is escaped. Tables of others, such as what it costs, are handed in.
"""

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Final, NamedTuple

import msgspec

from orpheus_ws.loadtest import plots
from orpheus_ws.loadtest.pool import Result
from orpheus_ws.loadtest.turn import FEWEST, Figures, Naive, Percentiles


class Table(NamedTuple):
    """Rows of cells under a heading; the first cell of a row is its name."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def page(result: Result, tables: Sequence[Table] = ()) -> str:
    """The whole page; `tables` come after our own."""
    title = f"Load: {escape(result.plan.label or result.plan.url)}"
    body = [
        _header(result),
        _verdict(result),
        _tiles(result),
        _plots(result),
        _slowest(result),
        _timeline(result),
        '<section class="tables">',
        *(_table(table) for table in (*_tables(result), *tables)),
        "</section>",
    ]
    style, script = ("".join(map(_source, names)) for names in (_STYLES, _PROGRAMS))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{style}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + f'\n</main>{_pictures(result)}<script type="module">{script}</script></body></html>\n'
    )


def _header(result: Result) -> str:
    plan = result.plan
    if plan.rate is None:
        load = f"{plan.streams} streams, {plan.traffic}"
    else:
        load = f"{plan.rate:g} turns a second, whatever the server does"
    when = datetime.fromtimestamp(result.began, UTC).strftime("%d %B %Y, %H:%M UTC")
    label = f'<p class="label">{escape(plan.label)}</p>' if plan.label else ""
    return (
        f"<header>{label}<h1>{escape(load)}</h1>"
        f"<p>{escape(plan.url)} · {when} · {result.seconds:.0f} s</p></header>"
    )


def _verdict(result: Result) -> str:
    lines = list(result.broken)
    harness = result.harness
    notes = []
    if result.stopped is not None:
        notes.append(f"Ended before its time: {result.stopped}.")
    if not result.figures.full_load:
        notes.append("No turn began at full load: latencies are of the ramp.")
    if harness.late:
        notes.append(
            f"The clients themselves were late (p99 {harness.lag_ms_p99:g} ms, "
            f"{harness.cpu_share:.0%} of a core): use more processes or another machine."
        )
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    verdict = (
        f"<ul>{items}</ul>" if lines else "<p>Every turn was whole and heard without a break.</p>"
    )
    if not lines and result.plan.objective_ms is not None:
        verdict = (
            "<p>Every turn was whole, heard without a break, and begun within the objective.</p>"
        )
    style = "bad" if lines else "good"
    return f'<section class="verdict {style}">{verdict}{_paragraphs(notes)}</section>'


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _tiles(result: Result) -> str:
    figures, plan = result.figures, result.plan
    first = figures.first_byte_ms
    refused = sum(figures.refused.values())
    objective = "" if plan.objective_ms is None else f"objective {plan.objective_ms:g} ms"
    tail, slowest = ("p99", "–") if first is None else _tail(first)
    tiles = (
        (f"first byte, {tail}", slowest, objective),
        ("first byte, median", "–" if first is None else f"{first.p50:.0f} ms", ""),
        (
            "underruns",
            f"{figures.underruns}",
            f"player's buffer {plan.prebuffer_ms:g} ms",
        ),
        ("turns", f"{figures.turns}", f"{figures.audio_seconds / 60:.1f} min of speech"),
        ("refused", f"{refused}", ", ".join(f"{n} {why}" for why, n in figures.refused.items())),
        ("faults", f"{sum(figures.faults.values())}", ", ".join(figures.faults)),
    )
    return (
        '<section class="tiles">'
        + "".join(
            f"<div><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(note)}</small></div>"
            for name, value, note in tiles
        )
        + "</section>"
    )


def _tail(latency: Percentiles) -> tuple[str, str]:
    name, ms = latency.tail
    turns = "" if name == "p99" else f" of {latency.count}"
    return name + turns, f"{ms:.0f} ms"


def _plots(result: Result) -> str:
    turns, objective_ms = result.turns, result.plan.objective_ms
    pictures = (
        _figure(
            "Latency against streams",
            "A dot is a turn. The server is full where the lines bend.",
            plots.latency_against_streams(turns, objective_ms),
        ),
        _figure(
            "Time to first byte",
            "Turns at full load; the line is the share of them that had spoken by then.",
            plots.first_byte(turns, objective_ms),
        ),
        _figure(
            "Gaps between chunks",
            "Long gaps are harmless while the listener has more in hand: see underruns.",
            plots.gap_histogram(result.gaps),
        ),
    )
    return f'<section class="plots">{"".join(pictures)}</section>'


def _timeline(result: Result) -> str:
    return (
        '<section class="card"><h2>Streams over time</h2>'
        "<p>Each row is a stream: a thin bar while it waits for speech, a thick one while its "
        "listener hears it, paler if the listener interrupts. A mark is an underrun or a fault.</p>"
        '<div class="timeline" id="streams"></div></section>'
    )


def _slowest(result: Result) -> str:
    if not plots.slowest(result.turns):
        return ""
    return (
        '<section class="card"><h2>Where the slowest first bytes were</h2>'
        "<p>Of the turns that were not cut off. Each row is one, by its stream: what the server says of "
        "it, and what is left of the time that its listener waited.</p>"
        '<div class="timeline" id="slowest"></div></section>'
    )


# Drawn by a script ---------------------------------------------------------------------------------

_STYLES: Final = ("report.css", "page/timeline.css")
_PROGRAMS: Final = ("page/timeline.js", "page/stages.js", "report.js")


def _source(name: str) -> str:
    return (files("orpheus_ws") / "data" / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Only this script, and nothing from anywhere."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _pictures(result: Result) -> str:
    """What the script is to draw, as JSON that cannot end the element that it stands in."""
    slowest = [
        {"name": f"{turn.stream}", "first": turn.first_byte_ms, "trace": turn.trace}
        for turn in plots.slowest(result.turns)
    ]
    data = msgspec.json.encode({"streams": plots.timeline(result.turns), "slowest": slowest})
    escaped = data.decode().replace("<", "\\u003c")
    return f'<script type="application/json" id="pictures">{escaped}</script>'


def _figure(title: str, caption: str, picture: str) -> str:
    return (
        f'<figure class="card"><h2>{escape(title)}</h2>{picture}'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


# Tables --------------------------------------------------------------------------------------------

_QUANTITIES: Final = (
    ("first_byte_ms", "time to first byte, ms"),
    ("queue_ms", "of it, waiting in the server, ms"),
    ("first_audio_ms", "time to first audible sample, ms"),
    ("first_sentence_ms", "time to whole first sentence, ms"),
    ("whole_ms", "time to whole turn, ms"),
    ("gap_ms", "between chunks, ms"),
    ("real_time_factor", "real-time factor"),
    ("connect_ms", "opening a socket, ms"),
    ("reuse_ms", "reusing a socket, ms"),
    ("cancel_ms", "from barge-in to silence, ms"),
)
STATISTICS: Final = ("lowest", "p50", "p90", "p99", "highest", "of")
"""What `rows` has of each."""


def rows(figures: Figures) -> list[tuple[str, ...]]:
    """Each quantity that was measured, with its distribution."""
    found = []
    for field, name in _QUANTITIES:
        of: Percentiles | None = getattr(figures, field)
        if of is not None:
            values = (of.lowest, of.p50, of.p90, of.p99, of.highest)
            found.append((name, *map(number, values), f"{of.count}"))
    return found


TOO_FEW: Final = (
    f"–: too few for that percentile, which takes {FEWEST[90]} (p90) or {FEWEST[99]} (p99)."
)


def number(value: float | None) -> str:
    """Three digits, or all before the point; a dash for what is not known."""
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _tables(result: Result) -> list[Table]:
    figures, harness = result.figures, result.harness
    pace = figures.slowest_stream
    counts = [
        ("turns done", f"{figures.done}"),
        ("interrupted by the listener", f"{figures.cancelled}"),
        ("cut off by the end of the run", f"{figures.cut}"),
        ("failed", f"{figures.failed}"),
        ("later than the objective", f"{figures.late}" if result.plan.objective_ms else "–"),
        ("with underruns", f"{figures.turns_with_underruns}"),
        ("silence in them", f"{figures.starved_ms:.0f} ms"),
        ("pace of the slowest stream", number(pace)),
        *((f"refused: {why}", f"{count}") for why, count in figures.refused.items()),
        *((f"failed: {code}", f"{count}") for code, count in figures.failures.items()),
        *((f"fault: {name}", f"{count}") for name, count in figures.faults.items()),
    ]
    clients = [
        ("processes", f"{harness.processes}"),
        ("busiest process", f"{harness.cpu_share:.0%} of a core"),
        ("its lateness, p99", f"{harness.lag_ms_p99:g} ms"),
        ("its lateness, highest", f"{harness.lag_ms_highest:g} ms"),
    ]
    note = "" if result.figures.full_load else "Of turns during the ramp. "
    distributions = rows(figures)
    note += TOO_FEW if any("–" in row for row in distributions) else ""
    found = [Table("Figures", ("", *STATISTICS), distributions, note)]
    if result.naive is not None:
        found.append(_naive_table(result, result.naive))
    found += [
        Table("Turns", ("", ""), counts),
        Table("Load", ("", ""), _plan_rows(result)),
        Table("Clients", ("", ""), clients),
    ]
    return found


def _naive_table(result: Result, naive: Naive) -> Table:
    ours, theirs = result.figures, naive.figures
    buffer = result.plan.prebuffer_ms

    def cell(latency: Percentiles | None, percentile: str, more: float = 0.0) -> str:
        ms: float | None = getattr(latency, percentile, None)
        return number(None if ms is None else ms + more)

    def supply(figures: Figures, seconds: float) -> str:
        return f"{figures.audio_seconds / seconds:.1f}" if seconds else "–"

    return Table(
        "The naive way",
        ("", "this run", "naive"),
        [
            (
                "listeners kept supplied",
                supply(ours, result.seconds),
                supply(theirs, naive.seconds),
            ),
            (
                "until it is heard, median ms",
                cell(ours.first_byte_ms, "p50", buffer),
                cell(theirs.whole_ms, "p50"),
            ),
            (
                "until it is heard, p90 ms",
                cell(ours.first_byte_ms, "p90", buffer),
                cell(theirs.whole_ms, "p90"),
            ),
            (
                "getting a socket, median ms",
                cell(ours.reuse_ms, "p50"),
                cell(theirs.connect_ms, "p50"),
            ),
        ],
        "The same server, one request after the other, a socket for each, played when it is all "
        "there. Listeners: seconds of speech received in a second.",
    )


def _plan_rows(result: Result) -> list[tuple[str, ...]]:
    plan = result.plan
    speed = plan.words_per_second
    rate = [] if plan.rate is None else [("turns a second", f"{plan.rate:g}")]
    short, medium, long = plan.sizes
    return [
        *rate,
        ("sockets at most" if rate else "streams", f"{plan.streams}"),
        ("ramp", f"{plan.ramp_seconds:g} s"),
        ("full load", f"{plan.utterances} turns" if plan.utterances else f"{plan.seconds:g} s"),
        ("text", "whole" if speed is None else f"{speed:g} words a second"),
        ("short : medium : long", f"{short:g} : {medium:g} : {long:g}"),
        *([] if rate else [("traffic", plan.traffic)]),
        ("barge-in", f"{plan.barge_in:.0%} of turns"),
        ("sockets", "reused" if plan.reuse else "one for each turn"),
        ("server may send ahead", f"{plan.lead_ms} ms"),
        ("player's buffer", f"{plan.prebuffer_ms:g} ms"),
        ("seed", f"{plan.seed}"),
    ]


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    body = "".join(
        "<tr>"
        + f"<th>{escape(row[0])}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in table.rows
    )
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    top = f"<thead><tr>{head}</tr></thead>" if any(table.head) else ""
    width = "figures" if table.head[1:] == STATISTICS else "wide"
    return (
        f'<section class="card"><h2>{escape(table.title)}</h2>{note}'
        f'<div class="{width}"><table>{top}<tbody>{body}</tbody></table></div></section>'
    )
