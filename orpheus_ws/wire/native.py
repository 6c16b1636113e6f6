"""The native protocol, version 1, in msgpack and in JSON.

Rule: the schema is `orpheus_ws.messages`; this file only knows how frames look. msgpack frames are
binary maps. JSON control messages are text frames, and JSON audio is a binary frame with the header
`u8 version, u8 flags, u16 context handle, u32 sequence number, u64 sample offset`, little-endian.
"""

import re
import struct
from collections.abc import Callable
from typing import Final, Literal, TypeVar, get_args

import msgspec

from orpheus_ws.errors import BadMessage, Undecodable, WrongFrameKind
from orpheus_ws.messages import (
    Audio,
    ClientMessage,
    ContextId,
    Sampling,
    Segmentation,
    ServerMessage,
)

_AUDIO_HEADER: Final = struct.Struct("<BBHIQ")
_AUDIO_VERSION: Final = 1

_T = TypeVar("_T")
_F = TypeVar("_F", str, bytes)

# A character beyond U+FFFF is two escapes in JSON. Clients that cut text cut between them, too.
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)",
    re.DOTALL,
)

_EXPECTED: Final = re.compile(
    r"Expected (?P<what>.+?)(?:, got `\w+`)? - at `\$\.(?P<path>[\w.]+)`\Z"
)
_NOT_ALLOWED: Final = re.compile(r"Invalid .* - at `\$\.(?P<path>[\w.]+)`\Z", re.DOTALL)
# The name is the peer's and may be anything, so what follows it counts only at the very end.
_UNKNOWN: Final = re.compile(
    r"Object contains unknown field .*?(?: - at `\$\.(?P<path>[\w.]+)`)?\Z", re.DOTALL
)
_PARTS: Final[dict[str, type[msgspec.Struct]]] = {"sampling": Sampling, "segment": Segmentation}
_MISSING: Final = re.compile(r"Object missing required field `(?P<field>\w+)`")


class _AudioMap(msgspec.Struct, frozen=True, tag_field="type", tag="audio"):
    """Audio as msgpack has it: named by context, without the handle."""

    context: str
    seq: int
    offset: int
    pcm: bytes


class MsgpackWire:
    """`tts.v1.msgpack`: every frame is one binary map with a `type`."""

    subprotocol = "tts.v1.msgpack"

    def __init__(self) -> None:
        self._requests = msgspec.msgpack.Decoder(ClientMessage)
        self._replies = msgspec.msgpack.Decoder(ServerMessage)
        self._encode = msgspec.msgpack.Encoder().encode

    def decode_request(self, frame: str | bytes) -> ClientMessage:
        """See `Wire`."""
        return _decode(self._requests.decode, _binary(frame), ClientMessage)

    def encode_request(self, message: ClientMessage) -> bytes:
        """See `Wire`."""
        return self._encode(message)

    def decode_reply(self, frame: str | bytes) -> ServerMessage:
        """See `Wire`."""
        return _decode(self._replies.decode, _binary(frame), ServerMessage)

    def encode_reply(self, message: ServerMessage) -> bytes:
        """See `Wire`."""
        if isinstance(message, Audio):
            return self._encode(
                _AudioMap(message.context, message.seq, message.offset, message.pcm)
            )
        return self._encode(message)


