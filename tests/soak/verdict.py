"""What a soak proves: whether memory grows, and a picture of it.

Rule: memory is judged by a robust slope over the second half, when every cache is full; a sample taken in
the middle of traffic that is far off does not bend it. All else is compared exactly, in `run`.
"""

from collections.abc import Callable, Sequence
from html import escape
from typing import Final, NamedTuple

import numpy as np

from tests.soak.server import Held

MOST_GROWTH_BYTES: Final = 5_000_000
"""In the whole of the second half, by its slope."""
MOST_PAIRS: Final = 2000
"""Samples that the slope is made of; its pairs are the square of it."""
MEGABYTE: Final = 1_000_000


class Memory(NamedTuple):
    """How memory went in the second half."""

    bytes_per_second: float
    seconds: float
    first_bytes: float
    last_bytes: float

    @property
    def growth_bytes(self) -> float:
        """What the slope amounts to in this time."""
        return self.bytes_per_second * self.seconds


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Theil and Sen's: the median of the slopes of all pairs."""
    chosen = np.asarray(points[:: 1 + len(points) // MOST_PAIRS], float)
    x, y = chosen[:, 0], chosen[:, 1]
    first, second = np.triu_indices(len(chosen), 1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def memory(samples: Sequence[Held]) -> Memory:
    """Of the second half of the samples."""
    half = samples[len(samples) // 2 :]
    tenth = max(1, len(half) // 10)
    return Memory(
        bytes_per_second=slope([(held.seconds, held.memory_bytes) for held in half]),
        seconds=half[-1].seconds - half[0].seconds,
        first_bytes=float(np.median([held.memory_bytes for held in half[:tenth]])),
        last_bytes=float(np.median([held.memory_bytes for held in half[-tenth:]])),
    )


# The picture --------------------------------------------------------------------------------------

_STYLE: Final = """\
    text { font-size: 12px; fill: #57606a }
    .title { font-size: 15px; font-weight: 600; fill: #1f2328 }
    .head { font-size: 13px; fill: #1f2328 }
    .end { text-anchor: end } .middle { text-anchor: middle }
    .grid { stroke: #d0d7de }
    .line { fill: none; stroke: #0969da; stroke-width: 1.4 }
    .quiet { fill: none; stroke: #bc4c00; stroke-width: 5; stroke-linecap: round }
    .quiet-text { fill: #bc4c00 }
    @media (prefers-color-scheme: dark) {
      text { fill: #8b949e } .title, .head { fill: #e6edf3 } .grid { stroke: #30363d }
      .line { stroke: #58a6ff } .quiet { stroke: #f0883e } .quiet-text { fill: #f0883e }
    }"""
_WIDTH: Final = 900
_LEFT, _RIGHT, _PANEL, _GAP, _TOP = 60, 884, 74, 44, 74
_PANELS: Final[tuple[tuple[str, Callable[[Held], float]], ...]] = (
    ("memory, MB", lambda held: held.memory_bytes / MEGABYTE),
    ("sockets", lambda held: held.counts["sockets"]),
    ("slots of the engine", lambda held: held.counts["engine_slots"]),
    ("descriptors", lambda held: held.counts["descriptors"]),
    ("tasks", lambda held: held.counts["tasks"]),
)


def draw(samples: Sequence[Held], quiet: Sequence[Held], title: str) -> str:
    """What was held from second to second, and at the quiet points."""
    end = max(samples[-1].seconds, 1.0)
    parts = [
        _text(16, 26, title, "title"),
        _text(_RIGHT, 48, "when everybody has left", "end quiet-text"),
    ]
    top = _TOP
    for name, value in _PANELS:
        parts += _panel(samples, quiet, top, name, value)
        top += _PANEL + _GAP
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _LEFT + share * (_RIGHT - _LEFT)
        parts.append(_text(x, top - _GAP + 18, f"{share * end / 60:.1f} min", "middle"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top:g}" role="img" '
        f'aria-label="{escape(title)}" font-family="ui-sans-serif, system-ui, sans-serif">\n'
        f"  <style>\n{_STYLE}\n  </style>\n  " + "\n  ".join(parts) + "\n</svg>\n"
    )


def _panel(
    samples: Sequence[Held],
    quiet: Sequence[Held],
    top: float,
    name: str,
    value: Callable[[Held], float],
) -> list[str]:
    """One line of the picture, from 0 to its own highest value."""
    end = max(samples[-1].seconds, 1.0)
    most = max(value(held) for held in samples) * 1.1 or 1.0
    bottom = top + _PANEL

    def place(held: Held) -> str:
        x = _LEFT + held.seconds / end * (_RIGHT - _LEFT)
        return f"{x:.1f} {bottom - value(held) / most * _PANEL:.1f}"

    parts = [_text(_LEFT, top - 6, name, "head")]
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * _PANEL
        parts.append(f'<path class="grid" d="M{_LEFT} {y:g}H{_RIGHT}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{share * most:.0f}", "end"))
    parts.append(f'<path class="line" d="M{"L".join(map(place, samples))}"/>')
    if quiet:
        dots = "".join(f"M{place(held)}h0" for held in quiet)
        parts.append(f'<path class="quiet" d="{dots}"/>')
    return parts


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
