"""The listener of one turn: plays what comes, and notices what is wrong with it.

Rule: no socket and no event loop; messages go in with the moment they came, and a `Turn` comes out.
Nothing is kept of a chunk but the chunk itself until the next one. The names of faults:

    dropped_chunk     a sequence number or an offset jumps ahead
    duplicated_chunk  one of them goes back, or a chunk with sound is the same as the one before
    odd_byte          a chunk is not a whole number of samples
    silence           nothing audible for 1.5 s, or in the whole turn
    stall             nothing came for `stall_seconds`, and nothing was left to play
    early_end         `done` before the whole text was spoken, or with less audio than it claims
    surplus_audio     more audio than the terminal message claims
    late_audio        audio after the terminal message
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from orpheus_ws import messages as m
from orpheus_ws.audio import AUDIBLE, Player
from orpheus_ws.errors import OrpheusError
from orpheus_ws.loadtest.corpus import Script
from orpheus_ws.loadtest.plan import Plan
from orpheus_ws.loadtest.turn import Outcome, Turn
from orpheus_ws.tokens import SAMPLE_RATE

LONGEST_SILENCE: Final = 1.5
"""Seconds. The longest pause that the server lets stand between segments is 0.35 s, and a sigh or a
pause for breath inside of one is shorter than this."""

SHORTEST_CHAR: Final = 1 / 40
"""Seconds of audio for a character of text, at the least: speech at 600 words a minute."""

_WAITS_FROM: Final = 0.5
"""Of the lead: with more in hand the server may be waiting for the listener."""
_TOLERANCE_MS: Final = 0.5
"""Of the terminal message's account of the audio, which is rounded: less than 12 samples."""
_LOUD: Final = int(AUDIBLE * 32767)


