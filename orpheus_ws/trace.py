"""What happened to one utterance, and when.

Rule: a record. Those who know a time or a figure write it here, `tracing` its id; `metrics` and `tracing`
read the rest at a few moments. It knows neither.
"""

import time
from dataclasses import dataclass
from typing import Final, Literal

NATIVE: Final = "native"
"""The label `surface` of our own protocol."""

clock = time.monotonic


@dataclass(slots=True, eq=False)
class Trace:
    """What happened to one utterance. Times are of `clock`; None until they happen."""

    opened_at: float | None = None
    ready_at: float | None = None
    """t0: the message that completed the first segment arrived."""
    turn_at: float | None = None
    heard_at: float | None = None
    """The engine last said something, or was asked."""
    first_token_at: float | None = None
    first_frame_at: float | None = None
    """The first whole frame was handed to the codec."""
    first_samples_at: float | None = None
    first_byte_at: float | None = None
    first_audio_at: float | None = None
    first_sentence_at: float | None = None
    outcome: str = "none"
    error: str | None = None
    """The wire code with which it failed."""
    trace_id: str | None = None
    """Of the distributed trace that it is part of, if anybody traces."""
    surface: str = NATIVE
    """Which protocol is spoken with the listener."""
    reason: Literal["end", "length", "loop"] = "end"
    """How the latest segment ended."""
    segment_first_token_at: float | None = None
    """As above, but for the latest segment."""
    segment_generated_at: float | None = None
    """The engine's slot was free again."""
    segment_first_byte_at: float | None = None
    chars: int = 0
    """Characters of text that were taken to be spoken."""
    segments: int = 0
    """Segments whose last sample has been sent."""
    tokens: int = 0
    invalid_tokens: int = 0
    dropped_tokens: int = 0
    """Legal ids lost with incomplete frames."""
    frames: int = 0
    trimmed_seconds: float = 0.0
    """Silence left out at the edges of segments."""
    segment_audio_seconds: float = 0.0
    """What the engine generated for the latest segment, in `segment_wall_seconds`."""
    segment_wall_seconds: float = 0.0
    audio_seconds: float = 0.0
    wall_seconds: float = 0.0

    def begin_segment(self) -> None:
        """Nothing has happened yet to the segment that comes next."""
        self.segment_first_token_at = None
        self.segment_generated_at = None
        self.segment_first_byte_at = None

    def since_ready(self, moment: float | None) -> float | None:
        """Seconds from t0 to `moment`, if both are known."""
        if self.ready_at is None or moment is None:
            return None
        return moment - self.ready_at

    @property
    def time_to_first_audio(self) -> float | None:
        """Seconds from t0 to the first audible sample handed to the transport."""
        return self.since_ready(self.first_audio_at)

    @property
    def real_time_factor(self) -> float | None:
        """Audio seconds generated per wall second the engine took for them."""
        return self.audio_seconds / self.wall_seconds if self.wall_seconds > 0 else None
