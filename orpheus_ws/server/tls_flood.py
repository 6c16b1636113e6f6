"""What comes over TLS and is data to nobody: key updates, attempts to renegotiate, and the like.

Rule: the TLS library answers such records by itself and nothing above hears of them, so there is no other
way to notice that somebody sends nothing else. What the kernel has received is compared, now and then, with
what became data of it; whoever sends too much for nothing is cut off. Linux alone tells how much that was.
"""

import asyncio
from typing import Final, Protocol

from orpheus_ws.server.tcp import TELLS, bytes_received

LOOK_SECONDS: Final = 0.1
FREE_BYTES: Final = 65_536
"""Of a connection, may be for nothing. A handshake is a few thousand; 64 KiB of key updates take the event loop
some 10 ms."""
MOST_FOR_A_BYTE: Final = 32
"""And so much for each byte of data: one that is a record of its own is 23."""
STRIKES: Final = 2
"""Looks in a row: what was held back has become data by the second."""


class Sender(Protocol):
    """Whose data is looked at."""

    received: int
    """Bytes that became data."""

    @property
    def held_back(self) -> bool:
        """Whether nothing is read from it at the moment: what waits below is not for nothing."""
        ...


class FloodGuard:
    """See the module. One for each event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._strikes: dict[tuple[Sender, asyncio.Transport], int] = {}
        self._looking: asyncio.TimerHandle | None = None

    def watch(self, sender: Sender, transport: asyncio.Transport) -> None:
        """Look after a connection until it is closed. Its TLS handshake is over."""
        if TELLS:
            self._strikes[sender, transport] = 0
            self._look_later()

    def close(self) -> None:
        """Look after nobody any more."""
        self._strikes.clear()
        if self._looking is not None:
            self._looking.cancel()

    def _look_later(self) -> None:
        if self._looking is None and self._strikes:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = None
        for (sender, transport), strikes in tuple(self._strikes.items()):
            if transport.is_closing():
                del self._strikes[sender, transport]
            elif sender.held_back or not _for_nothing(sender, transport):
                self._strikes[sender, transport] = 0
            elif strikes + 1 < STRIKES:
                self._strikes[sender, transport] = strikes + 1
            else:
                del self._strikes[sender, transport]
                transport.abort()
        self._look_later()


def _for_nothing(sender: Sender, transport: asyncio.Transport) -> bool:
    return bytes_received(transport) > FREE_BYTES + MOST_FOR_A_BYTE * sender.received
