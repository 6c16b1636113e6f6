"""What happens to samples between the codec and the socket. Pure.

Rule: float samples in, PCM bytes out; a chunk is always a whole number of samples. One `Shaper` per
context, because the pause between two segments belongs to both of them: the first segment starts
within 50 ms of its first sound, the pause between segments is natural but bounded, and no edge
clicks.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from orpheus_ws.errors import UnsupportedFormat
from orpheus_ws.tokens import SAMPLE_RATE

Samples = NDArray[np.float32]

AUDIBLE: Final = 0.01
"""Samples below this (−40 dB) are silence: the embedded voice idles below −46 dB, and Orpheus's
silence before speech is reported as near-silence, not zeros."""

LEAD_IN: Final = SAMPLE_RATE * 50 // 1000
"""Silence kept before the first sound of a context, so that soft onsets survive."""

LONGEST_PAUSE: Final = SAMPLE_RATE * 350 // 1000
"""Most silence between two segments, tail and head together."""

SHORTEST_PAUSE: Final = SAMPLE_RATE * 100 // 1000
"""Least silence between two segments; supplied when the segments do not bring it."""

FADE: Final = SAMPLE_RATE * 10 // 1000
"""Fade at segment edges: 240 samples of a raised cosine step by at most 0.0066 of full scale."""

_FADE_IN: Final = (0.5 - 0.5 * np.cos(np.pi * (np.arange(FADE) + 0.5) / FADE)).astype(np.float32)


def _pcm_s16le(samples: Samples) -> bytes:
    scaled = np.clip(np.rint(samples * 32767.0), -32768, 32767)
    encoded: bytes = scaled.astype("<i2").tobytes()
    return encoded


def _pcm_f32le(samples: Samples) -> bytes:
    return samples.astype("<f4").tobytes()


ENCODINGS: Final[dict[str, Callable[[Samples], bytes]]] = {
    "pcm_s16le": _pcm_s16le,
    "pcm_f32le": _pcm_f32le,
}
SAMPLE_RATES: Final = (SAMPLE_RATE,)


def encoder(encoding: str, sample_rate: int) -> Callable[[Samples], bytes]:
    """Return the function from samples to PCM. Raises `UnsupportedFormat`."""
    if encoding not in ENCODINGS:
        raise UnsupportedFormat(f"use one of the encodings {', '.join(ENCODINGS)}")
    if sample_rate not in SAMPLE_RATES:
        raise UnsupportedFormat(f"use one of the sample rates {', '.join(map(str, SAMPLE_RATES))}")
    return ENCODINGS[encoding]


class Shaper:
    """Trims, joins and fades the segments of one context.

    Feed each segment with `feed` and end it with `finish`; both return the samples that may be sent
    now. Silence inside a segment passes unchanged, but a pause longer than `LONGEST_PAUSE` is held
    until the next sound, as it may turn out to be the segment's tail. `trimmed` counts the samples
    of silence left out, `first_sound` is the index among all samples returned of the first audible
    one, or None before it.
    """

    def __init__(self) -> None:
        self.trimmed = 0
        self.first_sound: int | None = None
        self._sent = 0
        self._pause = 0  # silence sent since the last sound of the context
        self._joining = False  # this segment has not sounded yet and another came before
        self._sounded = False  # this segment has sounded
        self._held: Samples = _EMPTY  # the last samples: silence, or what a fade-out needs
        self._fade = 0  # samples of the fade-in already applied

    def feed(self, samples: Samples) -> Samples:
        """Take the next samples of the current segment."""
        if not len(samples):
            return samples
        pending = np.concatenate((self._held, samples))
        if not self._sounded:
            pending = self._enter(pending)
            if not self._sounded:
                self._held = pending
                return _EMPTY
        keep = self._tail(pending)
        ready, self._held = pending[: len(pending) - keep], pending[len(pending) - keep :]
        return self._send(ready)

    def finish(self) -> Samples:
        """End the segment: its tail, faded, with at most the longest pause."""
        if not self._sounded:
            # Not a single sound: nothing of it is worth sending.
            self.trimmed += len(self._held)
            self._held = _EMPTY
            return _EMPTY
        tail = self._held
        self._held = _EMPTY
        silence = _silent_end(tail)
        excess = max(0, self._pause_at_end(tail, silence) - LONGEST_PAUSE)
        self.trimmed += excess
        tail = tail[: len(tail) - excess].copy()
        fade = min(FADE, len(tail))
        tail[len(tail) - fade :] *= _FADE_IN[FADE - fade :][::-1]
        self._sounded, self._joining, self._fade = False, True, 0
        return self._send(tail)

    def _enter(self, pending: Samples) -> Samples:
        """Find the segment's first sound; cut the silence before it to size."""
        loud = np.flatnonzero(np.abs(pending) >= AUDIBLE)
        if not len(loud):
            # Keep only what could still be sent before the sound.
            longest = LONGEST_PAUSE if self._joining else LEAD_IN
            excess = max(0, len(pending) - longest)
            self.trimmed += excess
            return pending[excess:]
        self._sounded = True
        start = int(loud[0])
        room = max(0, LONGEST_PAUSE - self._pause) if self._joining else LEAD_IN
        excess = max(0, start - room)
        self.trimmed += excess
        pending = pending[excess:]
        silence = start - excess
        if self._joining and self._pause + silence < SHORTEST_PAUSE:
            padding = np.zeros(SHORTEST_PAUSE - self._pause - silence, np.float32)
            pending = np.concatenate((padding, pending))
            self._fade = -len(padding)
        return pending

    def _tail(self, pending: Samples) -> int:
        """How many of the last samples must wait: a fade's worth, or a pause beyond the longest."""
        silence = _silent_end(pending)
        return max(min(FADE, len(pending)), self._pause_at_end(pending, silence) - LONGEST_PAUSE)

    def _pause_at_end(self, pending: Samples, silence: int) -> int:
        return silence + self._pause if silence == len(pending) else silence

    def _send(self, ready: Samples) -> Samples:
        if not len(ready):
            return _EMPTY
        ready = self._faded_in(ready)
        if self.first_sound is None:
            loud = np.flatnonzero(np.abs(ready) >= AUDIBLE)
            if len(loud):
                self.first_sound = self._sent + int(loud[0])
        self._pause = self._pause_at_end(ready, _silent_end(ready))
        self._sent += len(ready)
        return ready

    def _faded_in(self, ready: Samples) -> Samples:
        """Apply what is left of the fade-in; a negative `_fade` is padding still to pass."""
        if self._fade >= FADE:
            return ready
        ready = ready.copy()
        begin = max(0, -self._fade)
        done = max(0, self._fade)
        count = max(0, min(FADE - done, len(ready) - begin))
        ready[begin : begin + count] *= _FADE_IN[done : done + count]
        self._fade += len(ready)
        return ready


