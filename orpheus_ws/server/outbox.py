"""What the sockets send in one turn of the event loop, handed to the kernel together.

Rule: a frame is in its connection's own buffer at once, so order never depends on this; only the
system call waits, until everything that is ready in this turn has run. Calls in a row cost less than
calls with other work between them, most of all when the peer is on the same machine and would be
woken for each. Until then nobody notices that a peer reads too little, so there is a bound to it.
"""

import asyncio
from typing import Final

from websockets.asyncio.connection import Connection

TURN_BYTES: Final = 32_768
"""What may wait for one connection: as much as makes the library wait for its peer to read."""


class Outbox:
    """Connections that have something to write. One for each event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Connection, int] = {}

    def has_room(self, connection: Connection) -> bool:
        """Whether more may be posted in this turn."""
        return self._waiting.get(connection, 0) < TURN_BYTES

    def post(self, connection: Connection, size: int) -> None:
        """Have `connection.send_data` called at the end of this turn, for `size` bytes more."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        self._waiting[connection] = self._waiting.get(connection, 0) + size

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            try:
                if not connection.transport.is_closing():
                    connection.send_data()
            except (OSError, RuntimeError):  # uvloop raises the latter for a broken connection
                connection.transport.abort()
