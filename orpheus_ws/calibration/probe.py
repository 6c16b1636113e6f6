"""One probe: a load of so many streams, the bounds that it has to keep, and what it came to. Pure.

Rule: what is promised to every admitted stream is a bound, and one turn that breaks it breaks the
probe. The bounds:

    first byte      99 of 100 turns have it within the objective
    underruns       none, for the virtual player
    real time       every stream gets audio at least as fast as it is played, from its first chunk on
    whole audio     no fault of those that `loadtest.listener` names
    no error        no turn fails, no socket is refused or lost

The third is there because the player forgives gaps below 10 ms, however many there are.
"""

from typing import Any, Final, Literal

import msgspec

from orpheus_ws.loadtest import Figures, Plan, Progress, Result
from orpheus_ws.loadtest.pool import NO_AUDIO, verdict

Traffic = Literal["steady", "variable"]
Purpose = Literal["search", "confirm"]

TRAFFICS: Final[dict[Traffic, dict[str, Any]]] = {
    "steady": {"traffic": "conversation", "words_per_second": None, "pause_seconds": 0.0},
    "variable": {
        "traffic": "conversation",
        "words_per_second": 30.0,
        "pause_seconds": 1.0,
        "barge_in": 0.1,
    },
}
"""`steady`: every listener hears speech all the time, of whole texts: the next turn begins when the last
has been heard. (Not when the server has sent it: then the listener still has something to play, and
the server need not hurry.) `variable`: text word by word, pauses of about a second, a tenth of the turns
interrupted; it asks for less, at moments that nobody chose."""

RAMP_SECONDS: Final = 1.0
CERTAINLY_LATE: Final = 3
LATE_SHARE: Final = 0.1
"""A run is ended when so many turns are late, and so large a part of those that were heard: ten times
what the objective allows."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A probe and what it came to."""

    purpose: Purpose
    streams: int
    batch: int
    """What the server was started with."""
    traffic: Traffic
    seconds: float
    broken: tuple[str, ...]
    """Bounds that were not kept, one line each; none if it held."""
    stopped: str | None = None
    """Why it was ended before its time."""
    turns: int
    audio_seconds: float
    first_byte_ms_p50: float | None
    first_byte_ms_p99: float | None
    """None of fewer turns than a percentile takes; the objective bounds the highest then."""
    underruns: int
    slowest_stream: float | None
    """How fast it was spoken to: 1 is real time."""
    clients_cpu_share: float
    clients_lag_ms_p99: float

    @property
    def held(self) -> bool:
        """Whether all bounds were kept to the end."""
        return not self.broken and self.stopped is None


def plan(
    url: str, streams: int, traffic: Traffic, *, seconds: float, objective_ms: float, seed: int
) -> Plan:
    """The load of a probe."""
    return Plan(
        url=url,
        streams=streams,
        seconds=seconds,
        ramp_seconds=RAMP_SECONDS,
        objective_ms=objective_ms,
        seed=seed,
        **TRAFFICS[traffic],
    )


def warming(url: str, streams: int) -> Plan:
    """A short turn of every stream, as fast as it goes: what a server does for the first time is slower."""
    return Plan(
        url=url,
        streams=streams,
        utterances=streams,
        ramp_seconds=0.0,
        sizes=(1.0, 0.0, 0.0),
        traffic="steady",
        words_per_second=None,
        lead_ms=10_000,
    )


def clearly_broken(progress: Progress) -> str | None:
    """Which bound cannot be kept any more, if one, while the run goes on."""
    live, figures = progress.live, progress.figures
    if live.underruns:
        return "underruns"
    if figures.faults or figures.failures:
        return "turns that failed or were not whole"
    if figures.refused:
        return "sockets that were refused"
    heard = 0 if live.first_byte_ms is None else live.first_byte_ms.count
    if live.late >= CERTAINLY_LATE and live.late > LATE_SHARE * heard:
        return "time to first byte"
    return None


def broken_bounds(result: Result) -> tuple[str, ...]:
    """What of a run was not as it has to be, one line each."""
    plan_, figures = result.plan, result.figures
    lines = list(verdict(plan_, figures))
    if result.stopped is not None and NO_AUDIO in lines:
        lines.remove(NO_AUDIO)  # it was not given the time
    pace = figures.slowest_stream
    if pace is not None and pace < 1:
        lines.append(f"real time: the slowest stream was spoken to at {pace:.3f} times real time")
    lines += [f"refused, {why}: {count} sockets" for why, count in sorted(figures.refused.items())]
    # It ended on what was certain while turns were under way, which the figures may not show.
    if result.stopped is not None and not result.interrupted and not lines:
        lines.append(result.stopped)
    if lines and result.harness.late:
        lines.append(
            f"the clients themselves were late (p99 {result.harness.lag_ms_p99:g} ms, "
            f"{result.harness.cpu_share:.0%} of a core), so this machine may be what is measured"
        )
    return tuple(lines)


def attempt(result: Result, purpose: Purpose, traffic: Traffic, batch: int) -> Attempt:
    """What a run came to, for the record."""
    figures: Figures = result.figures
    first = figures.first_byte_ms
    return Attempt(
        purpose=purpose,
        streams=result.plan.streams,
        batch=batch,
        traffic=traffic,
        seconds=result.seconds,
        broken=broken_bounds(result),
        stopped=result.stopped,
        turns=figures.turns,
        audio_seconds=round(figures.audio_seconds, 1),
        first_byte_ms_p50=None if first is None else round(first.p50, 1),
        first_byte_ms_p99=None if first is None or first.p99 is None else round(first.p99, 1),
        underruns=figures.underruns,
        slowest_stream=figures.slowest_stream,
        clients_cpu_share=result.harness.cpu_share,
        clients_lag_ms_p99=result.harness.lag_ms_p99,
    )
