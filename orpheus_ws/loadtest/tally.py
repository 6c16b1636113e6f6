"""Turns → figures.

Rule: what is kept of a turn is a few numbers, exact; whole turns only of the first of them, for the
report. What a process of clients sends is a `Batch`, of what happened since the last one.
"""

import math
import resource
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

import msgspec
import numpy as np

from orpheus_ws.loadtest.turn import FEWEST, Figures, Gaps, Live, Percentiles, Turn
from orpheus_ws.trace import clock

MOST_TURNS: Final = 2000
"""Kept whole: about 1 MB of JSON. Of the turns after these only faulty ones are kept, as many again."""

_STEP: Final = 1.1
GAP_EDGES_MS: Final = tuple(_STEP**n for n in range(98))
"""From 1 ms to 10 s."""

LISTENED_SECONDS: Final = 2.0
"""After so long a chunk that is late by some milliseconds says little of a stream's pace."""

_LATENCIES: Final = ("first_byte_ms", "first_audio_ms", "first_sentence_ms", "whole_ms")
_OTHERS: Final = ("queue_ms", "real_time_factor", "connect_ms", "reuse_ms", "cancel_ms")


def gap_bucket(seconds: float) -> int:
    """Which bucket of `Gaps` a gap belongs to."""
    ms = seconds * 1000
    return 0 if ms < 1 else min(len(GAP_EDGES_MS), 1 + int(math.log(ms) / math.log(_STEP)))


class Batch(msgspec.Struct, kw_only=True):
    """What happened in a process since its last batch."""

    sockets: int = 0
    """Open now."""
    speaking: int = 0
    underruns: int = 0
    """So far, in turns under way."""
    overdue: int = 0
    """Turns under way that have waited for longer than the objective."""
    first_bytes: list[float] = []
    """In milliseconds, of turns that began at full load; told before the turn has ended."""
    turns: list[Turn] = []
    gaps: dict[int, int] = {}
    """By bucket."""
    refused: dict[str, int] = {}
    failures: dict[str, int] = {}
    """Of sockets that could not be opened; those of turns are in the turns."""
    faults: dict[str, int] = {}
    """Found after their turns were told of."""
    lags: list[float] = []
    cpu_share: float = 0.0
    """Since the process began."""
    last: bool = False
    fatal: str | None = None
    """Why the run makes no sense."""


