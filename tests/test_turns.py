"""Slots and who gets one next, on a pure model in virtual time."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from orpheus_ws import messages as m
from orpheus_ws.context import Context
from orpheus_ws.server.turns import PATIENCE, SlotTurn, Turns

MOST_SECONDS = 5.0


def context(*, begun: bool) -> Context:
    """A context, of which something has been delivered or nothing."""
    made = Context("a", 1, m.Settings(voice="tara"), lambda *_: None, 0.0)
    made.delivered = 2400 if begun else 0
    return made


def nothing() -> None:
    """Nobody listens."""


def asking(turns: Turns, now: float, in_hand: float = 0.0, *, begun: bool = False) -> SlotTurn:
    """A socket that asks for a slot."""
    turn = SlotTurn(turns, MOST_SECONDS, nothing)
    turn.ask(context(begun=begun), now, in_hand)
    return turn


def served(turns: Turns, holder: SlotTurn, waiting: list[SlotTurn]) -> list[SlotTurn]:
    """The order in which those who wait get the one slot, which `holder` has."""
    order = []
    while waiting:
        holder.give_up()
        (holder,) = (turn for turn in waiting if turn.has_slot)
        waiting.remove(holder)
        order.append(holder)
    return order


def test_a_free_slot_is_had_at_once() -> None:
    """While there are free slots nobody waits, and whoever waits does so only while there are none."""
    turns = Turns(2)
    first, second, third = (asking(turns, 0.0) for _ in range(3))
    assert (first.has_slot, second.has_slot, third.has_slot) == (True, True, False)
    assert (turns.taken, turns.waiting) == (2, 1)
    first.give_up()
    assert third.has_slot
    assert (turns.taken, turns.waiting) == (2, 0)


def test_sockets_take_turns() -> None:
    """A socket that has just spoken goes behind one that has waited, however often it asks."""
    turns = Turns(1)
    eager, patient = asking(turns, 0.0), asking(turns, 0.1)
    for cycle in range(3):
        now = cycle + 1.0
        eager.give_up()
        eager.ask(context(begun=False), now, 0.0)
        assert patient.has_slot
        patient.give_up()
        patient.ask(context(begun=False), now + 0.1, 0.0)
        assert eager.has_slot


def test_who_runs_dry_first_goes_first() -> None:
    """Of those in the middle of speech the one with the least to play is next, then who has not begun."""
    turns = Turns(1)
    holder = asking(turns, 0.0)
    new = asking(turns, 0.0)
    plenty = asking(turns, 0.0, 0.9, begun=True)
    little = asking(turns, 0.0, 0.2, begun=True)
    assert served(turns, holder, [new, plenty, little]) == [little, plenty, new]


def test_first_sound_before_more_lead() -> None:
    """A context that has not begun goes before one whose listener has plenty to play."""
    turns = Turns(1)
    holder = asking(turns, 0.0)
    lead = asking(turns, 0.0, PATIENCE + 0.5, begun=True)
    new = asking(turns, 0.0)
    assert served(turns, holder, [lead, new]) == [new, lead]


def test_who_leaves_is_not_called() -> None:
    """Neither who stops waiting nor whose context ends is given a slot; a slot is not lost with it."""
    turns = Turns(1)
    holder, left, stays = (asking(turns, float(n)) for n in range(3))
    gone = left.context
    assert gone is not None
    left.ended(context(begun=False))
    assert turns.waiting == 2
    left.ended(gone)
    assert turns.waiting == 1
    speaking = holder.context
    assert speaking is not None
    holder.ended(speaking)  # the engine is still being stopped
    assert holder.has_slot
    assert not stays.has_slot
    holder.give_up()
    holder.give_up()
    assert (stays.has_slot, left.has_slot, turns.taken) == (True, False, 1)


class Sockets(RuleBasedStateMachine):
    """Sockets that ask, speak, fall silent and leave in any order, some in the middle of speech.

    Claims: no more than the slots are taken and none is free while somebody waits; and nobody who
    asked after a context was due goes before it.
    """

    @initialize(slots=st.integers(1, 4))
    def start(self, slots: int) -> None:
        self.now = 0.0
        self.turns = Turns(slots)
        self.sockets = [SlotTurn(self.turns, MOST_SECONDS, nothing) for _ in range(10)]
        self.asked: dict[SlotTurn, float] = {}

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(nth=st.integers(0, 9), in_hand=st.sampled_from([0.0, 0.5, 2.0]), begun=st.booleans())
    def ask(self, nth: int, in_hand: float, begun: bool) -> None:
        socket = self.sockets[nth]
        if socket.context is None:
            waiting = set(self.asked)
            socket.ask(context(begun=begun), self.now, in_hand)
            self.asked[socket] = self.now
            self.check_called(waiting)

    @rule(nth=st.integers(0, 9))
    def leave(self, nth: int) -> None:
        socket = self.sockets[nth]
        self.asked.pop(socket, None)
        waiting = set(self.asked)
        socket.give_up()
        self.check_called(waiting)

    def check_called(self, waiting: set[SlotTurn]) -> None:
        for called in [turn for turn in self.asked if turn.has_slot]:
            asked = self.asked.pop(called)
            for other in waiting - {called}:
                if not other.has_slot:
                    assert asked <= other.due

    @invariant()
    def slots_are_kept(self) -> None:
        if hasattr(self, "turns"):
            assert self.turns.taken == sum(turn.has_slot for turn in self.sockets)
            assert self.turns.taken <= self.turns.slots
            assert self.turns.waiting == len(self.asked)
            assert not self.turns.waiting or self.turns.taken == self.turns.slots


TestSockets = Sockets.TestCase
TestSockets.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@settings(deadline=None)
@given(slots=st.integers(1, 4), extra=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_nobody_starves(slots: int, extra: int, seed: int) -> None:
    """In virtual time, with sockets that never stop asking, of every kind, everybody gets a turn.

    From the moment it is due, a context waits for the others at most: each socket has one turn, of at
    most `longest` seconds, and those go on `slots` at a time.
    """
    chance = random.Random(seed)
    turns, longest, now = Turns(slots), 3.0, 0.0
    sockets = [SlotTurn(turns, MOST_SECONDS, nothing) for _ in range(slots + extra)]
    ends: dict[SlotTurn, float] = {}
    asks = {socket: chance.uniform(0, 1) for socket in sockets}
    most = longest * (1 + (slots + extra) / slots)
    turn_count = dict.fromkeys(sockets, 0)
    for _ in range(300):
        now, socket = min((when, nth) for nth, when in enumerate(
            ends.get(one, asks.get(one, float("inf"))) for one in sockets))  # fmt: skip
        acting = sockets[socket]
        if acting in ends:
            del ends[acting]
            acting.give_up()
            asks[acting] = now + chance.choice([0.0, 0.0, 1.0])
        else:
            del asks[acting]
            speaks = chance.random() < 0.5
            acting.ask(context(begun=speaks), now, chance.choice([0.0, 1.5]) if speaks else 0.0)
        for one in sockets:
            if one.has_slot and one not in ends:
                assert now <= one.due + most
                ends[one] = now + chance.uniform(0.1, longest)
                turn_count[one] += 1
    assert min(turn_count.values()) > 0
