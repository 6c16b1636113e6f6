"""A result as a page for people: one file that asks nobody for anything.

Rule: everything is in the page, styles and pictures included, and it has no script. What comes from a
person or a server is escaped. Tables of others, such as what it costs, are handed in.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple

from orpheus_ws.loadtest import plots
from orpheus_ws.loadtest.pool import Result
from orpheus_ws.loadtest.turn import Figures, Naive, Spread

SLOW_LAG_MS: Final = 20.0
SLOW_CPU: Final = 0.85
"""Above either of these the clients are part of what was measured."""


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
        _timeline(result),
        '<section class="tables">',
        *(_table(table) for table in (*_tables(result), *tables)),
        "</section>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
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
    slow = harness.lag_ms_p99 > SLOW_LAG_MS or harness.cpu_share > SLOW_CPU
    notes = []
    if result.stopped is not None:
        notes.append(f"Ended before its time: {result.stopped}.")
    if not result.figures.full_load:
        notes.append("No turn began at full load: latencies are of the ramp.")
    if slow:
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
    tiles = (
        ("first byte, p99", "–" if first is None else f"{first.p99:.0f} ms", objective),
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
        f'<div class="wide">{plots.timeline(result.turns)}</div></section>'
    )


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
    ("first_sentence_ms", "time to the whole first sentence, ms"),
    ("whole_ms", "time to the whole turn, ms"),
    ("gap_ms", "between chunks, ms"),
    ("real_time_factor", "real-time factor"),
    ("connect_ms", "opening a socket, ms"),
    ("reuse_ms", "reusing a socket, ms"),
    ("cancel_ms", "from barge-in to silence, ms"),
)


def rows(figures: Figures) -> list[tuple[str, ...]]:
    """Each quantity that was measured, with its distribution."""
    found = []
    for field, name in _QUANTITIES:
        spread: Spread | None = getattr(figures, field)
        if spread is not None:
            values = (spread.lowest, spread.p50, spread.p90, spread.p99, spread.highest)
            found.append((name, *map(number, values), f"{spread.count}"))
    return found


def number(value: float) -> str:
    """Three digits, or all before the point."""
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
        ("pace of the slowest stream", "–" if pace is None else number(pace)),
        ("silence in them", f"{figures.starved_ms:.0f} ms"),
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
    note = "" if result.figures.full_load else "Of turns during the ramp."
    quantities = ("", "lowest", "p50", "p90", "p99", "highest", "of")
    found = [Table("Figures", quantities, rows(figures), note)]
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

    def cell(spread: Spread | None, percentile: str, more: float = 0.0) -> str:
        return "–" if spread is None else number(getattr(spread, percentile) + more)

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
                "until it is heard, p99 ms",
                cell(ours.first_byte_ms, "p99", buffer),
                cell(theirs.whole_ms, "p99"),
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
    return (
        f'<section class="card"><h2>{escape(table.title)}</h2>{note}'
        f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div></section>'
    )


_STYLE: Final = """
:root { --page: #f6f8fa; --card: #fff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0;
  --a: #0969da; --b: #bc4c00; --good: #1a7f37; --good-page: #dafbe1; --bad: #cf222e; --bad-page: #ffebe9;
  --pale: #9cc3f0; --wait: #d4a72c }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --card: #151b23; --ink: #e6edf3;
  --soft: #9198a1; --line: #30363d; --a: #58a6ff; --b: #f0883e; --good: #3fb950; --good-page: #12261e;
  --bad: #f85149; --bad-page: #25171c; --pale: #2b4c76; --wait: #bb8009 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.45 ui-sans-serif, system-ui, "Segoe UI", Roboto, sans-serif }
main { max-width: 1320px; margin: 0 auto; padding: 20px 16px 48px }
h1 { font-size: 26px; margin: 0 0 4px; line-height: 1.2 } h2 { font-size: 15px; margin: 0 0 8px }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere }
header .label { display: inline-block; margin-bottom: 8px; padding: 2px 10px; border-radius: 99px;
  background: var(--b); color: var(--page); font-weight: 600 }
.verdict { margin: 16px 0; padding: 12px 16px; border-radius: 8px; border-left: 5px solid }
.verdict.good { background: var(--good-page); border-color: var(--good) }
.verdict.bad { background: var(--bad-page); border-color: var(--bad) }
.verdict p, .verdict ul { margin: 0; padding-left: 0; list-style: none }
.verdict p + p, .verdict ul + p { margin-top: 6px; color: var(--soft) }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px }
.tiles div, .card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 14px; margin: 0 }
.tiles span, .tiles small { display: block; color: var(--soft); font-size: 13px }
.tiles b { font-size: 26px; font-weight: 650; font-variant-numeric: tabular-nums }
.plots { display: grid; gap: 12px; margin: 12px 0;
  grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)) }
.tables { columns: 340px; column-gap: 12px; margin-top: 12px }
.tables .card { break-inside: avoid; margin-bottom: 12px } .tables .card:first-child { column-span: all }
.card > p, figcaption { margin: 0 0 8px; color: var(--soft); font-size: 13px } figcaption { margin: 6px 0 0 }
.wide { overflow-x: auto } .wide svg { min-width: 1000px }
svg { display: block; width: 100%; height: auto; overflow: visible }
svg text { font-size: 12px; fill: var(--soft) } svg .end { text-anchor: end } svg .mid { text-anchor: middle }
.grid { stroke: var(--line); stroke-width: 1 } .bar { fill: var(--a); fill-opacity: .75 }
.dots { stroke: var(--a); stroke-opacity: .35; stroke-width: 5; stroke-linecap: round; fill: none }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round } .line.a { stroke: var(--a) }
.line.b { stroke: var(--b) } svg .name-a, svg .name-b, svg .bad { paint-order: stroke; stroke: var(--card); stroke-width: 4px;
  stroke-linejoin: round } svg .name-a { fill: var(--a); font-weight: 600 }
svg .name-b { fill: var(--b); font-weight: 600 }
.objective { stroke: var(--bad); stroke-dasharray: 5 4; fill: none } svg .bad { fill: var(--bad) }
.wait { fill: var(--wait) } .speech { fill: var(--a); fill-opacity: .8 } .stopped { fill: var(--pale) }
.trouble { fill: var(--bad) }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px }
th, td { padding: 5px 8px; border-top: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child { text-align: left; font-weight: 400; white-space: normal; min-width: 150px } thead th { color: var(--soft);
  font-weight: 400; border-top: 0 }
"""