class Notes:
    """What happened in this process since its last batch."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.lags: list[float] = []
        self.first_bytes: list[float] = []
        self.refused: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._gaps: Counter[int] = Counter()
        self._began = (clock(), _cpu_seconds())

    def gap(self, seconds: float) -> None:
        """One between two chunks."""
        self._gaps[gap_bucket(seconds)] += 1

    def first_byte(self, seconds: float) -> None:
        """Of a turn that began at full load."""
        self.first_bytes.append(seconds * 1000)

    def late_audio(self) -> None:
        """After a turn that has been told of."""
        self.faults["late_audio"] += 1

    def batch(self) -> Batch:
        """All of it, and nothing is left."""
        wall, cpu = clock() - self._began[0], _cpu_seconds() - self._began[1]
        batch = Batch(
            turns=self.turns,
            first_bytes=self.first_bytes,
            gaps=dict(self._gaps),
            refused=dict(self.refused),
            failures=dict(self.failures),
            faults=dict(self.faults),
            lags=self.lags,
            cpu_share=cpu / wall if wall else 0.0,
        )
        self.turns, self.lags = [], []
        self.first_bytes = []
        for counter in (self._gaps, self.refused, self.failures, self.faults):
            counter.clear()
        return batch


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Tally:
    """All that was heard so far."""

    def __init__(self, objective_ms: float | None = None) -> None:
        self.turns: list[Turn] = []
        """The first ones, and faulty ones among the others."""
        self._objective_ms = objective_ms
        # Each quantity of all turns, and of those at full load.
        self._all = {name: array("d") for name in (*_LATENCIES, *_OTHERS)}
        self._full = {name: array("d") for name in _LATENCIES}
        self._heard = array("d")
        self._begun, self._ended = array("d"), array("d")
        self._outcomes: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._flows: dict[int, tuple[float, float]] = {}  # by stream, as in its turns
        self._gaps = [0] * (len(GAP_EDGES_MS) + 1)
        self._silent = {True: 0, False: 0}  # turns that never had a first byte, by full load
        self._at_full_load = 0
        self._audio_seconds = 0.0
        self._underruns = 0
        self._starved_ms = 0.0
        self._starving_turns = 0

    def add(self, batch: Batch) -> None:
        """Count it."""
        for turn in batch.turns:
            self._add(turn)
        self._heard.extend(batch.first_bytes)
        for bucket, count in batch.gaps.items():
            self._gaps[bucket] += count
        self._refused.update(batch.refused)
        self._failures.update(batch.failures)
        self._faults.update(batch.faults)

    def live(self, latest: Collection[Batch]) -> Live:
        """What is certain already, turns under way included, if `latest` is each process's last word."""
        late = self._silent[True] + sum(batch.overdue for batch in latest) + self._over(self._heard)
        return Live(
            sockets=sum(batch.sockets for batch in latest),
            speaking=sum(batch.speaking for batch in latest),
            underruns=self._underruns + sum(batch.underruns for batch in latest),
            first_byte_ms=_percentiles(self._heard),
            late=late if self._objective_ms else 0,
        )

    def figures(self) -> Figures:
        """What it comes to."""
        full = self._at_full_load > 0
        latencies = self._full if full else self._all
        unheard = self._silent[True] + (0 if full else self._silent[False])
        late = unheard + self._over(latencies["first_byte_ms"])
        return Figures(
            full_load=full,
            turns=self._outcomes.total(),
            done=self._outcomes["done"],
            cancelled=self._outcomes["cancelled"],
            failed=self._outcomes["failed"],
            cut=self._outcomes["cut"],
            late=late if self._objective_ms else 0,
            gap_ms=self._gap_percentiles(),
            slowest_stream=self._slowest_stream(),
            audio_seconds=self._audio_seconds,
            underruns=self._underruns,
            starved_ms=self._starved_ms,
            turns_with_underruns=self._starving_turns,
            refused=dict(self._refused),
            failures=dict(self._failures),
            faults=dict(self._faults),
            **{name: _percentiles(latencies[name]) for name in _LATENCIES},
            **{name: _percentiles(self._all[name]) for name in _OTHERS},
        )

    def gaps(self) -> Gaps:
        """The histogram."""
        return Gaps(edges_ms=GAP_EDGES_MS, counts=tuple(self._gaps))

    def place(self) -> None:
        """Note in each kept turn how many were under way when it began."""
        begun, ended = np.sort(np.asarray(self._begun)), np.sort(np.asarray(self._ended))
        for turn in self.turns:
            before = np.searchsorted(begun, turn.begun, side="right")
            turn.streams = int(before - np.searchsorted(ended, turn.begun, side="right"))
        self.turns.sort(key=lambda turn: turn.begun)

    def _add(self, turn: Turn) -> None:
        bad = bool(turn.faults) or turn.underruns > 0 or turn.outcome == "failed"
        if len(self.turns) < MOST_TURNS or (bad and len(self.turns) < 2 * MOST_TURNS):
            self.turns.append(turn)
        self._begun.append(turn.begun)
        self._ended.append(turn.ended)
        self._at_full_load += turn.full_load
        self._outcomes[turn.outcome] += 1
        self._faults.update(turn.faults)
        if turn.failure:
            self._failures[turn.failure] += 1
        if turn.first_byte_ms is None and turn.outcome != "cut":
            self._silent[turn.full_load] += 1
        for name, values in self._all.items():
            value = getattr(turn, name)
            if value is not None:
                values.append(value)
                if turn.full_load and name in self._full:
                    self._full[name].append(value)
        flowed, seconds = self._flows.get(turn.stream, (0.0, 0.0))
        self._flows[turn.stream] = (flowed + turn.flowed_seconds, seconds + turn.flow_seconds)
        self._audio_seconds += turn.audio_seconds
        self._underruns += turn.underruns
        self._starved_ms += turn.starved_ms
        self._starving_turns += turn.underruns > 0

    def _over(self, latencies: "array[float]") -> int:
        """How many were later than the objective."""
        return int(np.count_nonzero(np.asarray(latencies) > (self._objective_ms or math.inf)))

    def _slowest_stream(self) -> float | None:
        flows = self._flows.values()
        paces = [flowed / seconds for flowed, seconds in flows if seconds >= LISTENED_SECONDS]
        return round(min(paces), 4) if paces else None

    def _gap_percentiles(self) -> Percentiles | None:
        """Each quantile is the upper edge of its bucket."""
        sums = np.cumsum(self._gaps).tolist()
        count = sums[-1]
        if not count:
            return None
        edges = (*GAP_EDGES_MS, math.inf)

        def percentile(percent: int) -> float:
            at = bisect_right(sums, min(percent / 100 * count, count - 1))
            return min(edges[at], GAP_EDGES_MS[-1])

        return _percentiles_of(count, percentile)


def _percentiles(values: "array[float]") -> Percentiles | None:
    if not values:
        return None
    percents = (0, 50, 90, 99, 100)
    found = dict(zip(percents, np.percentile(np.asarray(values), percents).tolist(), strict=True))
    return _percentiles_of(len(values), found.__getitem__)


def _percentiles_of(count: int, percentile: Callable[[int], float]) -> Percentiles:
    """The percentiles that so many values have."""

    def at(percent: int) -> float:
        return round(percentile(percent), 3)

    return Percentiles(
        count=count,
        lowest=at(0),
        p50=at(50),
        p90=None if count < FEWEST[90] else at(90),
        p99=None if count < FEWEST[99] else at(99),
        highest=at(100),
    )
