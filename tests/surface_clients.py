"""Clients of protocols in JSON, written by hand: what they have in common.

Rule: a client adds how its protocol says what is heard, and waits for what its protocol has.
"""

import json
from abc import ABC, abstractmethod
from typing import Any, Final

from websockets.asyncio.client import ClientConnection

BYTES_PER_SECOND: Final = 48_000
LEAD_SECONDS: Final = 2.0
SEGMENT_SECONDS: Final = 3.5
"""More than `SENTENCE` takes."""


class JsonClient(ABC):
    """A client's end of one socket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    @staticmethod
    @abstractmethod
    def audio(frame: str | bytes) -> bytes:
        """What is heard of a frame, which may be nothing."""

    async def send(self, *requests: dict[str, Any]) -> None:
        """Send requests in order."""
        for each in requests:
            await self.socket.send(json.dumps(each))

    async def hear(self, seconds: float) -> int:
        """Listen for as long; how many bytes that were."""
        heard = 0
        while heard < seconds * BYTES_PER_SECOND:
            heard += len(self.audio(await self.socket.recv()))
        return heard
