"""What happens to samples between the codec and the listener: silence, joins, fades. Pure.

Rule: float samples in, float samples out; nothing here knows an encoding. One `Shaper` per context,
because the pause between two segments belongs to both of them: the first segment starts within
50 ms of its first sound, the pause between segments is natural but bounded, and no edge clicks.
`Player` counts what the listener has in hand, and `portion` how much of it to send at once.
"""

from typing import Final

import msgspec
import numpy as np

from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import FRAME_SECONDS, SAMPLE_RATE

AUDIBLE: Final = 0.01
"""Samples below this (−40 dB) are silence: the embedded voice idles below −46 dB, and Orpheus's
silence before speech is reported as near-silence, not zeros."""

LEAD_IN: Final = SAMPLE_RATE * 50 // 1000
"""Silence kept before the first sound of a context, so that soft onsets survive."""

LONGEST_PAUSE: Final = SAMPLE_RATE * 350 // 1000
"""Most silence between two segments, tail and head together, fades included."""

SHORTEST_PAUSE: Final = SAMPLE_RATE * 100 // 1000
"""Least silence between two segments; supplied when the segments do not bring it."""

FADE: Final = SAMPLE_RATE * 10 // 1000
"""Fade at segment edges: 240 samples of a raised cosine step by at most 0.0066 of full scale."""

LONGEST_SILENCE: Final = LONGEST_PAUSE - 2 * FADE
"""What is kept of the silence between two segments: a fade makes up to its own length inaudible."""

# The tail leaves room for both fades and for the next segment to fade in before its sound.
_LONGEST_TAIL: Final = LONGEST_SILENCE - FADE

_FADE_IN: Final = (0.5 - 0.5 * np.cos(np.pi * (np.arange(FADE) + 0.5) / FADE)).astype(np.float32)


class Shaper:
    """Trims, joins and fades the segments of one context.

    Feed each segment with `feed` and end it with `finish`; both return the samples that may be sent
    now. Silence inside a segment passes unchanged, but what is longer than a tail may be is held
    until the next sound, as it may turn out to be the tail. `trimmed` counts the samples of silence
    left out; `first_sound` is the index among all samples returned of the first audible one, or
    None before it.
    """

    def __init__(self) -> None:
        self.trimmed = 0
        self.first_sound: int | None = None
        self._sent = 0
        self._silent = 0  # silence sent since the last sound, before fading
        self._unsearched: Samples | None = None  # sent after that: has a sound, and silence perhaps
        self._joining = False  # another segment came before this one
        self._sounded = False  # this segment has sounded
        self._held: Samples = _EMPTY  # its last samples: silence, or what a fade-out needs
        self._faded = 0  # its samples that the fade-in has passed; negative: padding before it

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
        cut = len(pending) - FADE
        if self._faded >= FADE and self.first_sound is not None and _sounds(pending, cut):
            # As nearly always. What silence it ends with is seldom asked for, and found out then.
            self._held, self._unsearched = pending[cut:], pending[:cut]
            self._sent += cut
            return self._unsearched
        loud = _loud(pending)
        keep = max(min(FADE, len(pending)), self._silence(loud) - _LONGEST_TAIL)
        cut = len(pending) - keep
        self._held = pending[cut:]
        return self._send(pending[:cut], loud[:cut], fade_out=False)

    def finish(self) -> Samples:
        """End the segment: its tail, faded. A segment without a sound gives nothing."""
        tail, self._held = self._held, _EMPTY
        if not self._sounded:
            self.trimmed += len(tail)
            return _EMPTY
        loud = _loud(tail)
        excess = max(0, self._silence(loud) - _LONGEST_TAIL)
        self.trimmed += excess
        cut = len(tail) - excess
        sent = self._send(tail[:cut], loud[:cut], fade_out=True)
        self._sounded, self._joining, self._faded = False, True, 0
        return sent

    @property
    def _pause(self) -> int:
        """Silence sent since the last sound, before fading."""
        if self._unsearched is not None:
            loud, self._unsearched = _loud(self._unsearched), None
            self._silent = len(loud) - 1 - loud.rfind(_SOUND)
        return self._silent

    def _enter(self, pending: Samples) -> Samples:
        """Find the segment's first sound; cut or pad the silence before it to size."""
        room = LONGEST_SILENCE - self._pause if self._joining else LEAD_IN
        first = _loud(pending).find(_SOUND)
        silence = len(pending) if first < 0 else first
        excess = max(0, silence - room)
        self.trimmed += excess
        pending = pending[excess:]
        if first < 0:
            return pending
        self._sounded = True
        missing = SHORTEST_PAUSE - self._pause - (silence - excess) if self._joining else 0
        if missing <= 0:
            return pending
        self._faded = -missing
        return np.concatenate((np.zeros(missing, np.float32), pending))

    def _silence(self, loud: bytes) -> int:
        """Silence at the end, with what was sent before if there is nothing else."""
        last = loud.rfind(_SOUND)
        return len(loud) + self._pause if last < 0 else len(loud) - 1 - last

    def _send(self, ready: Samples, loud: bytes, *, fade_out: bool) -> Samples:
        if not len(ready):
            return _EMPTY
        self._silent, self._unsearched = self._silence(loud), None
        ready = self._fade_in(ready)
        if fade_out:
            fade = min(FADE, len(ready))
            ready = ready.copy()
            ready[len(ready) - fade :] *= _FADE_IN[:fade][::-1]
        if self.first_sound is None:
            first = _loud(ready).find(_SOUND)
            if first >= 0:
                self.first_sound = self._sent + first
        self._sent += len(ready)
        return ready

    def _fade_in(self, ready: Samples) -> Samples:
        """Apply what is left of the fade-in, after the padding."""
        if self._faded >= FADE:
            return ready
        begin, done = max(0, -self._faded), max(0, self._faded)
        self._faded += len(ready)
        count = min(FADE - done, len(ready) - begin)
        if count <= 0:
            return ready
        ready = ready.copy()
        ready[begin : begin + count] *= _FADE_IN[done : done + count]
        return ready


