"""Clients written by hand, one file per surface, named as the surface.

Rule: a module has one class `Client`, a `Speaker`. It sends and expects what real clients do, and knows
nothing of how the server does it.
"""

import contextlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import ClassVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.harness import Reachable


class Speaker(ABC):
    """A client's end of one socket."""

    path: ClassVar[str]
    subprotocols: ClassVar[tuple[str, ...]] = ()
    warm: ClassVar[bool]
    """Whether a socket has more than one turn."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    @abstractmethod
    async def greet(self) -> None:
        """Do what comes before the first turn."""

    @abstractmethod
    async def write(self, text: str, *, complete: bool) -> None:
        """Send a turn's text in pieces; with `complete` also its end."""

    @abstractmethod
    async def hear(self) -> bytes:
        """The next audio of the turn, of 16 bits at 24 kHz, or nothing once the turn is over."""

    @abstractmethod
    async def fails(self) -> None:
        """Wait for the turn to fail before any audio, and check how the client is told."""

    @abstractmethod
    async def offend(self) -> None:
        """Send what does not fit, and check the answer."""

    async def turn(self, text: str) -> bytes:
        """Say something and hear all of it."""
        await self.write(text, complete=True)
        return await self.rest()

    async def rest(self) -> bytes:
        """Hear the turn to its end."""
        pieces = []
        while piece := await self.hear():
            pieces.append(piece)
        return b"".join(pieces)


def pieces(text: str) -> list[str]:
    """As a language model sends it: words with the space before them."""
    first, *others = text.split(" ")
    return [first, *(f" {word}" for word in others)]


def client_of(surface: str) -> type[Speaker]:
    """The client of a surface; there must be one."""
    client: type[Speaker] = importlib.import_module(f"{__name__}.{surface}").Client
    return client


@contextlib.asynccontextmanager
async def speaking(started: Reachable, surface: str) -> AsyncIterator[Speaker]:
    """A socket to a surface, past its greeting."""
    client = client_of(surface)
    async with connect(
        f"ws://127.0.0.1:{started.address.port}{client.path}",
        subprotocols=[Subprotocol(name) for name in client.subprotocols] or None,
        compression=None,
        ping_interval=None,
        max_size=None,
    ) as socket:
        speaker = client(socket)
        await speaker.greet()
        yield speaker