_EMPTY: Final[Samples] = np.zeros(0, np.float32)


def _silent_end(samples: Samples) -> int:
    """Length of the silence at the end."""
    loud = np.flatnonzero(np.abs(samples[::-1]) >= AUDIBLE)
    return int(loud[0]) if len(loud) else len(samples)


class Player:
    """The virtual player: what a listener with a small buffer hears. Times in seconds, any clock.

    It starts `prebuffer` seconds after the first chunk arrives and plays at the sample rate; an
    underrun is starvation of more than 10 ms.
    """

    TOLERANCE = 0.010

    def __init__(self, prebuffer: float = 0.080) -> None:
        self.underruns = 0
        self.starved_seconds = 0.0
        self._prebuffer = prebuffer
        self._dry_at: float | None = None

    def receive(self, seconds: float, now: float) -> None:
        """A chunk of `seconds` of audio arrives."""
        if self._dry_at is None:
            self._dry_at = now + self._prebuffer
        elif now > self._dry_at:
            if now - self._dry_at > self.TOLERANCE:
                self.underruns += 1
                self.starved_seconds += now - self._dry_at
            self._dry_at = now
        self._dry_at += seconds

    def in_hand(self, now: float) -> float:
        """Seconds of audio received and not yet played."""
        return 0.0 if self._dry_at is None else max(0.0, self._dry_at - now)
