"""What the sockets send in one turn of the event loop, handed to the kernel together.

Rule: a frame is in its connection's own buffer at once, so order never depends on this; only the
system call waits, until everything that is ready in this turn has run. Calls in a row cost less than
calls with other work between them, most of all when the peer is on the same machine and would be
woken for each.
"""

import asyncio

from websockets.asyncio.connection import Connection


class Outbox:
    """Connections that have something to write. One for each event loop."""

    def __init__(self) -> None:
        self._waiting: list[Connection] = []

    def post(self, connection: Connection) -> None:
        """Have `connection.send_data` called at the end of this turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        self._waiting.append(connection)

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            try:
                if not connection.transport.is_closing():
                    connection.send_data()
            except (OSError, RuntimeError):  # uvloop raises the latter for a broken connection
                connection.transport.abort()
