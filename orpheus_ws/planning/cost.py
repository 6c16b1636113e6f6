"""What an hour comes to, from a price, a capacity and how the streams are used.

Rule: the user's own price and habits go in; no price is known here.
"""

from typing import Final

import msgspec

TALK_SHARE: Final = 0.4
UTILISATION: Final = 0.6
"""Where the commands begin if they are told a price alone. Assumptions."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a cost takes; see `cost`."""

    price: float
    talk_share: float = TALK_SHARE
    utilisation: float = UTILISATION

    def cost(self, capacity: int) -> "Cost":
        """What it comes to. Raises `ValueError` as `cost` does."""
        return cost(self.price, capacity, talk_share=self.talk_share, utilisation=self.utilisation)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """In the currency of the price."""

    speech_hour: float
    """For an hour of speech that somebody hears."""
    conversation_hour: float
    """For an hour of a conversation, in which the agent speaks for its share of the time."""


def cost(
    price: float,
    capacity: int,
    *,
    talk_share: float,
    utilisation: float,
    sockets_per_slot: float = 1.0,
) -> Cost:
    """Cost of speech on a GPU that costs `price` an hour and has `capacity` slots.

    `talk_share` is the part of a conversation in which the agent speaks; `utilisation` the part of
    the sockets that carry a conversation, as a mean over all hours that are paid for; both in (0, 1].
    A conversation keeps a socket all the time. With more sockets than slots (`sockets_per_slot`,
    as `limits` allow it) they still cannot speak more than the slots: the dearer of the two counts.
    Raises `ValueError` for what cannot be.
    """
    if not (0 < talk_share <= 1 and 0 < utilisation <= 1):
        raise ValueError("talk share and utilisation are parts of 1, and not 0")
    if price < 0 or capacity < 1 or sockets_per_slot < 1:
        raise ValueError("a price is not negative; there is a slot, and a socket for each")
    conversations = min(
        capacity * sockets_per_slot * utilisation,
        capacity / talk_share,
    )
    conversation_hour = price / conversations
    return Cost(conversation_hour=conversation_hour, speech_hour=conversation_hour / talk_share)
