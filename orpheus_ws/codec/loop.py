"""One thread that owns the decoder, and the streams the event loop sees.

Rule: the event loop never touches a tensor and the thread never changes a stream. They exchange
jobs (slot, frames) through one queue and results through one `call_soon_threadsafe` per step.
Who takes part in a step, and when, is `policy.py`'s to say. A stream has at most one job under way,
and none unless somebody waits in `take`, so the listener's pace is the decoder's. A decode that fails
costs the streams of its step; a thread that ends unasked, that does not come back from a step, or whose
steps all fail (`patience`) is the codec's death, and nobody is left waiting for it.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from orpheus_ws.audio import Portion
from orpheus_ws.codec import CodecStatistics, CodecStream, Decoder, Work
from orpheus_ws.codec.patience import MOST_FAILURES, StepWatch
from orpheus_ws.codec.policy import IN_FLIGHT, Policy, Ready, ramp
from orpheus_ws.errors import Internal, OrpheusError, Overloaded
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import Frame

CLOSE_SECONDS: Final = 5.0
"""For the step under way when the codec is closed. Its thread is not waited for any longer: it ends with
the process."""
_EMPTY: Final[Samples] = np.zeros(0, np.float32)
_log = logging.getLogger("orpheus_ws.codec")


class _Job(msgspec.Struct, frozen=True):
    stream: "_Stream"
    work: Work
    first: bool
    ready: Ready


class _Result(msgspec.Struct, frozen=True):
    stream: "_Stream"
    samples: Samples | None  # None: the decode failed


class _Broken(Exception):
    """Nothing that the decoder is given can be decoded."""


class CodecLoop:
    """`Codec` over one `Decoder`. Make it with `start`."""

    def __init__(
        self,
        open_decoder: Callable[[], Decoder],
        policy: Policy,
        stepped: Callable[[int, float], None],
    ) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Decoder] = self._event_loop.create_future()
        self._thread = threading.Thread(
            target=self._run, args=(open_decoder,), name="codec", daemon=True
        )
        self._policy = policy
        self._stepped = stepped
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._submitted: list[_Job] = []
        self._free: list[int] = []
        self._streams: set[_Stream] = set()
        self._closed = False
        self._dead = asyncio.Event()
        self._busy_since: float | None = None
        self._failures = 0  # steps in a row
        self._first_frames: Callable[..., int]
        self._watch: StepWatch
        self._max_frames = 1

    @classmethod
    async def start(
        cls,
        open_decoder: Callable[[], Decoder],
        *,
        policy: Policy = IN_FLIGHT,
        stepped: Callable[[int, float], None] = lambda _streams, _seconds: None,
    ) -> "CodecLoop":
        """Open the decoder on a new thread and wait until it is there.

        `stepped` hears of the streams and seconds of every step. Raises what `open_decoder` raises.
        When this is cancelled the thread ends by itself as soon as the decoder is open.
        """
        loop = cls(open_decoder, policy, stepped)
        loop._thread.start()
        try:
            decoder = await loop._opened
        except BaseException:
            loop._jobs.put(None)
            raise
        loop._free = list(range(decoder.slots))[::-1]
        loop._first_frames, loop._max_frames = decoder.first_frames, decoder.max_frames
        loop._watch = StepWatch(lambda: loop._busy_since, loop._hangs)
        return loop

    @property
    def alive(self) -> bool:
        """See `Codec`."""
        return not self._dead.is_set()

    async def wait_dead(self) -> None:
        """See `Codec`: it is dead after `close`, and when its thread can decode no more."""
        await self._dead.wait()

    def open(self, *, seed: int, early: bool) -> CodecStream:
        """See `Codec`."""
        if not self.alive:
            raise Internal("the codec has stopped")
        if not self._free:
            raise Overloaded("every codec slot is taken; try again shortly")
        stream = _Stream(
            self, self._free.pop(), seed, early=early, first_frames=self._first_frames(early=early)
        )
        self._streams.add(stream)
        return stream

    @property
    def share(self) -> int:
        """Frames of a step for each of the streams that are open."""
        return max(1, self._max_frames // max(1, len(self._streams)))

    def statistics(self) -> CodecStatistics:
        """See `Codec`."""
        since = self._busy_since
        busy = 0.0 if since is None else time.perf_counter() - since
        return CodecStatistics(len(self._streams), busy)

    async def close(self) -> None:
        """See `Codec`."""
        if self._closed:
            return
        self._closed = True
        self._stop()
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)

    def submit(self, job: _Job) -> None:
        """Hand a job to the thread, together with all others of this turn of the event loop.

        Waking the thread for each would have it fight the event loop for the interpreter, and would
        make batches of one.
        """
        if not self._submitted:
            self._event_loop.call_soon(self._hand_over)
        self._submitted.append(job)

    def _hand_over(self) -> None:
        self._jobs.put(self._submitted)
        self._submitted = []

    def release(self, stream: "_Stream") -> None:
        """The stream is over; its slot may be used again.

        A job of it may still be in the queue. The thread skips jobs of closed streams, and a slot's
        next stream is reset before its first frame, so the two never meet.
        """
        self._streams.discard(stream)
        self._free.append(stream.slot)

    # On the thread -------------------------------------------------------------------------------

    def _run(self, open_decoder: Callable[[], Decoder]) -> None:
        try:
            decoder = open_decoder()
        except BaseException as error:  # noqa: BLE001 - it is raised again on the event loop
            self._tell(_set_exception, self._opened, error)
            return
        self._tell(_set_result, self._opened, decoder)
        try:
            ready: list[_Job] = []
            while self._collect(ready):
                chosen = self._policy.choose([job.ready for job in ready], self._max_frames)
                self._step(decoder, [ready[index] for index in chosen])
                for index in sorted(chosen, reverse=True):
                    del ready[index]
        except BaseException as error:  # noqa: BLE001 - whatever it was, nobody may wait for us now
            _log.critical("codec died", extra={"error": type(error).__name__})
            self._tell(self._stop)

    def _collect(self, ready: list[_Job]) -> bool:
        """Wait until a step is due and put into `ready` all who could take part; false at the end."""
        while True:
            try:
                jobs = self._jobs.get(timeout=self._patience(ready))
                if jobs is None:
                    return False
                ready += jobs
            except queue.Empty:
                # Only now: a slot's next stream cannot have a job before its last one is closed.
                ready[:] = [job for job in ready if not job.stream.closed]
                if ready and self._patience(ready) == 0.0:
                    return True

    def _patience(self, ready: list[_Job]) -> float | None:
        """Seconds for which more may be waited for; None when nothing is ready."""
        if not ready:
            return None
        due = self._policy.due([job.ready for job in ready])
        return max(0.0, due - time.perf_counter())

    def _step(self, decoder: Decoder, batch: list[_Job]) -> None:
        started = self._busy_since = time.perf_counter()
        streams = [job.stream for job in batch]
        try:
            for job in batch:
                if job.first:
                    stream = job.stream
                    decoder.reset(stream.slot, seed=stream.seed, early=stream.early)
            decoded = decoder.step([job.work for job in batch])
            results = [_Result(*pair) for pair in zip(streams, decoded, strict=True)]
        except Exception as error:  # noqa: BLE001 - fails these streams, not the loop
            _log.error("decode failed", extra={"error": type(error).__name__})
            results = [_Result(stream, None) for stream in streams]
            self._failures += 1
        else:
            self._failures = 0
        self._busy_since = None
        seconds = time.perf_counter() - started
        self._tell(self._deliver, results, seconds)
        if self._failures >= MOST_FAILURES:
            raise _Broken

    def _tell(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call something on the event loop."""
        try:
            self._event_loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The event loop has gone without closing us; nobody is left to tell.
            self._jobs.put(None)

    # Back on the event loop ----------------------------------------------------------------------

    def _stop(self) -> None:
        """Nothing is decoded from here on: fail who waits, and whoever asks later."""
        self._dead.set()
        self._watch.stop()
        for stream in list(self._streams):
            stream.fail()

    def _hangs(self) -> None:
        _log.critical("codec died", extra={"error": "a step does not end"})
        self._stop()

    def _deliver(self, results: list[_Result], seconds: float) -> None:
        self._stepped(len(results), seconds)
        for result in results:
            result.stream.deliver(result.samples)


