"""Receipts: whether a listener reads what it is sent. Pure.

Rule: a ping is answered once everything before it has been read, so a pong is a receipt. Pings go out
among the audio, and a socket that has ever answered one is sent at most `most_unread` beyond its latest
receipt. That is a window and not a time: whoever is held back has at least its lead but a second before
it, unread, so nobody who reads is harmed, however slowly it reads and however late its answers come. A
socket that never answers gives no receipts, and is sent everything. All figures are seconds of audio.

A receipt costs as much as a message. So somebody who owes none is asked as seldom as the window allows, and
somebody who owes one, like a client that reads only what it plays, often enough not to be held back at all.
"""

from typing import Final

from orpheus_ws.audio import LARGEST_PORTION

RECEIPT_SECONDS: Final = 1.0
"""Audio after which a receipt is asked for, at the end of a message, while another is owed."""
RECEIPT_SLACK: Final = RECEIPT_SECONDS + LARGEST_PORTION
"""The most that a listener whose receipts are late may have read and has no receipt for."""
LONGEST_ROUND_TRIP: Final = 1.0
"""What is under way and read meanwhile. Only a lead shorter than this could run out over it."""
TRIAL_SECONDS: Final = 10.0
"""Audio for which receipts are asked for though none has ever come. More would only pile up."""


def most_unread(lead: float) -> float:
    """What may be sent without a receipt to a listener that is kept `lead` ahead.

    One that reads only what is played has all of its lead unread.
    """
    return max(lead, LONGEST_ROUND_TRIP) + RECEIPT_SLACK


def unread_when_held(lead: float) -> float:
    """What somebody who is held back has before it at least, unread."""
    return max(lead - RECEIPT_SECONDS, LONGEST_ROUND_TRIP)


def receipt_every(lead: float) -> float:
    """Audio after which somebody who owes no receipt is asked for one: 1 to 2 seconds.

    It is what the window leaves. More, with a long lead, would not fit the window of a short one that the
    next context may have.
    """
    return most_unread(lead) - unread_when_held(lead) - LARGEST_PORTION


class ReceiptWindow:
    """What one socket was sent, and what it has read of that."""

    def __init__(self) -> None:
        self._answers = False
        self._sent = 0.0
        self._asked = 0.0
        self._read = 0.0
        self._lost = 0.0

    def sent(self, seconds: float, every: float) -> bool:
        """More was sent. Returns whether a receipt should be asked for now.

        `every` is for somebody who owes none: `receipt_every` of its lead.
        """
        self._sent += seconds
        if self._asked > self._read:
            every = RECEIPT_SECONDS
        return (self._sent - self._asked >= every or self._asked == 0.0) and self.owes

    @property
    def owes(self) -> bool:
        """Whether there is something that no receipt was asked for, and one may be."""
        return self._sent > self._asked and (self._answers or self._asked < TRIAL_SECONDS)

    def ask(self) -> float:
        """A receipt is asked for. Returns what to tell `read` when it comes."""
        self._asked = self._sent
        return self._asked

    def read(self, position: float) -> None:
        """A receipt came, for everything up to `position`."""
        self._answers = True
        self._read = max(self._read, position)

    def behind(self, most: float) -> bool:
        """Whether more than `most` was sent without a receipt, to somebody who gives them."""
        return self._sent - self._read > most and self._answers

    def lose(self) -> float:
        """What will not be read any more: it was asked for, and has no receipt. Tells it once."""
        if not self._answers:
            return 0.0
        lost = max(0.0, self._asked - max(self._read, self._lost))
        self._lost = self._asked
        return lost
