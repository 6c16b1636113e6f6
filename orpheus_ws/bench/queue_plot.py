"""Draws what `bench codec-queue` found, as an SVG for light and dark pages.

Rule: colours are classes, so that the reader's scheme decides; every line has its name beside it; the
picture says itself that it shows a simulation.
"""

from collections.abc import Callable
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

from orpheus_ws.bench.codec_queue import LOADS, Point, Result

_STYLE: Final = """\
    text { font-size: 12px; fill: #57606a }
    .title { font-size: 15px; font-weight: 600; fill: #1f2328 }
    .head { font-size: 13px; fill: #1f2328 }
    .end { text-anchor: end } .middle { text-anchor: middle }
    .grid { stroke: #d0d7de }
    .line { fill: none; stroke-width: 2.2 } .dotted { stroke-dasharray: 3 4 }
    .flight { stroke: #0969da } .flight-text { fill: #0969da }
    .dynamic { stroke: #bc4c00 } .dynamic-text { fill: #bc4c00 }
    @media (prefers-color-scheme: dark) {
      text { fill: #8b949e } .title, .head { fill: #e6edf3 } .grid { stroke: #30363d }
      .flight { stroke: #58a6ff } .flight-text { fill: #58a6ff }
      .dynamic { stroke: #f0883e } .dynamic-text { fill: #f0883e }
    }"""
_COLOURS: Final = {"in flight": "flight", "dynamic": "dynamic"}
_TOP: Final = 76
_BOTTOM: Final = 316


class _Panel(NamedTuple):
    """A pair of axes: loads from 0 to 1 to the right, values from 0 to `highest` upwards."""

    left: int
    right: int
    tick: int
    ticks: int

    def at(self, load: float, value: float) -> tuple[float, float]:
        """Where a point is."""
        x = self.left + load * (self.right - self.left)
        y = _BOTTOM - value / (self.tick * self.ticks) * (_BOTTOM - _TOP)
        return round(x, 1), round(y, 1)

    def axes(self, head: str) -> list[str]:
        """Grid, ticks and what they mean."""
        parts = [_text(self.left, _TOP - 18, head, "head")]
        for value in range(0, self.tick * (self.ticks + 1), self.tick):
            _, y = self.at(0, value)
            parts.append(f'<path class="grid" d="M{self.left} {y}H{self.right}"/>')
            parts.append(_text(self.left - 8, y + 4, str(value), "end"))
        parts += [
            _text(self.at(load, 0)[0], _BOTTOM + 18, f"{load:.0%}", "middle") for load in LOADS
        ]
        middle = (self.left + self.right) / 2
        parts.append(_text(middle, _BOTTOM + 38, "load, of what full batches do", "middle"))
        return parts

    def line(
        self, points: list[Point], value: Callable[[Point], float], name: str, style: str
    ) -> list[str]:
        """A line through the points, named at its first."""
        colour = _COLOURS[points[0].policy]
        places = [self.at(point.load, value(point)) for point in points]
        path = "L".join(f"{x} {y}" for x, y in places)
        x, y = places[0]
        return [
            f'<path class="line {colour} {style}" d="M{path}"/>',
            _text(x - 7, y + 4, name, f"end {colour}-text"),
        ]


def draw(result: Result) -> str:
    """The plot of a result: added latency on the left, the size of steps on the right."""
    most = max(point.added_ms_p99 for point in result.points)
    latency = _Panel(52, 452, int(most // 4) + 1, 4)
    steps = _Panel(534, 884, 8, result.max_batch // 8)
    title = (
        f"Simulation, not a measurement: a step takes {result.step_ms:g} ms "
        f"+ {result.stream_ms:g} ms a stream"
    )
    parts = [
        _text(16, 26, title, "title"),
        *latency.axes("added latency in ms"),
        *steps.axes("streams in a step"),
    ]
    for policy in _COLOURS:
        points = [point for point in result.points if point.policy == policy]
        parts += latency.line(points, lambda point: point.added_ms_p99, f"{policy} p99", "")
        parts += latency.line(points, lambda point: point.added_ms_p50, "p50", "dotted")
        parts += steps.line(points, lambda point: point.streams_per_step, policy, "")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 372" role="img" '
        f'aria-label={quoteattr(title)} font-family="ui-sans-serif, system-ui, sans-serif">\n'
        f"  <style>\n{_STYLE}\n  </style>\n  " + "\n  ".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}">{text}</text>'