class _Stream:
    """One segment's frames and whoever waits for its samples."""

    def __init__(
        self, loop: CodecLoop, slot: int, seed: int, *, early: bool, first_frames: int
    ) -> None:
        self.slot = slot
        self.seed = seed
        self.early = early
        self.closed = False
        self._loop = loop
        self._frames: list[Frame] = []
        self._finished = False
        self._complete = False  # the last samples have been delivered
        self._failed = False
        self._first_frames = first_frames
        self._fresh = True
        self._unheard = True
        self._busy = False
        self._finishing = False  # the job under way is the last one
        self._portion = Portion(1, 1)
        self._waiter: asyncio.Future[Samples] | None = None

    def push(self, frames: Sequence[Frame]) -> None:
        """See `CodecStream`."""
        self._frames.extend(frames)
        self._dispatch()

    def finish(self) -> None:
        """See `CodecStream`."""
        self._finished = True
        self._dispatch()

    async def take(self, portion: Portion) -> Samples:
        """See `CodecStream`."""
        if self._failed or self.closed:
            raise Internal("the audio could not be decoded")
        if self._complete:
            return _EMPTY
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Samples] = loop.create_future()
        self._waiter = waiter
        self._portion = portion
        self._dispatch()
        if portion.at_least == 1:
            return await waiter
        timer = loop.call_later(portion.patience, self._settle)
        try:
            return await waiter
        finally:
            timer.cancel()

    def _settle(self) -> None:
        """Take what there is, or else what comes next."""
        self._portion = msgspec.structs.replace(self._portion, at_least=1)
        self._dispatch()

    def close(self) -> None:
        """See `CodecStream`."""
        if self.closed:
            return
        self.closed = True
        self._resolve(Internal("the stream was closed"))
        self._loop.release(self)

    def fail(self) -> None:
        """Make this and every later `take` raise."""
        self._failed = True
        self._resolve(Internal("the audio could not be decoded"))

    def deliver(self, samples: Samples | None) -> None:
        """The job under way is over."""
        self._busy = False
        if self.closed:
            return
        if samples is None:
            self.fail()
            return
        self._complete = self._finishing
        if len(samples) or self._complete:
            self._unheard = False
            self._resolve(samples)
        else:
            self._dispatch()

    def _dispatch(self) -> None:
        """Give the thread a job if somebody waits for samples and there is something to decode."""
        if self._waiter is None or self._busy or self.closed or self._failed:
            return
        if len(self._frames) < self._portion.at_least and not self._finished:
            return  # never fewer than asked for, so what follows need not be gone through
        first = self._first_frames if self._fresh else None
        portion = ramp(self._portion, self._loop.share, first)
        if not self._finished and len(self._frames) < portion.at_least:
            return
        frames = self._frames[: portion.at_most]
        del self._frames[: portion.at_most]
        self._finishing = self._finished and not self._frames
        self._busy = True
        work = Work(self.slot, frames, self._finishing)
        in_hand = self._portion.in_hand
        # The next segment of somebody who still has something to play is not the first sound of all.
        ready = Ready(time.perf_counter(), self._unheard and in_hand == 0.0, in_hand, len(frames))
        self._loop.submit(_Job(self, work, self._fresh, ready))
        self._fresh = False

    def _resolve(self, outcome: Samples | OrpheusError) -> None:
        # Nobody waits from here on, though the taker has not run yet: a push in between must not
        # start a job whose samples nobody would take.
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if isinstance(outcome, OrpheusError):
            waiter.set_exception(outcome)
        else:
            waiter.set_result(outcome)


def _set_result(future: "asyncio.Future[Decoder]", decoder: Decoder) -> None:
    if not future.done():
        future.set_result(decoder)


def _set_exception(future: "asyncio.Future[Decoder]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