class Listener:
    """Hears one turn. Moments are of the caller's clock; `t0` is where latencies count from."""

    def __init__(
        self,
        plan: Plan,
        script: Script,
        t0: float,
        *,
        now: float,
        over: Callable[[], None],
        gap: Callable[[float], None],
        late: Callable[[], None],
        first: Callable[[float], None],
    ) -> None:
        """`over` is called once, at the terminal message; `gap` is told seconds between chunks; `late`
        is called for each that comes after the end; `first` is told the time to the first byte."""
        self.first_byte: float | None = None
        self.ended: float | None = None
        """When the terminal message came."""
        self._faults: set[str] = set()
        # Whoever waited for a socket could hear nothing: that is no stall.
        self._last = max(t0, now)  # when anything came last
        self._plan, self._script, self._t0 = plan, script, t0
        self._over, self._gap, self._late, self._first = over, gap, late, first
        self._player = Player(plan.prebuffer_ms / 1000)
        self._outcome: Outcome = "cut"
        self._failure = ""
        self._samples = self._seq = self._segments = self._first_samples = 0
        self._offset: int | None = 0
        self._previous = b""
        self._silent = 0  # samples since the last sound
        self._last_chunk: float | None = None
        self._longest_gap = 0.0
        self._first_audio: float | None = None
        self._first_sentence: float | None = None
        self._factor: float | None = None
        self._flow = (0.0, 0.0)  # seconds of audio after the first chunk, and in how many they came
        self._queue_ms: float | None = None
        self._trace: m.Times | None = None
        self._cancel_sent: float | None = None
        self._cancelled: float | None = None

    def receive(self, message: m.ServerMessage | Exception, now: float) -> None:
        """Take what came for the turn, or why nothing more will."""
        self._last = now
        if self.ended is not None:
            if isinstance(message, m.Audio) and self._failure != "stall":
                self._late()
            return
        match message:
            case m.Audio():
                self._hear(message, now)
            case m.Segment():
                self._segments += 1
                self._end_segment()
            case m.Started():
                self._queue_ms = message.queue_ms
            case m.Done():
                self._trace = message.trace
                self._check_done(message)
                self._end("done", now)
            case m.Cancelled():
                self._trace = message.trace
                self._check_samples(message.sent_ms)
                self._cancelled = now
                self._end("cancelled", now)
            case Exception():
                self._failure = message.code if isinstance(message, OrpheusError) else "internal"
                self._end("failed", now)
            case _:
                pass

    def interrupt(self, now: float) -> None:
        """The listener speaks: `cancel` is sent now, and the player stops."""
        self._cancel_sent = now

    @property
    def closed(self) -> bool:
        """Whether more text would be for nobody."""
        return self.ended is not None or self._cancel_sent is not None

    @property
    def unheard(self) -> bool:
        """Whether its first byte is still waited for."""
        return self.first_byte is None and self.ended is None

    @property
    def underruns(self) -> int:
        """Until now."""
        return self._player.underruns

    def overdue(self, now: float) -> bool:
        """Whether it is certain already that its first byte comes later than the objective."""
        bound = self._plan.objective_ms
        return self.unheard and bound is not None and (now - self._t0) * 1000 > bound

    def sounding_for(self, now: float) -> float:
        """Seconds since the first byte, until it is interrupted or has ended; else less than 0."""
        return -1.0 if self.first_byte is None or self.closed else now - self.first_byte

    def played_ms(self, now: float) -> float:
        """How much of it the listener has heard."""
        return max(0.0, self._samples / SAMPLE_RATE - self._player.in_hand(now)) * 1000

    def stalls(self, now: float) -> bool:
        """Give it up if nothing has come for too long; then it has ended."""
        dry = self._player.in_hand(now) == 0.0
        if self.ended is not None or not dry or now - self._last <= self._plan.stall_seconds:
            return False
        self._faults.add("stall")
        self._failure = "stall"
        self._end("failed", now)
        return True

    def turn(self, stream: int, begun: float, now: float, epoch: float) -> Turn:
        """What was heard, by `now` if it has not ended. `epoch` is when the run began."""
        ended = now if self.ended is None else self.ended

        def since(moment: float | None) -> float | None:
            return None if moment is None else (moment - self._t0) * 1000

        sent, confirmed = self._cancel_sent, self._cancelled
        return Turn(
            stream=stream,
            size=self._script.size,
            begun=begun - epoch,
            ended=ended - epoch,
            sounded=None if self.first_byte is None else self.first_byte - epoch,
            heard=self.heard_at(ended) - epoch,
            outcome=self._outcome,
            failure=self._failure,
            queue_ms=self._queue_ms,
            first_byte_ms=since(self.first_byte),
            first_audio_ms=since(self._first_audio),
            first_sentence_ms=since(self._first_sentence),
            whole_ms=since(self.ended) if self._outcome == "done" else None,
            cancel_ms=None if sent is None or confirmed is None else (confirmed - sent) * 1000,
            audio_seconds=self._samples / SAMPLE_RATE,
            real_time_factor=self._factor,
            flowed_seconds=self._flow[0],
            flow_seconds=self._flow[1],
            trace=self._trace,
            underruns=self._player.underruns,
            starved_ms=self._player.starved_seconds * 1000,
            longest_gap_ms=self._longest_gap * 1000,
            faults=tuple(sorted(self._faults)),
        )

    def heard_at(self, now: float) -> float:
        """When what has come by `now` has been played; `now` if the listener interrupted it."""
        return now if self._cancel_sent is not None else now + self._player.in_hand(now)

    def _hear(self, chunk: m.Audio, now: float) -> None:
        samples, rest = divmod(len(chunk.pcm), 2)
        if rest:
            self._faults.add("odd_byte")
        self._check_place(chunk)
        # Where the next one begins after half a sample, nobody can say.
        self._seq, self._offset = chunk.seq + 1, None if rest else chunk.offset + samples
        self._samples += samples
        if self._cancel_sent is None:
            self._play(samples / SAMPLE_RATE, now)
        self._check_sound(chunk.pcm[: 2 * samples], now)

    def _check_place(self, chunk: m.Audio) -> None:
        expected = chunk.offset if self._offset is None else self._offset
        if chunk.seq > self._seq or chunk.offset > expected:
            self._faults.add("dropped_chunk")
        elif chunk.seq < self._seq or chunk.offset < expected:
            self._faults.add("duplicated_chunk")

    def _play(self, seconds: float, now: float) -> None:
        self._player.receive(seconds, now)
        if self.first_byte is None:
            self.first_byte = now
            self._first_samples = self._samples
            self._first(now - self._t0)
        if self._last_chunk is not None:
            gap = now - self._last_chunk
            self._gap(gap)
            self._longest_gap = max(self._longest_gap, gap)
        self._last_chunk = now
        # Until the server begins to wait, which says nothing about how fast it is.
        ahead = _WAITS_FROM * self._plan.lead_ms / 1000
        if self._factor is None or self._player.in_hand(now) < ahead:
            self._factor = self._samples / SAMPLE_RATE / max(now - self._t0, 1e-6)
            after_first = self._samples - self._first_samples
            self._flow = (after_first / SAMPLE_RATE, now - self.first_byte)

    def _check_sound(self, pcm: bytes, now: float) -> None:
        samples = np.frombuffer(pcm, "<i2")
        loud = np.flatnonzero((samples >= _LOUD) | (samples <= -_LOUD))
        if len(loud):
            if self._first_audio is None:
                self._first_audio = now
            if pcm == self._previous and not _is_tone(samples):
                self._faults.add("duplicated_chunk")
            self._note_silence(self._silent + int(loud[0]))
            self._silent = len(samples) - 1 - int(loud[-1])
        else:
            self._silent += len(samples)
            self._note_silence(self._silent)
        self._previous = pcm

    def _note_silence(self, samples: int) -> None:
        if samples > LONGEST_SILENCE * SAMPLE_RATE:
            self._faults.add("silence")

    def _end_segment(self) -> None:
        """A segment begins; before the second one the first has been heard."""
        if self._first_sentence is None:
            self._first_sentence = self._last_chunk
        self._last_chunk = None

    def _end(self, outcome: Outcome, now: float) -> None:
        if outcome != "cancelled":
            self._end_segment()
        self._outcome = outcome
        self.ended = now
        self._over()

    def _check_done(self, done: m.Done) -> None:
        self._check_samples(done.audio_ms)
        # A cut more than was foreseen, because the text came late, costs a space.
        chars = done.chars + max(0, self._segments - 1)
        spoken = chars >= self._script.chars and done.reason == "end"
        if not spoken or self._samples < self._script.chars * SHORTEST_CHAR * SAMPLE_RATE:
            self._faults.add("early_end")
        if self._samples and self._first_audio is None:
            self._faults.add("silence")

    def _check_samples(self, claimed_ms: float) -> None:
        if self._faults & {"dropped_chunk", "duplicated_chunk", "odd_byte"}:
            return  # already said
        surplus = self._samples / SAMPLE_RATE * 1000 - claimed_ms
        if surplus > _TOLERANCE_MS:
            self._faults.add("surplus_audio")
        elif surplus < -_TOLERANCE_MS:
            self._faults.add("early_end")


def _is_tone(samples: NDArray[np.int16]) -> bool:
    """Whether it repeats itself, as a test signal does: then it says nothing if a chunk does, too."""
    half = len(samples) // 2
    first, second = samples[:half].astype(np.int32), samples[half : 2 * half].astype(np.int32)
    return bool(min(np.abs(first - second).max(), np.abs(first + second).max()) <= 2)
