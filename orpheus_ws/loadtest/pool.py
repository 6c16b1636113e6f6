"""The processes of a run together: started, begun at one moment, listened to, ended.

Rule: the parent says no word to the server, so watching a run does not disturb it.
"""

import contextlib
import math
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Final

import msgspec
import numpy as np

from orpheus_ws.client.connection import check_url
from orpheus_ws.errors import ClientError
from orpheus_ws.hardware import usable_processors
from orpheus_ws.loadtest import worker
from orpheus_ws.loadtest.plan import Plan
from orpheus_ws.loadtest.tally import Batch, Tally
from orpheus_ws.loadtest.turn import Figures, Gaps, Harness, Naive, Progress, Turn
from orpheus_ws.planning.cost import Cost, Usage
from orpheus_ws.processes import Child, child

STREAMS_PER_PROCESS: Final = 50
BEGIN_SECONDS: Final = 0.1
"""Time for every process to hear when the run begins."""
WATCH_SECONDS: Final = 0.25
NAIVE_SECONDS: Final = 15.0
NAIVE_TURNS: Final = 10
"""With `utterances`. Either is enough for a median."""

Watch = Callable[[Progress], str | None]
"""Told four times a second how a run goes. If it returns something, the run ends, and that is why."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    plan: Plan
    began: float
    """Seconds since 1970."""
    seconds: float
    stopped: str | None
    """Why it was ended before its time; `interrupted` if by Ctrl-C."""
    figures: Figures
    harness: Harness
    gaps: Gaps
    turns: tuple[Turn, ...]
    """By their beginning: the first 2000, and up to as many faulty ones among the others."""
    naive: Naive | None = None
    usage: Usage | None = None
    cost: Cost | None = None
    """If the streams of the plan are what the server has slots for, and `usage` is how they are used."""

    @property
    def interrupted(self) -> bool:
        """Whether a person ended it."""
        return self.stopped == INTERRUPTED

    @property
    def broken(self) -> tuple[str, ...]:
        """What is wrong, one line each; nothing if all is well. Refusals are no fault."""
        return verdict(self.plan, self.figures)


INTERRUPTED: Final = "interrupted"
NO_AUDIO: Final = "no turn had any audio"


def run(plan: Plan, *, api_key: str | None = None, watch: Watch | None = None) -> Result:
    """Put the load on, and return what was heard.

    Ctrl-C, or an answer of `watch`, ends it early: what is under way is cut off and what was measured
    is returned. Raises `ClientError` when the URL, the key or the server makes the run senseless, and
    `BenchFailed` when a process of clients fails.
    """
    check_url(plan.url)
    tally = Tally(plan.objective_ms)
    with contextlib.ExitStack() as stack:
        processes = _start(stack, plan, api_key)
        began, epoch = time.time(), time.monotonic() + BEGIN_SECONDS
        for process in processes:
            process.tell(epoch)
        run_ = _Run(plan, processes, epoch, tally, watch)
        try:
            run_.listen()
        except KeyboardInterrupt:
            run_.stop(INTERRUPTED)
            run_.listen()
    tally.place()
    return Result(
        plan=plan,
        began=began,
        seconds=round(time.monotonic() - epoch, 3),
        stopped=run_.stopped,
        figures=tally.figures(),
        harness=run_.harness(),
        gaps=tally.gaps(),
        turns=tuple(tally.turns),
    )


def run_naive(plan: Plan, *, api_key: str | None = None, watch: Watch | None = None) -> Naive:
    """The turns of `plan` the wrong way: whole texts, one after the other, a socket for each.

    As fast as the server goes; nothing is waited for but the end of each turn. Raises as `run` does.
    """
    naive = msgspec.structs.replace(
        plan,
        streams=1,
        rate=None,
        seconds=min(plan.seconds, NAIVE_SECONDS),
        utterances=None if plan.utterances is None else min(plan.utterances, NAIVE_TURNS),
        ramp_seconds=0.0,
        traffic="steady",
        words_per_second=None,
        barge_in=0.0,
        reuse=False,
        lead_ms=10_000,
        processes=1,
    )
    result = run(naive, api_key=api_key, watch=watch)
    return Naive(seconds=result.seconds, figures=result.figures)


def verdict(plan: Plan, figures: Figures) -> tuple[str, ...]:
    """What of the figures is not as it should be, one line each."""
    lines = []
    if figures.first_byte_ms is None:
        lines.append(NO_AUDIO)
    elif plan.objective_ms is not None:
        name, ms = figures.first_byte_ms.tail
        if ms > plan.objective_ms:
            objective = f"above the objective of {plan.objective_ms:g} ms"
            lines.append(f"time to first byte: {name} {ms:.0f} ms, {objective}")
    if figures.underruns:
        lines.append(
            f"underruns: {figures.underruns} in {figures.turns_with_underruns} turns, "
            f"{figures.starved_ms:.0f} ms of silence that was not in the speech"
        )
    lines += [f"{name}: {count} turns" for name, count in sorted(figures.faults.items())]
    lines += [f"failed with {code}: {count}" for code, count in sorted(figures.failures.items())]
    return tuple(lines)


def _start(stack: contextlib.ExitStack, plan: Plan, api_key: str | None) -> list[Child]:
    count = plan.processes or min(
        usable_processors(), math.ceil(plan.streams / STREAMS_PER_PROCESS)
    )
    count = min(count, plan.streams)
    processes = [
        stack.enter_context(
            child("clients", worker.run, plan, worker.Share(number, count), api_key)
        )
        for number in range(count)
    ]
    for process in processes:
        process.hear()
    return processes


class _Run:
    """What the processes say, until all have said their last."""

    def __init__(
        self,
        plan: Plan,
        processes: list[Child],
        epoch: float,
        tally: Tally,
        watch: Watch | None,
    ) -> None:
        self.stopped: str | None = None
        self._plan, self._epoch, self._tally, self._watch = plan, epoch, tally, watch
        self._processes = processes
        self._pipes = {process.pipe: process for process in processes}
        self._latest: dict[Child, Batch] = {}
        self._lags: list[float] = []
        self._watched = epoch

    def listen(self) -> None:
        """Until the end. Raises `ClientError` and `BenchFailed` as `run` does."""
        while self._pipes:
            for pipe in wait(list(self._pipes), timeout=WATCH_SECONDS):
                self._take(self._pipes[pipe])  # type: ignore[index]
            if time.monotonic() - self._watched >= WATCH_SECONDS:
                self._watched = time.monotonic()
                self._tell_watch()

    def stop(self, why: str) -> None:
        """Cut everything off; `listen` once more for what is left to be said."""
        self.stopped = self.stopped or why
        for process in self._processes:
            process.tell("stop")

    def harness(self) -> Harness:
        """How the clients were."""
        lags = np.asarray(self._lags or [0.0]) * 1000
        return Harness(
            processes=len(self._processes),
            cpu_share=round(max(batch.cpu_share for batch in self._latest.values()), 3),
            lag_ms_p99=round(float(np.percentile(lags, 99)), 2),
            lag_ms_highest=round(float(lags.max()), 2),
        )

    def _take(self, process: Child) -> None:
        batch: Batch = process.hear()
        if batch.fatal is not None:
            raise ClientError(batch.fatal)
        self._latest[process] = batch
        self._tally.add(batch)
        self._lags += batch.lags
        if batch.last:
            del self._pipes[process.pipe]

    def _tell_watch(self) -> None:
        if self._watch is None or self.stopped is not None:
            return
        plan = self._plan
        reason = self._watch(
            Progress(
                seconds=time.monotonic() - self._epoch,
                of_seconds=None if plan.utterances else plan.ramp_seconds + plan.seconds,
                live=self._tally.live(self._latest.values()),
                figures=self._tally.figures(),
            )
        )
        if reason is not None:
            self.stop(reason)