_EMPTY: Final[Samples] = np.zeros(0, np.float32)
_SOUND: Final = b"\x01"
_GLANCES: Final = (1, 31, 71, 131, 311)
"""Samples before the end. They are at unlike moments of whatever period a voice has."""
_AUDIBLE: Final = np.array(AUDIBLE, np.float32)
"""An array: numpy would make one of a number for each frame."""


def _loud(samples: Samples) -> bytes:
    """One byte a sample, `_SOUND` if it can be heard: bytes are searched faster than arrays."""
    audible: bytes = (np.abs(samples) >= _AUDIBLE).tobytes()
    return audible


def _sounds(samples: Samples, end: int) -> bool:
    """Whether it is certain at a few glances that there is a sound shortly before `end`."""
    if end >= _GLANCES[-1]:
        for before in _GLANCES:
            if abs(samples.item(end - before)) >= AUDIBLE:
                return True
    return False


class Portion(msgspec.Struct, frozen=True):
    """How many frames to ask of the codec next."""

    at_least: int
    at_most: int
    in_hand: float = 0.0
    """Seconds of audio that the listener still has."""

    @property
    def patience(self) -> float:
        """Seconds after which fewer than `at_least` will do: before half of that is played."""
        return self.in_hand / 2


MOST_FRAMES: Final = 8
"""Of one portion, so of one message."""
LARGEST_PORTION: Final = MOST_FRAMES * FRAME_SECONDS
"""0.68 s."""


def portion(in_hand: float, lead: float, group_lead: float) -> Portion:
    """How a stream's messages grow with the listener's lead. All in seconds.

    A listener with little in hand gets every frame as soon as it is there, and never more than
    `lead` seconds are under way. Once `group_lead` seconds are in hand (0: never), up to a quarter
    of them is waited for, so that one message carries several frames; but only while half of them
    are left, so that what an engine said before it stalled is not missed.
    """
    at_least = 1
    if 0 < group_lead <= in_hand:
        at_least = max(1, min(MOST_FRAMES, int(in_hand / 4 / FRAME_SECONDS)))
    room = lead - in_hand
    if room >= LARGEST_PORTION:
        return Portion(at_least, MOST_FRAMES, in_hand)
    return Portion(at_least, max(at_least, int(room / FRAME_SECONDS)), in_hand)


class Player:
    """The virtual player: what a listener with a small buffer hears. Times in seconds, any clock.

    It starts `prebuffer` seconds after the first chunk arrives and plays at the sample rate; an
    underrun is starvation of more than 10 ms.
    """

    TOLERANCE = 0.010
    PREBUFFER = 0.080

    def __init__(self, prebuffer: float = PREBUFFER) -> None:
        self.underruns = 0
        self.starved_seconds = 0.0
        self._prebuffer = prebuffer
        self._starts_at: float | None = None
        self._dry_at = 0.0

    def receive(self, seconds: float, now: float) -> None:
        """A chunk of `seconds` of audio arrives."""
        if self._starts_at is None:
            self._starts_at = self._dry_at = now + self._prebuffer
        elif now > self._dry_at:
            if now - self._dry_at > self.TOLERANCE:
                self.underruns += 1
                self.starved_seconds += now - self._dry_at
            self._dry_at = now
        self._dry_at += seconds

    def excuse(self, now: float) -> None:
        """If it starves by now, that was the listener's own doing; it begins anew."""
        self._dry_at = max(self._dry_at, now + self._prebuffer)

    def in_hand(self, now: float) -> float:
        """Seconds of audio received and not yet played."""
        if self._starts_at is None:
            return 0.0
        return max(0.0, self._dry_at - max(now, self._starts_at))

    def seconds_until(self, lead: float, now: float) -> float:
        """How long until no more than `lead` seconds are in hand, if nothing arrives meanwhile."""
        return self._dry_at - lead - now if self.in_hand(now) > lead else 0.0
