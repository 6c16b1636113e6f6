"""Pictures of a result: SVG that stands inside a page, and what is to be drawn on an axis of time.

Rule: a picture is a function of figures and brings no colour, only classes that the page's style knows,
so that light and dark are the reader's choice. Text is never smaller than 11 units of a picture that is
as wide as a telephone.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

import msgspec
import numpy as np

from orpheus_ws.loadtest.turn import FEWEST, Gaps, Turn

WIDTH: Final = 420
HEIGHT: Final = 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 14, 42

_ROWS: Final = 32
"""Streams in a timeline."""
_SLOWEST: Final = 10


class Span(msgspec.Struct, omit_defaults=True):
    """A time in which something went on; `thin` is drawn lower."""

    start: float = msgspec.field(name="from")
    to: float
    kind: str
    title: str
    thin: bool = False


class Mark(msgspec.Struct):
    """A moment."""

    at: float
    kind: str
    title: str


class Row(msgspec.Struct):
    """One line of a timeline."""

    name: str
    spans: list[Span] = []
    marks: list[Mark] = []


class Picture(msgspec.Struct):
    """What `data/page/timeline.js` draws; the page at a server's `/` has it drawn, too."""

    title: str
    unit: str
    end: float
    rows: list[Row]
    height: int


class _Scale(NamedTuple):
    """Values to places on an axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value is; those beyond the ends are at the ends."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Round values, five or so; each power of ten, with 2 and 5 times it, on a log scale."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
            return [step for step in steps if self.low <= step <= self.high * 1.001]
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _x(low: float, high: float, *, log: bool = False) -> _Scale:
    return _Scale(low, high, _LEFT, WIDTH - _RIGHT, log)


def _y(high: float) -> _Scale:
    return _Scale(0, high, HEIGHT - _BOTTOM, _TOP)


def latency_against_streams(turns: Sequence[Turn], objective_ms: float | None) -> str:
    """A dot for each turn: how many were under way when it began, and its time to first byte."""
    points = [(t.streams, t.first_byte_ms) for t in turns if t.first_byte_ms is not None]
    if not points:
        return _empty("no turn had any audio")
    most = max(streams for streams, _ in points)
    values = [ms for _, ms in points]
    x = _x(0, max(most, 1) * 1.04)
    y = _y(_ceiling(values, objective_ms))
    path = "".join(f"M{x.at(n)} {y.at(ms)}h0" for n, ms in points)
    parts = [
        *_axes(x, y, "streams speaking", "ms"),
        f'<path class="dots" d="{path}"/>',
        *_line(_binned(points, most, 50), x, y, "a", "p50"),
        *_line(_binned(points, most, 90), x, y, "b", "p90"),
        *_objective(y, objective_ms),
    ]
    return _svg(parts, "Time to first byte against the number of streams that speak")


def first_byte(turns: Sequence[Turn], objective_ms: float | None) -> str:
    """How many turns had their first byte when: a histogram, and the share of all as a line."""
    values = sorted(
        turn.first_byte_ms for turn in turns if turn.first_byte_ms is not None and turn.full_load
    )
    if not values:
        return _empty("no turn at full load had any audio")
    high = _ceiling(values, objective_ms)
    counts, edges = np.histogram(np.minimum(values, high), bins=30, range=(0, high))
    x, y = _x(0, high), _y(max(int(counts.max()), 1) * 1.08)
    bars = zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    shares = _Scale(0, 1, HEIGHT - _BOTTOM, _TOP)
    steps = np.linspace(0, high, 60).tolist()
    cumulated = [
        (at, float(np.searchsorted(values, at, side="right")) / len(values)) for at in steps
    ]
    parts = [
        *_axes(x, y, "time to first byte, ms", "turns"),
        *(
            _bar(x, y, low, up, count, f"{count} turns, {low:.0f} to {up:.0f} ms")
            for count, low, up in bars
        ),
        *_line(cumulated, x, shares, "b", "share of all"),
    ]
    if objective_ms is not None and objective_ms < high:
        at = x.at(objective_ms)
        parts.append(f'<path class="objective" d="M{at} {_TOP}V{HEIGHT - _BOTTOM}"/>')
        parts.append(_text(at - 4, _TOP + 28, "objective", "end bad"))
    return _svg(parts, "Distribution of the time to first byte")


def gap_histogram(gaps: Gaps) -> str:
    """Time between chunks of a segment, on a logarithmic axis."""
    counts = gaps.counts
    used = [n for n, count in enumerate(counts) if count]
    if not used:
        return _empty("no segment had two chunks")
    edges = (gaps.edges_ms[0] / 1.1, *gaps.edges_ms, gaps.edges_ms[-1] * 1.1)
    low, high = edges[max(0, used[0] - 2)], edges[min(len(edges) - 1, used[-1] + 3)]
    x, y = _x(low, high, log=True), _y(max(counts) * 1.08)
    parts = _axes(x, y, "between chunks, ms", "chunks")
    for n in used:
        title = f"{counts[n]} gaps of about {edges[n]:.0f} ms"
        parts.append(_bar(x, y, edges[n], edges[n + 1], counts[n], title))
    return _svg(parts, "Histogram of the gaps between chunks")


def timeline(turns: Sequence[Turn]) -> Picture:
    """A row for each stream: when it waited, when its listener heard speech, and what went wrong."""
    bad = {turn.stream for turn in turns if _trouble(turn)}
    others = sorted({turn.stream for turn in turns} - bad)
    shown = sorted([*sorted(bad)[:_ROWS], *others[: max(0, _ROWS - len(bad))]])
    rows = {stream: Row(name=str(stream)) for stream in shown}
    for turn in turns:
        if turn.stream in rows:
            _add_turn(rows[turn.stream], turn)
    return Picture(
        title=f"What {len(shown)} streams did",
        unit="s",
        end=max((turn.heard for turn in turns), default=0.0),
        rows=list(rows.values()),
        height=14,
    )


def _add_turn(row: Row, turn: Turn) -> None:
    """A thin bar while it waits, a thick one while it is heard, a mark if something was wrong."""
    speech = turn.ended if turn.sounded is None else turn.sounded
    trouble = _trouble(turn)
    title = f"stream {turn.stream}, {turn.size}, {turn.outcome}"
    if turn.first_byte_ms is not None:
        title += f", first byte after {turn.first_byte_ms:.0f} ms"
    title += "".join(f", {what}" for what in trouble)
    kind = "stopped" if turn.outcome == "cancelled" else "speech"
    row.spans.append(Span(start=turn.begun, to=speech, kind="wait", title=title, thin=True))
    if turn.heard > speech:
        row.spans.append(Span(start=speech, to=turn.heard, kind=kind, title=title))
    if trouble:
        row.marks.append(Mark(at=turn.ended, kind="trouble", title=title))


def slowest(turns: Sequence[Turn]) -> list[Turn]:
    """The turns at full load whose first byte came last and that the server has given its account of."""
    told = [
        turn
        for turn in turns
        if turn.full_load and turn.first_byte_ms is not None and turn.trace is not None
    ]
    return sorted(told, key=lambda turn: turn.first_byte_ms or 0.0, reverse=True)[:_SLOWEST]


def _trouble(turn: Turn) -> list[str]:
    """What was wrong with a turn, in words."""
    found = list(turn.faults)
    if turn.underruns:
        found.append(f"{turn.underruns} underruns")
    if turn.failure and turn.failure not in found:
        found.append(turn.failure)
    return found


# Parts of pictures ---------------------------------------------------------------------------------


def _ceiling(values: Iterable[float], objective_ms: float | None) -> float:
    """The top of an axis: room for nearly all and for the objective; a few outliers lie on the edge."""
    ordered = np.asarray(sorted(values))
    most = min(float(ordered[-1]), 2.5 * float(np.percentile(ordered, 98)))
    return max(most, objective_ms or 0.0, 1.0) * 1.1


def _binned(points: list[tuple[int, float]], most: int, percent: int) -> list[tuple[float, float]]:
    """A percentile of the points of each dozenth of the axis."""
    width = max(1.0, most / 12)
    bins: dict[int, list[float]] = {}
    for streams, ms in points:
        bins.setdefault(int((streams - 1) / width), []).append(ms)
    return [
        (min((n + 0.5) * width + 0.5, most), float(np.percentile(values, percent)))
        for n, values in sorted(bins.items())
        if len(values) >= FEWEST.get(percent, 5)
    ]


def _axes(x: _Scale, y: _Scale, below: str, beside: str) -> list[str]:
    parts = []
    for tick in y.ticks():
        parts.append(f'<path class="grid" d="M{_LEFT} {y.at(tick)}H{WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, y.at(tick) + 4, _number(tick), "end"))
    parts += [_text(x.at(tick), HEIGHT - _BOTTOM + 16, _number(tick), "mid") for tick in x.ticks()]
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, below, "mid"))
    parts.append(_text(_LEFT + 4, _TOP - 3, beside, ""))
    return parts


def _bar(x: _Scale, y: _Scale, low: float, high: float, count: int, title: str) -> str:
    left, right, top = x.at(low), x.at(high), y.at(count)
    width, height = max(right - left - 1, 0.5), HEIGHT - _BOTTOM - top
    return (
        f'<rect class="bar" x="{left}" y="{top}" width="{width:.1f}" height="{height:.1f}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _line(
    points: Sequence[tuple[float, float]], x: _Scale, y: _Scale, style: str, name: str
) -> list[str]:
    if not points:
        return []
    places = [f"{x.at(a)} {y.at(b)}" for a, b in points]
    end_x, end_y = x.at(points[-1][0]), y.at(points[-1][1])
    return [
        f'<path class="line {style}" d="M{"L".join(places)}"/>',
        _text(end_x - 4, end_y + (16 if style == "a" else -6), name, f"end name-{style}"),
    ]


def _objective(y: _Scale, objective_ms: float | None) -> list[str]:
    if objective_ms is None:
        return []
    at = y.at(objective_ms)
    return [
        f'<path class="objective" d="M{_LEFT} {at}H{WIDTH - _RIGHT}"/>',
        _text(_LEFT + 4, at - 5, "objective", "bad"),
    ]


def _number(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _empty(why: str) -> str:
    return _svg([_text(WIDTH / 2, HEIGHT / 2, why, "mid")], why)


def _svg(parts: Iterable[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )
