"""The other end of a conversation, whatever carries it.

Rule: a `Connection` knows who it speaks to by this alone. What is put leaves in the order of the
calls, and a message that has been put is never cut.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from orpheus_ws import messages as m
from orpheus_ws.surfaces import HangUp


class Peer(Protocol):
    """Somebody who sends text and hears speech."""

    @property
    def surface(self) -> str:
        """Name of the protocol, for metrics and logs."""
        ...

    @property
    def open(self) -> bool:
        """Whether anything can still be put."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether `put` is all that is needed; if not, `send` waits until the peer has read.

        A peer that is not open has none.
        """
        ...

    @property
    def hang_up(self) -> HangUp | None:
        """How to close, once the peer's protocol has come to its end."""
        ...

    async def receive(self) -> Sequence[m.ClientMessage]:
        """Wait for what arrives next.

        Raises `BadMessage` for what does not fit (call again, unless it has a close code) and
        `PeerGone` when nothing will arrive any more. Cancelling loses nothing.
        """
        ...

    def put(self, message: m.ServerMessage) -> None:
        """Send to an open peer, whether there is room or not. Does not wait."""
        ...

    async def send(self, message: m.ServerMessage) -> None:
        """Send, and wait until there is room for more. Raises `PeerGone`.

        The message is put before this first waits. Cancelling only ends the waiting.
        """
        ...

    def ping(self, answered: Callable[[], None]) -> None:
        """Have `answered` called once the peer has read what was put so far. It may never be."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close, with one of WebSocket's codes. Does not fail, whatever state the peer is in."""
        ...
