"""Any message and any frame, for tests of the wire."""

import json
from collections.abc import Callable
from typing import Any, get_args

import msgpack
import msgspec
import pytest
from hypothesis import strategies as st
from msgspec import UNSET, inspect

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage
from orpheus_ws.wire import Wire, wires

WIRES = wires()
MSGPACK = WIRES["tts.v1.msgpack"]
JSON = WIRES["tts.v1.json"]

# What a frame of the JSON protocol has room for.
AUDIO_NUMBERS = {"handle": 2**16 - 1, "seq": 2**32 - 1, "offset": 2**64 - 1}


# Any message --------------------------------------------------------------------------------------


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Well-typed values; integers are those that msgpack knows."""
    match kind:
        case inspect.StructType():
            return structs(kind.cls)
        case inspect.UnionType():
            return st.one_of(*map(values, kind.types))
        case inspect.VarTupleType():
            return st.lists(values(kind.item_type), max_size=3).map(tuple)
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.StrType(pattern=str(pattern)):
            return st.from_regex(pattern, fullmatch=True)
        case inspect.StrType():
            return st.text(min_size=kind.min_length or 0, max_size=kind.max_length or 40)
        case inspect.IntType():
            return st.integers(
                -(2**63) if kind.ge is None else kind.ge, 2**64 - 1 if kind.le is None else kind.le
            )
        case inspect.FloatType():
            return st.floats(kind.ge, kind.le, allow_nan=False, allow_infinity=False)
        case _:
            return _SIMPLE[type(kind)]


_SIMPLE: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.BoolType: st.booleans(),
    inspect.BytesType: st.binary(max_size=40),
    inspect.NoneType: st.none(),
}


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Messages, or parts of one, of this type; optional fields are there or not."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in info.fields:
        if kind is m.Audio and field.name in AUDIO_NUMBERS:
            fields[field.name] = st.integers(0, AUDIO_NUMBERS[field.name])
        else:
            fields[field.name] = values(field.type)
    needed = {field.name: fields.pop(field.name) for field in info.fields if field.required}
    return st.fixed_dictionaries(needed, optional=fields).map(lambda chosen: kind(**chosen))


REQUESTS: st.SearchStrategy[m.ClientMessage] = st.one_of(*map(structs, get_args(m.ClientMessage)))
REPLIES: st.SearchStrategy[m.ServerMessage] = st.one_of(*map(structs, get_args(m.ServerMessage)))
CONTROL = REPLIES.filter(lambda reply: not isinstance(reply, m.Audio))

every_wire = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
both_native = pytest.mark.parametrize("wire", [MSGPACK, JSON], ids=["msgpack", "json"])


def plain(value: Any) -> Any:
    """A message as the protocol page describes it: a map with a `type`, unset fields left out."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {} if config.tag is None else {"type": config.tag}
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return tag | {name: plain(field) for name, field in fields.items() if field is not UNSET}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def without_defaults(message: msgspec.Struct, shown: dict[str, Any]) -> dict[str, Any]:
    """What of `plain(message)` a frame that shows these fields must show at least."""
    defaults = dict(
        zip(
            message.__struct_fields__[-len(message.__struct_defaults__) :],
            message.__struct_defaults__,
            strict=False,
        )
    )
    found = {
        name: value
        for name, value in plain(message).items()
        if name in shown or name not in defaults or defaults[name] != value
    }
    for name in found:
        part = getattr(message, name, None)
        if isinstance(part, m.Times):
            found[name] = without_defaults(part, shown[name])
    return found


def frame(wire: Wire, content: Any) -> str | bytes:
    """`content` in a frame of this protocol, made without our own encoder."""
    if wire is MSGPACK:
        packed: bytes = msgpack.packb(content)
        return packed
    return json.dumps(content)


def refusal(decode: Callable[[str | bytes], object], content: str | bytes) -> BadMessage:
    """The error that this frame is refused with."""
    with pytest.raises(BadMessage) as caught:
        decode(content)
    return caught.value


def config(**fields: Any) -> dict[str, Any]:
    """A `config` message."""
    return {"type": "config", **fields}


def sampling(**fields: Any) -> dict[str, Any]:
    """A `config` message with these in `sampling`."""
    return config(sampling=fields)


def segment(**fields: Any) -> dict[str, Any]:
    """A `config` message with these in `segment`."""
    return config(segment=fields)


def context(identifier: str) -> dict[str, Any]:
    """An `end` message for this context."""
    return {"type": "end", "context": identifier}


def flush(identifier: object) -> dict[str, Any]:
    """A `flush` with this id."""
    return {"type": "flush", "context": "a", "id": identifier}


def cancel(played_ms: object) -> dict[str, Any]:
    """A `cancel` that says what was heard."""
    return {"type": "cancel", "context": "*", "played_ms": played_ms}


def briefly(content: object) -> str:
    """A test's name."""
    return json.dumps(content)[:60]
