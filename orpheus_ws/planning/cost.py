"""What an hour comes to, from a price, a capacity and how the streams are used.

Rule: the user's own price and habits go in; no price is known here.
"""

from typing import Final

import msgspec

TALK_SHARE: Final = 0.4
UTILISATION: Final = 0.6
"""Where the commands begin if they are told a price alone. Assumptions."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """In the currency of the price."""

    speech_hour: float
    """For an hour of speech that somebody hears."""
    conversation_hour: float
    """For an hour of a conversation, in which the agent speaks for its share of the time."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine costs, and how it is used."""

    price: float
    """Of an hour."""
    talk_share: float = TALK_SHARE
    """Part of a conversation in which the agent speaks, in (0, 1]."""
    utilisation: float = UTILISATION
    """Part of the sockets that carry a conversation, as a mean over all hours that are paid for, in
    (0, 1]."""

    def cost(self, capacity: int) -> Cost:
        """What it comes to with so many slots, each of which a conversation keeps all the time.

        Raises `ValueError` for what cannot be.
        """
        if not (0 < self.talk_share <= 1 and 0 < self.utilisation <= 1):
            raise ValueError("talk share and utilisation are parts of 1, and not 0")
        if self.price < 0 or capacity < 1:
            raise ValueError("a price is not negative, and there is a slot")
        hour = self.price / (capacity * self.utilisation)
        return Cost(conversation_hour=hour, speech_hour=hour / self.talk_share)
