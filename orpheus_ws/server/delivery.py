"""What is sent to one peer, and whether it arrives.

Rule: the one place that notices a peer that does not read: it has no room for a message, or it owes
receipts for too much audio (`receipts` has the rule). Who reads nothing for `write_seconds` then is a slow
consumer.
"""

import asyncio
from functools import partial

from orpheus_ws import messages as m
from orpheus_ws.errors import SlowConsumer
from orpheus_ws.server.peer import Peer
from orpheus_ws.server.receipts import ReceiptWindow


class Delivery:
    """Sends to `peer`, for as long as it reads something within `write_seconds`."""

    def __init__(self, peer: Peer, write_seconds: float) -> None:
        self._peer = peer
        self._write_seconds = write_seconds
        self._window = ReceiptWindow()
        self._receipt = asyncio.Event()
        self.behind = self._window.behind
        self.lose = self._window.lose

    def put(self, message: m.ServerMessage) -> bool:
        """Send one message if the peer has not fallen behind; false if it was not sent."""
        if self._peer.has_room:
            self._peer.put(message)
            return True
        return False

    async def send(self, message: m.ServerMessage) -> None:
        """Send one message. Raises `PeerGone`, or `SlowConsumer` if the peer reads nothing.

        Messages leave in the order of the calls and cancelling never cuts one. It waits only if the
        peer has fallen behind.
        """
        if self.put(message):
            return
        try:
            async with asyncio.timeout(self._write_seconds):
                await self._peer.send(message)
        except TimeoutError:
            raise self._slow() from None

    def sent(self, seconds: float, every: float) -> None:
        """So much audio was sent; now and then, have it proved that it was read (see `ReceiptWindow`)."""
        if self._window.sent(seconds, every):
            self._ask()

    def settle(self) -> None:
        """No audio follows for now: have it proved that all of it was read."""
        if self._window.owes:
            self._ask()

    async def caught_up(self, most: float) -> None:
        """Wait until there are receipts for all but `most` seconds of audio. Raises `SlowConsumer`."""
        while self.behind(most):
            self.settle()
            self._receipt.clear()
            try:
                async with asyncio.timeout(self._write_seconds):
                    await self._receipt.wait()
            except TimeoutError:
                raise self._slow() from None

    def _ask(self) -> None:
        self._peer.ping(partial(self._read, self._window.ask()))

    def _read(self, position: float) -> None:
        self._window.read(position)
        self._receipt.set()

    def _slow(self) -> SlowConsumer:
        return SlowConsumer(f"nothing was read for {self._write_seconds:g} s while audio was due")
