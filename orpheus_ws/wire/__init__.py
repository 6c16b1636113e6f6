"""Bytes ⇄ messages. One file per protocol; this one finds them by subprotocol.

Rule: pure functions of one frame. A protocol is an object with the five members of `Wire`; a module
of this package lists its protocols in `WIRES`.
"""

import importlib
import pkgutil
from typing import Protocol

from orpheus_ws.messages import ClientMessage, ServerMessage


class Wire(Protocol):
    """One subprotocol."""

    @property
    def subprotocol(self) -> str:
        """Its name in `Sec-WebSocket-Protocol`."""
        ...

    def decode_request(self, frame: str | bytes) -> ClientMessage:
        """Raises `WrongFrameKind`, `Undecodable` or `BadMessage`."""
        ...

    def encode_request(self, message: ClientMessage) -> str | bytes:
        """Never raises for a well-typed message."""
        ...

    def decode_reply(self, frame: str | bytes) -> ServerMessage:
        """Raises `WrongFrameKind`, `Undecodable` or `BadMessage`."""
        ...

    def encode_reply(self, message: ServerMessage) -> str | bytes:
        """Never raises for a well-typed message."""
        ...


def wires() -> dict[str, Wire]:
    """All protocols by subprotocol."""
    found: dict[str, Wire] = {}
    for module in pkgutil.iter_modules(__path__):
        for wire in importlib.import_module(f"{__name__}.{module.name}").WIRES:
            found[wire.subprotocol] = wire
    return found
