"""Whose turn it is to use a slot of the engine, and who is next. Pure.

Rule: a context has a slot from its first segment on, from segment to segment, until it has ended or
its listener has heard everything and no more text has come. So nobody who speaks has to ask again,
and admitting others never breaks speech. A socket asks for one context at a time. When all slots are
taken, who is due first is next: due is the moment when the listener runs dry, and for a context that
has not begun `PATIENCE` later. Nobody who asks after that moment goes first, so nobody starves. Time
is an argument, in seconds of any one clock.
"""

import bisect
from collections.abc import Callable
from typing import Final

from orpheus_ws.context import Context

PATIENCE: Final = 1.0
"""A context that has not begun lets those go first that have begun, have nothing left to play, and ask
within so many seconds. Long enough to bridge a pause of a language model's, and not much of a wait."""


class Turns:
    """The slots, and those who wait for one."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._taken: set[SlotTurn] = set()
        self._waiting: list[SlotTurn] = []  # those who are due first come first

    @property
    def taken(self) -> int:
        """Slots in use."""
        return len(self._taken)

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return len(self._waiting)

    def join(self, turn: "SlotTurn") -> None:
        """Call `turn` as soon as it has a slot, which may be at once."""
        bisect.insort_right(self._waiting, turn, key=lambda waiting: waiting.due)
        self._call()

    def leave(self, turn: "SlotTurn") -> None:
        """Give the slot back or wait no more, whichever it is. Idempotent."""
        if turn in self._taken:
            self._taken.remove(turn)
            self._call()
        elif turn in self._waiting:
            self._waiting.remove(turn)

    def _call(self) -> None:
        while self._waiting and len(self._taken) < self.slots:
            turn = self._waiting.pop(0)
            self._taken.add(turn)
            turn.call()


class SlotTurn:
    """One socket among all that want to speak. `called` hears that it has a slot; it may not ask."""

    def __init__(self, turns: Turns, most_seconds: float, called: Callable[[], None]) -> None:
        self.due = 0.0
        """When it should go on."""
        self.until = 0.0
        """When it has waited for `most_seconds`."""
        self.has_slot = False
        self.context: Context | None = None
        """Who asked, and has not given up since."""
        self._turns = turns
        self._most_seconds = most_seconds
        self._called = called

    def ask(self, context: Context, now: float, in_hand: float) -> None:
        """Wait for a slot for `context`, whose listener has `in_hand` seconds to play."""
        self.context = context
        self.due = now + in_hand + (0.0 if context.delivered else PATIENCE)
        self.until = now + self._most_seconds
        self._turns.join(self)

    def is_for(self, context: Context) -> bool:
        """Whether `context` may speak."""
        return self.has_slot and self.context is context

    def call(self) -> None:
        """It has a slot now."""
        self.has_slot = True
        self._called()

    def give_up(self) -> None:
        """Give the slot to another, or wait no longer. Idempotent."""
        self.context, self.has_slot = None, False
        self._turns.leave(self)

    def ended(self, context: Context) -> None:
        """`context` has ended. If it was waiting it is not any more; a slot is given up later."""
        if self.context is context and not self.has_slot:
            self.give_up()
