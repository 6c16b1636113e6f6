"""One process of clients: its sockets, which it shares with nobody, and what is said on them.

Rule: a turn is on one socket from its first word to its terminal message, and a socket has one turn at
a time. Time that passes because this process is slow counts against the server, so it is measured and
told, too (`lags`).
"""

import asyncio
import contextlib
import gc
import random
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final, NamedTuple

import msgspec
import uvloop

from orpheus_ws import messages as m
from orpheus_ws.client.connection import Connection
from orpheus_ws.errors import ClientError, Refused, Unreachable
from orpheus_ws.loadtest.corpus import Script, choose, scripts
from orpheus_ws.loadtest.listener import Listener
from orpheus_ws.loadtest.plan import Plan
from orpheus_ws.loadtest.session import Session
from orpheus_ws.loadtest.tally import Batch, Notes
from orpheus_ws.trace import clock

REPORT_SECONDS: Final = 0.25
TICK_SECONDS: Final = 0.05
"""How often turns are looked at; a barge-in comes this much too late at most."""
RETRY_SECONDS: Final = 0.5
"""A stream that got no socket tries again after the server's `Retry-After` and up to this, at random."""


class Share(NamedTuple):
    """Which part of a plan a process does: every `processes`-th stream from `number` on."""

    number: int
    processes: int

    def of(self, total: int) -> int:
        """How many of so many are its own."""
        return len(range(self.number, total, self.processes))


class _Choice(NamedTuple):
    """What is to be said, and when the listener interrupts it."""

    script: Script
    barge_in_after: float | None
    """Seconds from the first byte."""


class _Speaking(NamedTuple):
    """A turn under way."""

    listener: Listener
    connection: Connection
    context: str
    barge_in_after: float | None


