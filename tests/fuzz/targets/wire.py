"""The native protocol's decoders, both sides of both encodings.

An input is a frame. It is a message or one of the three errors, which are one line of our words. What is
a message stays the same when it is encoded again, in either encoding; and the decoders of others, which
know no schema, read the same fields.
"""

import contextlib
import json
import math
import re
from collections.abc import Callable
from typing import Any, cast, get_args

import msgpack
import msgspec

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage
from orpheus_ws.wire import wires
from tests.fuzz.oracles import check_error

WORDS = (
    *(kind.__struct_config__.tag for kind in get_args(m.ClientMessage | m.ServerMessage)),
    *{
        name
        for kind in (*get_args(m.ClientMessage | m.ServerMessage), m.Sampling, m.Segmentation)
        for name in kind.__struct_fields__
    },
    '"type":', "type", "\\ud83d\\ude00", "\\ud83d", "\\u0000", "1e999", "NaN",
)  # fmt: skip

_WIRES = wires()
_HALF = re.compile(r"\\u[dD][89a-fA-F]")

_Decode = Callable[[str | bytes], m.ClientMessage | m.ServerMessage]


def one(data: bytes) -> None:
    """See `Target`."""
    frames: list[str | bytes] = [data]
    with contextlib.suppress(UnicodeDecodeError):
        frames.append(data.decode())
    for wire in _WIRES.values():
        for frame in frames:
            request = _attempt(wire.decode_request, frame)
            if request is not None:
                _same_again(cast("m.ClientMessage", request))
                _same_elsewhere(frame, request)
            reply = _attempt(wire.decode_reply, frame)
            if reply is not None:
                again = wire.encode_reply(cast("m.ServerMessage", reply))
                # Compared as bytes: a server may say numbers that are none.
                decoded = wire.decode_reply(again)
                assert wire.encode_reply(decoded) == again


def _attempt(decode: _Decode, frame: str | bytes) -> m.ClientMessage | m.ServerMessage | None:
    try:
        return decode(frame)
    except BadMessage as error:
        check_error(error)
        if error.context is not None:
            assert 1 <= len(error.context) <= 128
        return None


def _same_again(request: m.ClientMessage) -> None:
    for wire in _WIRES.values():
        try:
            again = wire.encode_request(request)
        except OverflowError:
            # Of numbers without a bound, which JSON has and msgpack has not.
            assert wire.subprotocol == "tts.v1.msgpack"
        else:
            assert _equal(wire.decode_request(again), request)


def _same_elsewhere(frame: str | bytes, request: object) -> None:
    """Compare what is not left out with what a decoder without our schema reads."""
    if isinstance(frame, str) and _HALF.search(frame):
        return
    plain = json.loads(frame) if isinstance(frame, str) else msgpack.unpackb(frame)
    said = msgspec.to_builtins(request)
    assert said.items() <= plain.items(), "another decoder reads something else"


def _equal(first: object, second: object) -> bool:
    return first == second and not _has_nan(msgspec.to_builtins(first))


def _has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    return isinstance(value, float) and math.isnan(value)
