"""One conversation: a reader and a speaker around a sans-I/O session.

Rule: two tasks. The reader tells the session what arrives, sends what it answers, and never waits for
synthesis. The speaker asks the session what is next and speaks it, at most `lead_ms` ahead of the
listener. When the reader sees that the context being spoken has ended, it interrupts the speaker
through a timeout scope that is otherwise never due; leaving the scope frees engine and codec.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable

from orpheus_ws import messages as m
from orpheus_ws.config import LimitsConfig, ServerConfig
from orpheus_ws.context import TERMINAL, Context, Moved, State
from orpheus_ws.errors import (
    BadMessage,
    Internal,
    OrpheusError,
    Overloaded,
    PeerGone,
    SlowConsumer,
)
from orpheus_ws.metrics import Metrics, Moment
from orpheus_ws.server.delivery import Delivery
from orpheus_ws.server.health import Health
from orpheus_ws.server.peer import Peer
from orpheus_ws.server.spoken_context import SpokenContext, player_for
from orpheus_ws.server.turns import SlotTurn, Turns
from orpheus_ws.session import AwaitTurn, Goodbye, Say, Session, Speak, Wait
from orpheus_ws.synthesis import Synthesis
from orpheus_ws.trace import clock
from orpheus_ws.tracing import Tracer

_log = logging.getLogger("orpheus_ws.server")


class Connection:
    """Serves one peer until it closes. `run` returns then; cancelling it frees engine and codec."""

    def __init__(
        self,
        peer: Peer,
        *,
        open_session: Callable[[Moved], Session],
        synthesis: Synthesis,
        turns: Turns,
        health: Health,
        metrics: Metrics,
        tracer: Tracer,
        server: ServerConfig,
        limits: LimitsConfig,
        key: str | None,
        traceparent: str | None,
    ) -> None:
        self.peer = peer
        self._delivery = Delivery(peer, server.write_seconds)
        self._send = self._delivery.send
        self._session = open_session(self._moved)
        self._synthesis = synthesis
        self._health = health
        self._metrics = metrics
        self._tracer = tracer
        self._traceparent = traceparent
        self._server = server
        self._limits = limits
        self._news = asyncio.Event()
        self._turn = SlotTurn(turns, server.max_queue_ms / 1000, self._news.set)
        self._spoken: SpokenContext | None = None
        self._scope: asyncio.Timeout | None = None
        self._cancelled_at: float | None = None
        self._restart_at = math.inf
        self._farewell = (1000, "closed")
        self._origin: dict[str, object] = {"key": key, "surface": peer.surface}
        self._gone = False
        self._opened_at = self._active_at = clock()

    async def run(self, ready: m.Ready) -> None:
        """Greet, then serve until either side closes."""
        self._origin["session"] = ready.session
        try:
            await self._send(ready)
            async with asyncio.TaskGroup() as tasks:
                speaker = tasks.create_task(self._speak())
                # Not through the group, whose exception would refer to itself until the collector comes.
                with contextlib.suppress(PeerGone):
                    await self._read()
                speaker.cancel()
        except* PeerGone:
            pass
        except* SlowConsumer as errors:
            _log.info("slow consumer", extra={"error": str(errors.exceptions[0])})
            await self.peer.close(1008, SlowConsumer.code)
        except* Exception as errors:  # noqa: BLE001 - said in the log, and to the peer as 1011
            _log.error("socket failed", exc_info=errors.exceptions[0])
            await self.peer.close(1011, Internal.code)
        finally:
            self._gone = True
            self._session.abandon()
            self._spoken = None  # it refers to this
            self._metrics.orphaned_seconds.inc(self._delivery.lose())

    @property
    def idle_since(self) -> float | None:
        """Since when no message came and no context was open; None while one is."""
        return None if self._session.contexts else self._active_at

    def leave(self, code: int, reason: str) -> None:
        """Take no new context, and close like this once nothing is open. Does not wait."""
        self._farewell = (code, reason)
        self._session.receive(m.Close(), clock())
        self._news.set()

    async def drain(self, deadline_ms: int, restart_at: float) -> None:
        """Announce the end; from `restart_at` on, close with 1012 as soon as nothing is open."""
        with contextlib.suppress(PeerGone, SlowConsumer):
            await self._send(m.Draining(deadline_ms=deadline_ms))
        self._restart_at = restart_at
        self._news.set()

    async def fail(self, error: OrpheusError) -> None:
        """End every open context with `error`, whatever it waits for, and close with 1011."""
        # In one piece with the close frame and without waiting for room, so that nothing that the
        # two tasks do comes between.
        for context in self._session.contexts:
            reply = self._session.fail(context, error)
            if self.peer.open:
                self.peer.put(reply)
        await self.peer.close(1011, error.code)

    # Reading -------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            # Not the error itself, or it would refer to itself until the collector comes.
            farewell: tuple[int, str] | None = None
            try:
                messages = await self.peer.receive()
            except BadMessage as error:
                if error.close_code is not None:
                    farewell = error.close_code, error.code
                replies = self._session.refuse(error)
            else:
                now = clock()
                replies = [
                    reply for message in messages for reply in self._session.receive(message, now)
                ]
            self._active_at = clock()
            self._interrupt_ended()
            await self._send_all(replies)
            if farewell is not None:
                await asyncio.gather(self.peer.close(*farewell), self._ignore_the_rest())
                return
            self._news.set()
            # Queued frames are read without waiting: a flood must not keep the others from theirs.
            await asyncio.sleep(0)

    async def _ignore_the_rest(self) -> None:
        """Read on, or the peer's own close would not be seen behind what it has sent before."""
        with contextlib.suppress(PeerGone):
            while True:
                with contextlib.suppress(BadMessage):
                    await self.peer.receive()

    def _interrupt_ended(self) -> None:
        """Stop the speaker, once, if what it speaks was cancelled or has failed."""
        if self._scope is None or self._spoken is None or self._spoken.context.live:
            return
        # The scope may be due only once; until it is left, further messages find none.
        scope, self._scope = self._scope, None
        scope.reschedule(asyncio.get_running_loop().time())
        if self._spoken.context.state is State.CANCELLED:
            self._cancelled_at = clock()

    # Speaking ------------------------------------------------------------------------------------

    async def _speak(self) -> None:
        try:
            # A peer that is gone is seen by the reader as well.
            with contextlib.suppress(PeerGone):
                while await self._act():
                    pass
        finally:
            self._turn.give_up()

    async def _act(self) -> bool:
        """Do what is next; false when that was to close the socket."""
        if self.peer.hang_up is not None:
            await self.peer.close(*self.peer.hang_up)
            return False
        action = self._session.next(clock(), self._turn.is_for)
        if self._turn.context is not None and not self._turn.context.live:
            self._turn.give_up()
        match action:
            case Speak(context, text, replies):
                await self._send_all(replies)
                if context.live:
                    await self._utter(context, text)
            case AwaitTurn(context):
                await self._await_turn(context)
            case Say(replies):
                await self._send_all(replies)
            case Wait(until):
                return await self._wait(self._rest(until))
            case Goodbye():
                await self.peer.close(*self._farewell)
                return False
        return True

    async def _utter(self, context: Context, text: str) -> None:
        """Speak a segment, unless it is interrupted, and say how that went."""
        if self._spoken is None or self._spoken.context is not context:
            player = player_for(context, self._spoken)
            self._spoken = SpokenContext(context, player, self._server.group_lead_ms / 1000)
        failure: OrpheusError | None = None
        try:
            async with asyncio.timeout(None) as self._scope:
                await self._pace(self._spoken)
                if context.live:
                    context.trace.begin_segment()
                    with self._tracer.segment(context.trace, len(text)):
                        await self._segment(self._spoken, text)
        except (PeerGone, SlowConsumer):
            raise
        except OrpheusError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - it is this context's end, not the socket's
            # An interruption arrives as TimeoutError; its terminal message has been sent already.
            if context.live:
                told = {"error": type(error).__name__, "trace_id": context.trace.trace_id}
                _log.error("segment failed", extra=told)
                failure = Internal("the server failed; try again")
        finally:
            self._scope = None
        if self._cancelled_at is not None:
            self._metrics.cancelled(context.trace, clock() - self._cancelled_at)
            self._cancelled_at = None
        if failure is not None and context.live:
            await self._send(self._session.fail(context, failure))

    async def _await_turn(self, context: Context) -> None:
        """Wait for a slot or for news; refuse a context that has waited for too long."""
        now = clock()
        if self._turn.context is not context:
            self._turn.ask(context, now, player_for(context, self._spoken).in_hand(now))
        if self._turn.has_slot:
            return
        if self._turn.until > now:
            await self._wait(self._turn.until)
            return
        self._metrics.turns_missed.inc()
        busy = Overloaded(
            "every stream was in use for too long; try again shortly",
            retry_after_ms=self._server.retry_after_seconds * 1000,
        )
        await self._send(self._session.fail(context, busy))

    def _rest(self, until: float | None) -> float | None:
        """There is nothing to say until this time: others may, once everything has been heard."""
        if self._turn.context is None or self._server.oversubscription == 1.0:
            return until
        now = clock()
        heard_at = now + player_for(self._turn.context, self._spoken).in_hand(now)
        if heard_at <= now:
            self._turn.give_up()
            return until
        return heard_at if until is None else min(until, heard_at)

    async def _segment(self, spoken: SpokenContext, text: str) -> None:
        context, trace = spoken.context, spoken.context.trace
        speech = self._synthesis.speak(
            spoken.prompt(text), spoken.shaper, spoken.output, trace, spoken.ask
        )
        previous: float | None = None
        async with contextlib.aclosing(speech) as chunks:
            async for chunk in chunks:
                if previous is None and context.live:
                    await self._send(context.segment(text))
                # Ended contexts are interrupted, but that takes a turn of the event loop.
                if not context.live:
                    return
                message = context.audio(chunk.pcm, chunk.samples)
                assert message is not None
                if not self._delivery.put(message):
                    await self._send(message)
                now = clock()
                self._account(spoken, chunk.samples, now, previous)
                previous = now
                if spoken.surplus(now) > 0 or self._delivery.behind(spoken.most_unread):
                    await self._pace(spoken)
        if context.live:
            await self._end_segment(context, text, previous)

    async def _end_segment(self, context: Context, text: str, sent_at: float | None) -> None:
        """Account for a segment whose last sample was sent at `sent_at`."""
        trace = context.trace
        if not context.has_segment:
            self._delivery.settle()
        if sent_at is not None:  # a segment that was silent throughout is none to a listener
            trace.segments += 1
            trace.first_sentence_at = trace.first_sentence_at or sent_at
            self._metrics.observe(trace, Moment.SEGMENT)
        for reply in context.end_segment(text, trace.reason):
            # It may have ended while a slow peer was waited for.
            if context.live:
                await self._send(reply)

    def _account(
        self, spoken: SpokenContext, samples: int, now: float, previous: float | None
    ) -> None:
        """So much audio was sent now, the last before it at `previous`, if any of this segment."""
        context, trace, player = spoken.context, spoken.context.trace, spoken.player
        if trace.first_byte_at is None:
            trace.first_byte_at = now
            self._metrics.observe(trace, Moment.FIRST_BYTE)
        if trace.first_audio_at is None and spoken.sounds():
            trace.first_audio_at = now
        if previous is None:
            trace.segment_first_byte_at = now
        else:
            self._metrics.chunk_gap.observe(now - previous)
        seconds = samples / context.settings.sample_rate
        underruns, starved = player.underruns, player.starved_seconds
        player.receive(seconds, now)
        self._delivery.sent(seconds, spoken.receipt_every)
        if player.underruns != underruns:
            self._metrics.underruns.inc()
            self._metrics.underrun_seconds.inc(player.starved_seconds - starved)
        self._metrics.audio_seconds.value += seconds
        self._health.worked()

    async def _pace(self, spoken: SpokenContext) -> None:
        """Wait until the listener reads, and has room for the next portion within `lead_ms`."""
        if self._delivery.behind(spoken.most_unread):
            await self._delivery.caught_up(spoken.most_unread)
            spoken.player.excuse(clock())
        surplus = spoken.surplus(clock())
        if surplus > 0:
            await asyncio.sleep(surplus)

    async def _wait(self, until: float | None) -> bool:
        """Wait for news or until a time; false when the socket was closed for being idle."""
        self._news.clear()
        deadlines = [] if until is None else [until]
        if not self._session.contexts:
            now = clock()
            if self._restart_at <= now:
                await self.peer.close(1012, "restart")
                return False
            session_end = self._opened_at + self._limits.session_seconds
            idle_end = self._active_at + self._limits.idle_seconds
            if min(session_end, idle_end) <= now:
                await self.peer.close(1001, "idle" if idle_end <= now else "session_expired")
                return False
            deadlines += [session_end, idle_end, self._restart_at]
        timeout = min(deadlines) - clock() if deadlines else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._news.wait()
        return True

    # Sending -------------------------------------------------------------------------------------

    async def _send_all(self, replies: Iterable[m.ServerMessage]) -> None:
        for reply in replies:
            await self._send(reply)

    # Accounts ------------------------------------------------------------------------------------

    def _moved(self, context: Context, old: State | None, new: State) -> None:
        """The session says that a context changed its state."""
        if old is None:
            context.trace.surface = self.peer.surface
            settings = context.settings
            self._tracer.opened(
                context.trace, settings.voice, settings.traceparent, self._traceparent
            )
        self._metrics.moved(old, None if new in TERMINAL else new)
        if new is State.QUEUED:
            self._metrics.ready(context.trace)
        if new in TERMINAL:
            trace = context.trace
            self._active_at = clock()
            self._turn.ended(context)
            trace.outcome = "disconnected" if self._gone else new.name.lower()
            if (
                new is State.CANCELLED
                and self._spoken is not None
                and self._spoken.context is context
            ):
                unheard = self._spoken.unheard(self._delivery.lose())
                self._metrics.orphaned_seconds.inc(unheard)
            self._metrics.observe(trace, Moment.TERMINAL)
            summary = context.summary()
            self._tracer.ended(trace, summary)
            _log.info("context ended", extra=self._origin | summary)
