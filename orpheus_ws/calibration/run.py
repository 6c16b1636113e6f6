"""A calibration from beginning to end: search with the planned batch, confirm with the batch that was found.

Rule: one server at a time, started for its batch and ended before the next. All attempts are kept,
those that failed as well. Nothing is written here.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from orpheus_ws.audio import Player
from orpheus_ws.calibration import probe, record, search
from orpheus_ws.calibration.probe import TRAFFICS, Attempt, Purpose, Traffic
from orpheus_ws.calibration.record import Report, Target
from orpheus_ws.calibration.server import Server, serving
from orpheus_ws.client import connect_sync
from orpheus_ws.errors import StartupError
from orpheus_ws.loadtest import Progress, run
from orpheus_ws.loadtest.plan import Plan
from orpheus_ws.planning.profiles import GPUS, find_gpu
from orpheus_ws.planning.steps import Traffic as PlannedTraffic
from orpheus_ws.planning.steps import largest_real_time_batch, step_times

START: Final = 8
"""Streams of the first probe where no arithmetic says better."""


class Settings(NamedTuple):
    """What is to be found out, and how thoroughly."""

    target: Target
    arguments: Sequence[str]
    """Of `orpheus-ws serve`: the configuration."""
    codec: str
    """Name of the codec."""
    objective_ms: float
    start: int
    most: int
    """The batch of the search."""
    probe_seconds: float
    """Of full load, for each kind of traffic."""
    confirm_seconds: float
    """Of full load, both kinds of traffic together."""
    seed: int
    api_key: str


class Show(NamedTuple):
    """Who is told how it goes."""

    line: Callable[[str], None]
    """Something has happened."""
    progress: Callable[[Purpose, Plan, Progress], None]
    """Four times a second, how a probe goes."""
    attempt: Callable[[Attempt], None]
    """A probe has ended."""


def first_guess(target: Target, most: int) -> int:
    """Where to begin: what arithmetic says of a GPU that it knows, and else few streams."""
    gpu = find_gpu(target.hardware.name)
    if gpu is None:
        return min(START, most)
    times = step_times(GPUS[gpu], variant="tuned")
    return max(1, min(most, largest_real_time_batch(times, PlannedTraffic())))


class Calibration:
    """One calibration. What was measured stays when it is interrupted."""

    def __init__(self, settings: Settings, show: Show) -> None:
        self.attempts: list[Attempt] = []
        self.simulated: bool | None = None
        self.voices: tuple[str, ...] = ()
        """Of the server."""
        self._settings, self._show = settings, show

    def run(self) -> int:
        """Measure, and return how many streams were confirmed; 0 if not even one.

        Raises `StartupError` when a server cannot start, `BenchFailed` when it or the clients fail,
        and `KeyboardInterrupt`; no process is left then.
        """
        settings = self._settings
        self._show.line(f"searching with a batch of {settings.most}")
        with serving(settings.arguments, settings.most, settings.api_key) as server:
            self._examine(server)
            self._warm(server, settings.start)
            found = search.largest(
                lambda streams: self._holds(server, streams),
                start=settings.start,
                most=settings.most,
            )
        return search.confirmed(self._confirm, found)

    def report(self, *, streams: int | None, written: str | None, interrupted: bool) -> Report:
        """All of it, for a file."""
        settings = self._settings
        return Report(
            streams=streams,
            written=written,
            interrupted=interrupted,
            gpu=settings.target.hardware.name,
            driver=settings.target.hardware.driver,
            model=settings.target.model,
            simulated=self.simulated,
            date=record.today(),
            objective_ms=settings.objective_ms,
            prebuffer_ms=Player.PREBUFFER * 1000,
            probe_seconds=settings.probe_seconds,
            confirm_seconds=settings.confirm_seconds,
            seed=settings.seed,
            versions=record.versions(),
            attempts=tuple(self.attempts),
        )

    def _examine(self, server: Server) -> None:
        self.simulated = server.is_simulated()
        if self._settings.codec == "simulated" and not self.simulated:
            raise StartupError(
                "codec 'simulated' takes no time, so what it lets through says nothing: calibrate "
                "with the codec that is to serve"
            )
        with connect_sync(server.url, api_key=self._settings.api_key) as client:
            self.voices = client.ready.voices

    def _warm(self, server: Server, streams: int) -> None:
        """Let it do everything once before it counts."""
        plan = probe.warming(server.url, streams)
        if run(plan, api_key=self._settings.api_key).interrupted:
            raise KeyboardInterrupt
        server.check()

    def _holds(self, server: Server, streams: int) -> bool:
        """Both kinds of traffic, the harder one first. What failed has one more chance.

        A search has many probes, and a hiccup of the machine in one of them would end it too low.
        What passes by luck is not confirmed later.
        """
        seconds = self._settings.probe_seconds
        for traffic in TRAFFICS:
            tried = (
                self._try(server, streams, traffic, "search", self._settings.most, seconds).held
                for _ in range(2)
            )
            if not any(tried):
                return False
        return True

    def _confirm(self, streams: int) -> bool:
        """A fresh server whose batch is the number, for a long time. There is no second chance."""
        self._show.line(f"confirming with a batch of {streams}")
        seconds = self._settings.confirm_seconds / len(TRAFFICS)
        with serving(self._settings.arguments, streams, self._settings.api_key) as server:
            self._warm(server, streams)
            return all(
                self._try(server, streams, traffic, "confirm", streams, seconds).held
                for traffic in TRAFFICS
            )

    def _try(
        self,
        server: Server,
        streams: int,
        traffic: Traffic,
        purpose: Purpose,
        batch: int,
        seconds: float,
    ) -> Attempt:
        settings = self._settings
        plan = probe.plan(
            server.url,
            streams,
            traffic,
            seconds=seconds,
            objective_ms=settings.objective_ms,
            seed=settings.seed,
        )

        def watch(progress: Progress) -> str | None:
            self._show.progress(purpose, plan, progress)
            return probe.clearly_broken(progress)

        result = run(plan, api_key=settings.api_key, watch=watch)
        attempt = probe.attempt(result, purpose, traffic, batch)
        self.attempts.append(attempt)
        self._show.attempt(attempt)
        if result.interrupted:
            raise KeyboardInterrupt
        server.check()
        return attempt
