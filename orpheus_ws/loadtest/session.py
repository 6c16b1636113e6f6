"""A socket of a pool, kept from turn to turn.

Rule: one turn at a time, and always by the client package, which opens, reads and replaces sockets.
"""

from orpheus_ws.client.connection import Connection, open_connection
from orpheus_ws.client.lasting import OPEN_SECONDS, Client
from orpheus_ws.loadtest.listener import Listener
from orpheus_ws.trace import clock


class Session:
    """A socket that is kept for as long as it is good, and a fresh one when it is not."""

    def __init__(self, stream: int, url: str, api_key: str | None) -> None:
        self.stream = stream
        self._client: Client | None = None
        self._open = lambda: open_connection(url, api_key=api_key, open_timeout=OPEN_SECONDS)
        self._connection: Connection | None = None
        self._contexts: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether it has a socket now."""
        return self._connection is not None and self._connection.usable

    async def take(self) -> tuple[Connection, bool]:
        """Its socket, and whether it is a fresh one. Raises what `client.connect` does."""
        if self._client is None:
            self._client = Client(self._open)
        before = self._connection
        self._connection = await self._client.connection()
        return self._connection, self._connection is not before

    def enter(self, context: str, listener: Listener) -> None:
        """From now on what comes for `context` goes to `listener`."""
        assert self._connection is not None
        # The last turn is listened to during this one, in case something comes after its end.
        self._contexts.append(context)
        if len(self._contexts) > 2:
            self._connection.leave(self._contexts.pop(0))
        self._connection.enter(context, lambda message: listener.receive(message, clock()))

    async def close(self) -> None:
        """Give the socket up; the next `take` opens another."""
        client, self._client, self._connection = self._client, None, None
        if client is not None:
            await client.close()