class Worker:
    """Does its share of a plan. `report` is called with a `Batch` four times a second."""

    def __init__(
        self,
        plan: Plan,
        share: Share,
        epoch: float,
        report: Callable[[Batch], None],
        *,
        api_key: str | None = None,
    ) -> None:
        self._plan, self._share, self._epoch, self._report = plan, share, epoch, report
        self._full_load = epoch + plan.ramp_seconds
        self._deadline = self._full_load + plan.seconds
        self._turns_left: int | None = None
        if plan.utterances is not None:
            self._turns_left, self._deadline = share.of(plan.utterances), float("inf")
        numbers = range(share.number, plan.streams, share.processes)
        self._sessions = [Session(number, plan.url, api_key) for number in numbers]
        self._speaking: dict[_Speaking, None] = {}
        self._connecting = 0
        self._contexts = count()
        self._ending = asyncio.Event()
        self._ever_answered = False
        self._fatal: str | None = None
        self._notes = Notes()

    def stop(self) -> None:
        """Begin nothing more, and cut off what is under way."""
        self._ending.set()

    async def run(self) -> None:
        """Until the plan is done and everything is closed; then the last batch has been reported.

        What makes the run senseless, a wrong key or no server, is in that batch. Cancelling closes
        everything, too.
        """
        work: asyncio.Future[Any] = asyncio.gather(*self._streams())
        ending: asyncio.Future[Any] = asyncio.ensure_future(self._ending.wait())
        beside = [asyncio.create_task(self._tick()), asyncio.create_task(self._report_on())]
        try:
            await asyncio.wait([work, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, ending, *beside):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            await asyncio.gather(ending, *beside, return_exceptions=True)
            await asyncio.gather(*(session.close() for session in self._sessions))
        self._send(last=True)

    # Loops ------------------------------------------------------------------------------------

    def _streams(self) -> list["asyncio.Future[None]"]:
        if self._plan.rate is not None:
            return [asyncio.ensure_future(self._arrivals(self._plan.rate))]
        return [asyncio.ensure_future(self._stream(session)) for session in self._sessions]

    async def _stream(self, session: Session) -> None:
        """The closed loop: speak, be heard, pause, speak again."""
        plan = self._plan
        chance = random.Random(f"{plan.seed}/{session.stream}")
        joins = self._epoch + plan.ramp_seconds * session.stream / plan.streams
        await self._sleep_until(joins)
        # The event loop may wake it a little too early.
        while self._begin(begun := max(joins, clock())):
            heard = await self._speak(session, self._choose(chance), begun)
            if heard is None:
                self._take_back(begun)
            elif plan.traffic == "conversation":
                pause = plan.pause_seconds * chance.uniform(0.5, 1.5)
                await self._sleep_until(heard + pause)
        if self._turns_left is not None:
            # Another stream may have the last turn, and find the server full until this one leaves.
            await session.close()

    async def _arrivals(self, rate: float) -> None:
        """The open loop: turns begin when they are to, and take a socket that is free or a new one."""
        plan = self._plan
        chance = random.Random(f"{plan.seed}/arrivals/{self._share.number}")
        # The socket that was used last goes first, so there are only as many as are needed.
        free: asyncio.LifoQueue[Session] = asyncio.LifoQueue()
        for session in reversed(self._sessions):
            free.put_nowait(session)

        async def arrive(moment: float, choice: _Choice) -> None:
            try:
                session = await free.get()
            except asyncio.CancelledError:
                self._notes.failures["no_socket"] += 1
                raise
            try:
                await self._speak(session, choice, moment)
            finally:
                free.put_nowait(session)

        moment = self._epoch
        async with asyncio.TaskGroup() as group:
            while True:
                moment += chance.expovariate(rate / self._share.processes)
                if moment > self._deadline:
                    return
                choice = self._choose(chance)
                # The rate grows with the ramp.
                if chance.random() * plan.ramp_seconds > moment - self._epoch:
                    continue
                await self._sleep_until(moment)
                if not self._begin(moment):
                    return
                group.create_task(arrive(moment, choice))

    def _begin(self, moment: float) -> bool:
        """Whether one more turn may begin."""
        if self._turns_left is None:
            return moment < self._deadline
        if moment < self._full_load:
            return True
        if self._turns_left == 0:
            return False
        self._turns_left -= 1
        return True

    def _take_back(self, moment: float) -> None:
        """The turn that was to begin then had no socket: another one may begin instead."""
        if self._turns_left is not None and moment >= self._full_load:
            self._turns_left += 1

    def _choose(self, chance: random.Random) -> _Choice:
        plan = self._plan
        script = choose(chance, plan.sizes, words=plan.words_per_second is not None)
        interrupted, at = chance.random() < plan.barge_in, chance.uniform(0.1, 0.9)
        return _Choice(script, script.seconds * at if interrupted else None)

    async def _sleep_until(self, moment: float) -> None:
        await asyncio.sleep(max(0.0, min(moment, self._deadline) - clock()))

    # A turn -----------------------------------------------------------------------------------

    async def _speak(self, session: Session, choice: _Choice, begun: float) -> float | None:
        """Have a turn spoken, and tell what was heard. When it was heard; None without a socket."""
        asked = clock()
        self._connecting += 1
        try:
            connection, fresh = await session.take()
        except ClientError as error:
            await self._note_refusal(error)
            return None
        finally:
            self._connecting -= 1
        self._ever_answered = True
        script = choice.script
        took = (clock() - asked) * 1000
        over = asyncio.Event()
        listener = self._listener(script, begun, over)
        speaking = _Speaking(
            listener, connection, f"t{next(self._contexts)}", choice.barge_in_after
        )
        session.enter(speaking.context, listener)
        self._speaking[speaking] = None
        try:
            # What went wrong with the socket is told to the listener as well.
            with contextlib.suppress(ClientError):
                await self._send_text(speaking, script, begun)
            await over.wait()
        finally:
            del self._speaking[speaking]
            turn = listener.turn(session.stream, begun, clock(), self._epoch)
            turn.full_load = begun >= self._full_load
            turn.connect_ms, turn.reuse_ms = (took, None) if fresh else (None, took)
            self._notes.turns.append(turn)
        if not self._plan.reuse:
            await session.close()
        return listener.heard_at(listener.ended or clock())

    def _listener(self, script: Script, begun: float, over: asyncio.Event) -> Listener:
        speed = self._plan.words_per_second
        return Listener(
            self._plan,
            script,
            begun if speed is None else begun + script.completing / speed,
            now=clock(),
            over=over.set,
            gap=self._notes.gap,
            late=self._notes.late_audio,
            first=self._notes.first_byte if begun >= self._full_load else _pass_over,
        )

    async def _send_text(self, speaking: _Speaking, script: Script, begun: float) -> None:
        plan, context = self._plan, speaking.context
        opening = m.Open(context=context, lead_ms=plan.lead_ms, trace=True)
        if plan.voice is not None:
            opening = msgspec.structs.replace(opening, voice=plan.voice)
        await speaking.connection.send(opening)
        for number, piece in enumerate(script.pieces):
            if plan.words_per_second is not None and number:
                await asyncio.sleep(begun + number / plan.words_per_second - clock())
            if speaking.listener.closed:
                return
            await speaking.connection.send(m.Text(context=context, text=piece))
        await speaking.connection.send(m.End(context=context))

    async def _note_refusal(self, error: ClientError) -> None:
        """Count it; wait, if this is a closed loop. What makes the run senseless ends it."""
        if not error.retryable or (isinstance(error, Unreachable) and not self._ever_answered):
            self._fatal = str(error)
            self.stop()
        asked = 0.0
        if isinstance(error, Refused):
            self._ever_answered = True
            self._notes.refused[error.reason or f"http_{error.status}"] += 1
            asked = error.retry_after or 0.0
        else:
            self._notes.failures[error.code] += 1
        if self._plan.rate is None:
            await self._sleep_until(clock() + asked + random.uniform(0.1, 1) * RETRY_SECONDS)

    # What happens beside ----------------------------------------------------------------------

    async def _tick(self) -> None:
        """Look after turns that stall or are interrupted; notice how late this process is."""
        due = clock() + TICK_SECONDS
        while True:
            await asyncio.sleep(due - clock())
            now = clock()
            self._notes.lags.append(now - due)
            due = max(due, now - TICK_SECONDS) + TICK_SECONDS
            if now >= self._deadline and not self._anybody_waits():
                self.stop()
            for speaking in tuple(self._speaking):
                listener, after = speaking.listener, speaking.barge_in_after
                if listener.stalls(now):
                    await self._cancel(speaking, None)
                elif after is not None and listener.sounding_for(now) >= after:
                    await self._cancel(speaking, listener.played_ms(now))

    def _anybody_waits(self) -> bool:
        """Whether a turn has not been heard of yet.

        When the time is over, whoever waits for the first byte waits on: to leave out the slowest
        would make a slow server look fast. The others are cut off in the middle of their speech.
        """
        return self._connecting > 0 or any(each.listener.unheard for each in self._speaking)

    async def _cancel(self, speaking: _Speaking, played_ms: float | None) -> None:
        if played_ms is not None:
            speaking.listener.interrupt(clock())
        with contextlib.suppress(ClientError):
            cancel = m.Cancel(context=speaking.context, played_ms=played_ms)
            await speaking.connection.send(cancel)

    async def _report_on(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._send()

    def _send(self, *, last: bool = False) -> None:
        batch = self._notes.batch()
        batch.sockets = sum(session.is_open for session in self._sessions)
        batch.speaking = len(self._speaking)
        batch.underruns = sum(each.listener.underruns for each in self._speaking)
        batch.overdue = sum(each.listener.overdue(clock()) for each in self._speaking)
        batch.last, batch.fatal = last, self._fatal
        self._report(batch)


def _pass_over(_seconds: float) -> None:
    """The first byte of a turn that began before full load."""


# The process -----------------------------------------------------------------------------------


def run(plan: Plan, share: Share, api_key: str | None, pipe: Pipe) -> None:
    """Body of a process: say that it is there, begin at the moment it is told, report until done.

    Anything that is said to it after that ends the run, and so does the end of its parent.
    """
    scripts(words=plan.words_per_second is not None)
    uvloop.run(_run(plan, share, api_key, pipe))


async def _run(plan: Plan, share: Share, api_key: str | None, pipe: Pipe) -> None:
    pipe.send("ready")
    epoch: float = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    worker = Worker(plan, share, epoch, pipe.send, api_key=api_key)
    loop = asyncio.get_running_loop()

    def told() -> None:
        loop.remove_reader(pipe.fileno())
        worker.stop()

    loop.add_reader(pipe.fileno(), told)
    # What exists by now stays; a full collection would only be noise in what is measured.
    gc.freeze()
    await worker.run()
    loop.remove_reader(pipe.fileno())
