"""The native protocol, in msgpack and in JSON. See `docs/protocol.md`.

Rule: its messages are ours, so a translator only knows which wire is spoken.
"""

from typing import Final

from orpheus_ws.context import Silence
from orpheus_ws.messages import ClientMessage, ServerMessage
from orpheus_ws.surfaces import Opening, Surface
from orpheus_ws.wire import Wire, wires

PATH: Final = "/v1/tts"
DEFAULT_SUBPROTOCOL: Final = "tts.v1.json"
"""Spoken when the client offers none."""

_WIRES: Final = wires()


class _Native:
    """See `Translator`."""

    def __init__(self, wire: Wire) -> None:
        self._decode = wire.decode_request
        self._encode = wire.encode_reply

    def receive(self, frame: str | bytes) -> tuple[ClientMessage]:
        """See `Translator`."""
        return (self._decode(frame),)

    def send(self, message: ServerMessage) -> tuple[str | bytes]:
        """See `Translator`."""
        return (self._encode(message),)


def _open(opening: Opening) -> _Native:
    return _Native(_WIRES[opening.subprotocol or DEFAULT_SUBPROTOCOL])


SURFACES: Final = (
    Surface("native", (PATH,), _open, subprotocols=tuple(_WIRES), silence=Silence.NEVER),
)