class JsonWire:
    """`tts.v1.json`, also spoken when a client offers no subprotocol."""

    subprotocol = "tts.v1.json"

    def __init__(self) -> None:
        self._requests = msgspec.json.Decoder(ClientMessage)
        self._replies = msgspec.json.Decoder(ServerMessage)
        self._encode = msgspec.json.Encoder().encode

    def decode_request(self, frame: str | bytes) -> ClientMessage:
        """See `Wire`."""
        if not isinstance(frame, str):
            raise WrongFrameKind("send JSON messages in text frames")
        return _decode(self._requests.decode, without_halves(frame), ClientMessage)

    def encode_request(self, message: ClientMessage) -> str:
        """See `Wire`."""
        return self._encode(message).decode()

    def decode_reply(self, frame: str | bytes) -> ServerMessage:
        """See `Wire`. Audio comes back with its handle and no context."""
        if isinstance(frame, str):
            return _decode(self._replies.decode, frame, ServerMessage)
        if len(frame) < _AUDIO_HEADER.size or frame[0] != _AUDIO_VERSION:
            raise Undecodable("not an audio frame of version 1")
        _, _, handle, seq, offset = _AUDIO_HEADER.unpack_from(frame)
        return Audio(handle=handle, seq=seq, offset=offset, pcm=frame[_AUDIO_HEADER.size :])

    def encode_reply(self, message: ServerMessage) -> str | bytes:
        """See `Wire`."""
        if isinstance(message, Audio):
            header = _AUDIO_HEADER.pack(
                _AUDIO_VERSION, 0, message.handle, message.seq, message.offset
            )
            return header + message.pcm
        return self._encode(message).decode()


WIRES: Final = (MsgpackWire(), JsonWire())


def without_halves(text: str) -> str:
    """JSON without halves of surrogate pairs, which have no sound, and which no decoder takes."""
    return _ESCAPE.sub(_whole, text) if _SURROGATE.search(text) else text


def _whole(escape: re.Match[str]) -> str:
    return "" if len(escape.group()) == 6 else escape.group()


def _binary(frame: str | bytes) -> bytes:
    if isinstance(frame, str):
        raise WrongFrameKind("send msgpack messages in binary frames")
    return frame


def _decode(decode: Callable[[_F], _T], frame: _F, schema: object) -> _T:
    try:
        return decode(frame)
    except msgspec.ValidationError as error:
        meant = _glimpse(frame, _Addressed)
        raise BadMessage(
            _advice(str(error), _kind(frame, schema), schema),
            context=None if meant is None else meant.context,
            cancels=meant is not None and meant.type == "cancel",
        ) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise Undecodable("the frame is not valid msgpack or JSON") from None


class _Typed(msgspec.Struct):
    type: str


class _Addressed(msgspec.Struct):
    """What matters for its context even if the rest does not fit."""

    type: Literal["open", "cancel"]
    context: ContextId


def _glimpse(frame: str | bytes, schema: type[_T]) -> _T | None:
    """Part of a message that does not fit, if that part does."""
    try:
        if isinstance(frame, str):
            return msgspec.json.decode(frame, type=schema)
        return msgspec.msgpack.decode(frame, type=schema)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _kind(frame: str | bytes, schema: object) -> type[msgspec.Struct] | None:
    """The class of a message that does not fit, if its type is one of the schema's."""
    typed = _glimpse(frame, _Typed)
    kinds = {kind.__struct_config__.tag: kind for kind in get_args(schema)}
    return None if typed is None else kinds.get(typed.type)


def _advice(text: str, kind: type[msgspec.Struct] | None, schema: object) -> str:
    """Say what is wrong in terms of our schema, without repeating anything the peer sent."""
    if expected := _EXPECTED.match(text):
        what = expected["what"].replace("`", "")
        return f"{expected['path']!r} must be {what}"
    if missing := _MISSING.match(text):
        return f"the message lacks the field {missing['field']!r}"
    if unknown := _UNKNOWN.match(text):
        path = unknown["path"]
        return _unknown_field(path, kind if path is None else _PARTS.get(path))
    if "`$.type`" in text:
        types = [str(kind.__struct_config__.tag) for kind in get_args(schema)]
        return f"'type' must be one of {', '.join(types)}"
    if not_allowed := _NOT_ALLOWED.match(text):
        return f"{not_allowed['path']!r} has a value that is not allowed; see the protocol's table"
    return "the message does not fit the protocol's table of fields"


def _unknown_field(path: str | None, kind: type[msgspec.Struct] | None) -> str:
    if kind is None:
        return "the message has a field that its type does not know; see the protocol's table"
    name = path or str(kind.__struct_config__.tag)
    fields = ", ".join(kind.__struct_fields__)
    return f"{name!r} has a field that it does not know; it knows {fields or 'none but type'}"
