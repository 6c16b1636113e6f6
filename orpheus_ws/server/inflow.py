"""What comes in on a connection, a little at a time.

Rule: a peer that sends much at once is worked for a piece in each turn of the event loop, and one that
sends too many frames is not read from until it has made up for them; so a flood costs the flooder.
Meanwhile the kernel holds back the peer: here no more than one read waits.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from orpheus_ws.server.bucket import Bucket
from orpheus_ws.trace import clock

PIECE_BYTES: Final = 1024
"""What is worked for in one turn: 170 of the shortest frames, or 2 to 3 ms of them."""
MOST_HELD_BYTES: Final = 1_048_576
"""Four of the longest reads of an event loop (256 KiB). Whoever gets past this is cut off."""
BURST_SECONDS: Final = 4.0
"""Of the rate of frames, may come at once."""


class Inflow:
    """Stands between a transport and what takes its data.

    `take` works for a piece and returns how many frames it was, of which there may be
    `frames_per_second` (None: any number). Call `feed` with what arrives, and
    `stop` when the connection is lost. `pause_reading` and `resume_reading` are for the taker,
    instead of the transport's.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        take: Callable[[bytes], int],
        frames_per_second: float | None = None,
    ) -> None:
        self._transport = transport
        self._take = take
        self._bucket = (
            None
            if frames_per_second is None
            else Bucket(frames_per_second, frames_per_second * BURST_SECONDS)
        )
        self._held = bytearray()
        self._next: asyncio.Handle | None = None
        self._full = False
        self.paused = False
        """Whether nothing is read from the transport for now."""
        self._loop = asyncio.get_running_loop()

    def feed(self, data: bytes) -> None:
        """Data has arrived."""
        if not self._held and self._next is None and not self._full and len(data) <= PIECE_BYTES:
            self._work(data)
            return
        self._held += data
        if len(self._held) > MOST_HELD_BYTES:
            self.stop()
            self._transport.abort()
        elif self._next is None and not self._full:
            self._pour()

    @property
    def holds(self) -> bool:
        """Whether something has arrived that is still to be worked for."""
        return bool(self._held)

    def pause_reading(self) -> None:
        """The taker has enough for now."""
        self._full = True
        self._read(wanted=False)

    def resume_reading(self) -> None:
        """The taker has room again."""
        self._full = False
        if self._next is None:
            self._next = self._loop.call_soon(self._pour)

    def stop(self) -> None:
        """Work for nothing any more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._held.clear()
        self._full = True
        self._take = _ignore  # or the two would keep each other until the collector comes

    def _pour(self) -> None:
        self._next = None
        if self._full or self._transport.is_closing():
            return
        piece = bytes(self._held[:PIECE_BYTES])
        del self._held[:PIECE_BYTES]
        self._work(piece)

    def _work(self, piece: bytes) -> None:
        frames = self._take(piece) if piece else 0
        if self._transport.is_closing():
            return
        wait = 0.0 if self._bucket is None else self._bucket.spend(frames, clock())
        if wait > 0:
            self._next = self._loop.call_later(wait, self._pour)
        elif self._held and not self._full:
            self._next = self._loop.call_soon(self._pour)
        self._read(wanted=self._next is None and not self._full)

    def _read(self, *, wanted: bool) -> None:
        if wanted and self.paused:
            self.paused = False
            self._transport.resume_reading()
        elif not wanted and not self.paused:
            self.paused = True
            self._transport.pause_reading()


def _ignore(_data: bytes) -> int:
    return 0
