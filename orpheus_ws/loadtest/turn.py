"""One turn as its listener heard it, and how many turns come to figures.

Rule: durations are in milliseconds and named so, moments are seconds since the run began. Everything
here can be sent to another process and written as JSON.
"""

from typing import Final, Literal

import msgspec

from orpheus_ws.messages import Times

Outcome = Literal["done", "cancelled", "failed", "cut"]

FEWEST: Final = {90: 10, 99: 100}
"""Values that a percentile takes: of fewer, not even one is beyond it, and it says no more than the
highest does."""


SLOW_LAG_MS: Final = 20.0
SLOW_CPU: Final = 0.85
"""Above either of these clients did not keep up."""


class Turn(msgspec.Struct, kw_only=True):
    """What was heard of one turn.

    Latencies count from the intended sending of the message that completes the first segment, waiting
    for a socket included. `outcome`: `cancelled` is a barge-in, `failed` has its code in `failure`, and
    `cut` is what was under way when the run ended.
    """

    stream: int
    size: str
    begun: float
    """When its first word was to be sent."""
    ended: float
    """When the terminal message came, or nothing more was waited for."""
    sounded: float | None
    """When its first byte came."""
    heard: float
    """When the listener has heard all of it; `ended` if there was no audio."""
    outcome: Outcome
    failure: str = ""
    full_load: bool = True
    streams: int = 0
    """Turns under way when it began, itself included."""
    connect_ms: float | None = None
    """Opening its socket; None if it had one."""
    reuse_ms: float | None = None
    """Getting the socket that it had."""
    queue_ms: float | None = None
    """The server's: how long the first segment waited for its turn."""
    first_byte_ms: float | None = None
    first_audio_ms: float | None = None
    """The chunk with the first audible sample."""
    first_sentence_ms: float | None = None
    """The last sample of the first segment."""
    whole_ms: float | None = None
    """The last sample, if it was spoken to its end."""
    cancel_ms: float | None = None
    """From `cancel` to `cancelled`."""
    audio_seconds: float = 0.0
    real_time_factor: float | None = None
    """Audio over time, from the start of the latencies until the server had sent so much ahead that it
    began to wait for the listener."""
    flowed_seconds: float = 0.0
    """Audio after the first chunk, until the same moment."""
    flow_seconds: float = 0.0
    """In how many seconds it came."""
    trace: Times | None = None
    """The server's own account of it."""
    underruns: int = 0
    starved_ms: float = 0.0
    longest_gap_ms: float = 0.0
    faults: tuple[str, ...] = ()
    """Names of what was wrong with its audio; see `listener`."""


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """How a quantity is distributed. A percentile of too few values (`FEWEST`) is None."""

    count: int
    lowest: float
    p50: float
    p90: float | None
    p99: float | None
    highest: float

    @property
    def tail(self) -> tuple[str, float]:
        """What most say the p99 is, and its name: of too few values for that, the highest."""
        return ("highest", self.highest) if self.p99 is None else ("p99", self.p99)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the turns come to. Latencies are of turns that began at full load, all else is of all turns.

    If no turn began at full load, because the run was ended before, `full_load` is false and latencies
    are of all turns.
    """

    full_load: bool
    turns: int
    done: int
    cancelled: int
    failed: int
    cut: int
    first_byte_ms: Percentiles | None
    first_audio_ms: Percentiles | None
    first_sentence_ms: Percentiles | None
    whole_ms: Percentiles | None
    late: int
    """Turns whose first byte came later than `objective_ms`, or did not come."""
    queue_ms: Percentiles | None
    gap_ms: Percentiles | None
    """Between chunks of a segment, to a tenth of its value."""
    real_time_factor: Percentiles | None
    slowest_stream: float | None
    """The least of the streams' paces: audio after the first chunks of its turns over the time in which
    it came. Below 1 listeners lose ground, even where no gap is long enough for an underrun. Of streams
    that were listened to for 2 s at least; None if there is none."""
    connect_ms: Percentiles | None
    reuse_ms: Percentiles | None
    cancel_ms: Percentiles | None
    audio_seconds: float
    underruns: int
    starved_ms: float
    turns_with_underruns: int
    refused: dict[str, int]
    """Handshakes that the server refused, by its reason."""
    failures: dict[str, int]
    """Turns and sockets that failed, by code."""
    faults: dict[str, int]
    """Turns with a fault in their audio, by its name."""


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """What is certain while turns are under way, these included."""

    sockets: int
    speaking: int
    underruns: int
    first_byte_ms: Percentiles | None
    """Of turns that began at full load and have been heard of."""
    late: int
    """Turns that began at full load and whose first byte came later than `objective_ms`, or has not
    come for so long."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A run while it runs."""

    seconds: float
    """Since it began."""
    of_seconds: float | None
    """When the last turns begin; None with `utterances`."""
    live: Live
    figures: Figures
    """Of the turns that have ended."""


class Harness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the clients kept up: if they did not, they measured themselves."""

    processes: int
    cpu_share: float
    """Of the busiest process, of one core."""
    lag_ms_p99: float
    """How late its event loops woke up."""
    lag_ms_highest: float

    @property
    def late(self) -> bool:
        """Whether the clients are part of what was measured."""
        return self.lag_ms_p99 > SLOW_LAG_MS or self.cpu_share > SLOW_CPU


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """Histogram of the gaps between chunks: `counts[i]` are below `edges_ms[i]`, the last of no bound."""

    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]


class Naive(msgspec.Struct, frozen=True, kw_only=True):
    """The same server used the wrong way: one turn at a time, a socket for each."""

    seconds: float
    figures: Figures
