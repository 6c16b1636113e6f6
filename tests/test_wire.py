"""Bytes ⇄ messages: every protocol, every message, and everything that is not one.

The messages are built from the schema itself, so a new message or field is covered as it is added.
"""

import contextlib
import json
import math
from collections.abc import Callable
from typing import Any, cast, get_args

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, inspect

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, Undecodable, WrongFrameKind
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
    return {
        name: value
        for name, value in plain(message).items()
        if name in shown or name not in defaults or defaults[name] != value
    }


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


# Round trips --------------------------------------------------------------------------------------


def test_both_native_protocols_are_found() -> None:
    """`wires` finds each protocol by its own subprotocol."""
    assert {"tts.v1.msgpack", "tts.v1.json"} <= set(WIRES)
    assert all(wire.subprotocol == name for name, wire in WIRES.items())


@every_wire
@given(request=REQUESTS)
@settings(max_examples=100, deadline=None)
def test_requests_round_trip(wire: Wire, request: m.ClientMessage) -> None:
    """Every request comes back as it was, whichever protocol it went through."""
    assert wire.decode_request(wire.encode_request(request)) == request


@every_wire
@given(reply=CONTROL)
@settings(max_examples=100, deadline=None)
def test_replies_round_trip(wire: Wire, reply: m.ServerMessage) -> None:
    """Every reply but audio comes back as it was, whichever protocol it went through."""
    assert wire.decode_reply(wire.encode_reply(reply)) == reply


@every_wire
@given(audio=structs(m.Audio))
@settings(deadline=None)
def test_audio_round_trips(wire: Wire, audio: m.Audio) -> None:
    """Audio keeps its samples, number and offset, and says whose it is in at least one way."""
    result = wire.decode_reply(wire.encode_reply(audio))
    assert isinstance(result, m.Audio)
    assert (result.seq, result.offset, result.pcm) == (audio.seq, audio.offset, audio.pcm)
    assert (result.context, result.handle) in {
        (audio.context, audio.handle),
        (audio.context, 0),
        ("", audio.handle),
    }


@given(audio=structs(m.Audio))
@settings(deadline=None)
def test_msgpack_audio_names_the_context(audio: m.Audio) -> None:
    """msgpack keeps the context of audio and not the handle."""
    result = MSGPACK.decode_reply(MSGPACK.encode_reply(audio))
    assert result == msgspec.structs.replace(audio, handle=0)


@given(audio=structs(m.Audio))
@settings(deadline=None)
def test_json_audio_names_the_handle(audio: m.Audio) -> None:
    """JSON keeps the handle of audio and not the context."""
    result = JSON.decode_reply(JSON.encode_reply(audio))
    assert result == msgspec.structs.replace(audio, context="")


@pytest.mark.parametrize("number", [2**64, 2**70, -(2**63) - 1])
@pytest.mark.parametrize("sender", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_well_typed_messages_always_encode(sender: Wire, number: int) -> None:
    """Encoding never raises: a number that is too large for a protocol is none that the type has.

    A JSON client can write any number; what a decoder takes, every encoder must be able to send.
    """
    try:
        msgspec.convert({"type": "ping", "id": number}, m.Ping)
    except msgspec.ValidationError:
        return
    sender.encode_request(m.Ping(id=number))
    sender.encode_reply(m.Pong(id=number))


# Other implementations ----------------------------------------------------------------------------


@given(request=REQUESTS, reply=REPLIES)
@settings(deadline=None)
def test_msgpack_is_what_others_read(request: m.ClientMessage, reply: m.ServerMessage) -> None:
    """The `msgpack` package reads our frames as maps of the fields; audio is a `bin`."""
    for message, encoded in (
        (request, MSGPACK.encode_request(request)),
        (reply, MSGPACK.encode_reply(reply)),
    ):
        assert isinstance(encoded, bytes)
        shown = msgpack.unpackb(encoded)
        if isinstance(message, m.Audio):
            named = {name: getattr(message, name) for name in ("context", "seq", "offset", "pcm")}
            assert shown == {"type": "audio", **named}
            assert isinstance(shown["pcm"], bytes)
        else:
            assert shown == without_defaults(message, shown)


@given(request=REQUESTS, reply=REPLIES)
@settings(deadline=None)
def test_msgpack_of_others_is_read(request: m.ClientMessage, reply: m.ServerMessage) -> None:
    """Maps packed by the `msgpack` package are understood, with optional fields spelled out."""
    assert MSGPACK.decode_request(msgpack.packb(plain(request))) == request
    assert MSGPACK.decode_reply(msgpack.packb(plain(reply))) == reply


@given(request=REQUESTS, reply=CONTROL)
@settings(deadline=None)
def test_json_is_what_others_read(request: m.ClientMessage, reply: m.ServerMessage) -> None:
    """The standard library reads our text frames as objects of the fields."""
    for message, encoded in (
        (request, JSON.encode_request(request)),
        (reply, JSON.encode_reply(reply)),
    ):
        assert isinstance(encoded, str)
        shown = json.loads(encoded)
        assert shown == without_defaults(message, shown)


@given(request=REQUESTS, reply=CONTROL, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
@settings(deadline=None)
def test_json_of_others_is_read(
    request: m.ClientMessage, reply: m.ServerMessage, *, ascii_only: bool, indent: int | None
) -> None:
    """Objects written by the standard library are understood, escaped and indented or not."""

    def dumps(message: msgspec.Struct) -> str:
        return json.dumps(plain(message), ensure_ascii=ascii_only, indent=indent)

    assert JSON.decode_request(dumps(request)) == request
    assert JSON.decode_reply(dumps(reply)) == reply


def test_json_audio_header_byte_by_byte() -> None:
    """JSON audio is version, flags, handle, sequence number, offset, little-endian, then samples."""
    audio = m.Audio(
        handle=0x0201, seq=0x06050403, offset=0x0E0D0C0B0A090807, pcm=b"\xaa\xbb\xcc\xdd"
    )
    version, flags, handle = b"\x01", b"\x00", b"\x01\x02"
    seq, offset = b"\x03\x04\x05\x06", b"\x07\x08\x09\x0a\x0b\x0c\x0d\x0e"
    expected = version + flags + handle + seq + offset + b"\xaa\xbb\xcc\xdd"
    assert JSON.encode_reply(audio) == expected
    assert JSON.decode_reply(expected) == audio


def test_a_minimal_message_is_small() -> None:
    """Fields at their defaults are left out of the frame."""
    assert JSON.encode_request(m.Config()) == '{"type":"config"}'
    assert JSON.encode_request(m.Flush(context="a")) == '{"type":"flush","context":"a"}'


def test_approx_is_always_said() -> None:
    """Estimated word times are marked as approximate on the wire, default or not."""
    shown = json.loads(JSON.encode_reply(m.Words(context="a", words=())))
    assert shown == {"type": "words", "context": "a", "words": [], "approx": True}


# Bounds -------------------------------------------------------------------------------------------


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


AT_THE_LIMIT = [
    *(sampling(temperature=value) for value in (0, 0.0, 2, 2.0)),
    *(sampling(top_p=value) for value in (0.0, 1.0)),
    *(sampling(repetition_penalty=value) for value in (1.0, 2.0)),
    *(sampling(seed=value) for value in (0, 2**31 - 1)),
    *(sampling(max_tokens=value) for value in (7, 4096)),
    *(segment(max_delay_ms=value) for value in (0, 5000)),
    *(segment(mode=value) for value in get_args(m.SegmentMode)),
    *(config(lead_ms=value) for value in (200, 10_000)),
    *(config(traceparent=value) for value in ("", "t" * 128)),
    *(context(value) for value in ("c", "c" * 128, "é" * 128, "*")),
    *(flush(value) for value in ("", "f" * 128, 0, 2**63 - 1, None)),
    *(cancel(value) for value in (0, 0.0, 1e300, None)),
    *({"type": "ping", "id": value} for value in ("", "p" * 128, 0, -1, 2**63 - 1)),
    {"type": "text", "context": "a", "text": ""},
    {"type": "text", "context": "a", "text": "x" * 60_000},
    {"type": "open", "context": "a"},
    {"type": "close"},
]

PAST_THE_LIMIT = [
    *(
        sampling(temperature=value)
        for value in (math.nextafter(2, 3), -0.1, -1, 3, True, "1", None)
    ),
    *(sampling(top_p=value) for value in (math.nextafter(1, 2), -0.1)),
    *(sampling(repetition_penalty=value) for value in (math.nextafter(1, 0), 2.1)),
    *(sampling(seed=value) for value in (-1, 2**31, 2**70 % 2**64 - 1, 1.5, False)),
    *(sampling(max_tokens=value) for value in (6, 4097, 0, -7)),
    *(segment(max_delay_ms=value) for value in (-1, 5001, 0.5)),
    *(segment(mode=value) for value in ("", "Sentence", "word", 1, None)),
    *(config(lead_ms=value) for value in (199, 10_001)),
    *(config(traceparent=value) for value in ("t" * 129, 5)),
    *(config(words=value) for value in (1, "true", None)),
    *(config(voice=value) for value in (1, None, ["tara"])),
    *(config(encoding=value) for value in (1, None)),
    *(config(sample_rate=value) for value in ("24000", 24_000.5, None)),
    *(config(sampling=value) for value in (None, [1], "x", 5)),
    *(config(segment=value) for value in (None, [1], "x", 5)),
    *(context(value) for value in ("", "c" * 129)),
    *(flush(value) for value in ("f" * 129, -1, 1.5, [1], {"a": 1}, True)),
    *(cancel(value) for value in (-0.1, -1, "5", [1])),
    *({"type": "ping", "id": value} for value in ("p" * 129, None, 1.5, [1], {"a": 1})),
    {"type": "ping"},
    {"type": "text", "context": "a"},
    {"type": "text", "text": "a"},
    {"type": "text", "context": "a", "text": None},
    {"type": "text", "context": "a", "text": ["a"]},
    {"type": "open"},
    {"type": "open", "context": 5},
    {"type": "close", "context": "a"},
    {"type": "end", "context": "a", "text": "a"},
    config(context="a"),
    config(temperature=0.5),
    sampling(warmth=0.5),
    segment(mod="flush"),
]


def briefly(content: object) -> str:
    """A test's name."""
    return json.dumps(content)[:60]


@both_native
@pytest.mark.parametrize("content", AT_THE_LIMIT, ids=briefly)
def test_at_the_limit(wire: Wire, content: dict[str, Any]) -> None:
    """A value at the end of its range in the protocol's table arrives as it was sent."""
    shown = plain(wire.decode_request(frame(wire, content)))
    assert shown | content == shown


@both_native
@pytest.mark.parametrize("content", PAST_THE_LIMIT, ids=briefly)
def test_past_the_limit(wire: Wire, content: dict[str, Any]) -> None:
    """A value past its range, of another kind, missing or unknown is a bad message, no worse."""
    assert type(refusal(wire.decode_request, frame(wire, content))) is BadMessage


NOT_FINITE = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("number", NOT_FINITE)
@pytest.mark.parametrize("place", [lambda n: sampling(temperature=n), lambda n: sampling(top_p=n)])
def test_msgpack_numbers_are_finite(place: Callable[[float], object], number: float) -> None:
    """NaN and the infinities are within no range."""
    assert type(refusal(MSGPACK.decode_request, frame(MSGPACK, place(number)))) is BadMessage


@pytest.mark.parametrize("number", NOT_FINITE)
def test_played_time_is_finite(number: float) -> None:
    """Nobody has heard NaN or infinitely many milliseconds."""
    assert type(refusal(MSGPACK.decode_request, frame(MSGPACK, cancel(number)))) is BadMessage


@pytest.mark.parametrize("number", NOT_FINITE)
def test_json_has_no_such_numbers(number: float) -> None:
    """NaN and Infinity, which some writers of JSON produce, are not JSON."""
    assert type(refusal(JSON.decode_request, frame(JSON, cancel(number)))) is Undecodable


@pytest.mark.parametrize("digits", ["1e999", "-1e999", "1" + "0" * 400, "9" * 5000])
def test_json_numbers_too_large(digits: str) -> None:
    """A number that no float holds is well-formed JSON, and a bad message."""
    for content in (
        f'{{"type":"cancel","context":"a","played_ms":{digits}}}',
        f'{{"type":"config","sampling":{{"temperature":{digits}}}}}',
        f'{{"type":"config","sampling":{{"seed":{digits}}}}}',
    ):
        assert type(refusal(JSON.decode_request, content)) is BadMessage


# Frames that are not messages ---------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b'{"type":"close"}', b"\x81\xa4type\xa5close", b"\xff"])
def test_json_requests_are_text(content: bytes) -> None:
    """A binary frame is no JSON request, whatever is in it: close code 1003."""
    error = refusal(JSON.decode_request, content)
    assert type(error) is WrongFrameKind
    assert error.close_code == 1003


@pytest.mark.parametrize("content", ["", '{"type":"close"}', "\x81"])
def test_msgpack_frames_are_binary(content: str) -> None:
    """A text frame is nothing of msgpack's, in either direction: close code 1003."""
    for decode in (MSGPACK.decode_request, MSGPACK.decode_reply):
        error = refusal(decode, content)
        assert type(error) is WrongFrameKind
        assert error.close_code == 1003


@both_native
@given(request=REQUESTS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_truncated_requests(wire: Wire, request: m.ClientMessage, data: st.DataObject) -> None:
    """The beginning of a frame is undecodable, wherever it was cut: close code 1007."""
    whole = wire.encode_request(request)
    error = refusal(wire.decode_request, whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert type(error) is Undecodable
    assert error.close_code == 1007


@both_native
@given(reply=CONTROL, data=st.data())
@settings(max_examples=60, deadline=None)
def test_truncated_replies(wire: Wire, reply: m.ServerMessage, data: st.DataObject) -> None:
    """The same for what a client receives."""
    whole = wire.encode_reply(reply)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert type(refusal(wire.decode_reply, whole[:cut])) is Undecodable


@pytest.mark.parametrize("length", range(16))
def test_truncated_audio_header(length: int) -> None:
    """A binary frame shorter than the header is undecodable; the bare header is audio of nothing."""
    whole = JSON.encode_reply(m.Audio(handle=1, seq=2, offset=3, pcm=b""))
    assert len(whole) == 16
    assert type(refusal(JSON.decode_reply, whole[:length])) is Undecodable
    assert JSON.decode_reply(whole) == m.Audio(handle=1, seq=2, offset=3, pcm=b"")


@pytest.mark.parametrize("version", [0, 2, 0x7B, 255])
def test_audio_of_another_version(version: int) -> None:
    """Only version 1 of the audio header is read."""
    assert type(refusal(JSON.decode_reply, bytes([version]) + bytes(31))) is Undecodable


@both_native
@given(request=REQUESTS, garbage=st.binary(min_size=1, max_size=8))
@settings(deadline=None)
def test_trailing_garbage(wire: Wire, request: m.ClientMessage, garbage: bytes) -> None:
    """A frame is one message: anything after it makes it undecodable."""
    whole = wire.encode_request(request)
    content = whole + garbage.hex() if isinstance(whole, str) else whole + garbage
    assert type(refusal(wire.decode_request, content)) is Undecodable


@pytest.mark.parametrize(
    "content",
    [
        *(
            "",
            " ",
            "{",
            "nul",
            "'x'",
            "{type:close}",
            '"\x01"',
            '"\ud800"',
            '\ufeff{"type":"close"}',
        ),
        *('{"type":"close"}\0', '{"type":"close"},', '{"type":"close"}{"type":"close"}'),
        *('{"type":"end","context":"\ud800"}', '{"type":"end","context":"\\ud800"}'),
    ],
)
def test_not_json(content: str) -> None:
    """What is not JSON, or not Unicode, is undecodable."""
    assert type(refusal(JSON.decode_request, content)) is Undecodable
    if "type" not in content:
        assert type(refusal(JSON.decode_reply, content)) is Undecodable


@pytest.mark.parametrize(
    "content",
    [
        *(
            b"",
            b"\x81\xa4type\xa5close" * 2,
            b"\xc1",
            b"\x81",
            b"\xdf\xff\xff\xff\xff",
            b"\xdb\xff\xff\xff\xff",
            b"\xd9\x05ab",
        ),
        b"\x82\xa4type\xa3end\xa7context\xa1\xff",
        b"\x82\xa4type\xa3end\xa7context\xa3\xed\xa0\x80",
        b"\x83\xa4type\xa5ready\xa7session\xa1a\xa9encodings\xdd\xff\xff\xff\xff",
    ],
)
def test_not_msgpack(content: bytes) -> None:
    """What is not msgpack, announces more than is there, or is not UTF-8 is undecodable."""
    decode = MSGPACK.decode_reply if b"ready" in content else MSGPACK.decode_request
    assert type(refusal(decode, content)) is Undecodable


@both_native
@pytest.mark.parametrize("content", [None, True, 5, 1.5, "text", [], ["close"], {}, {"a": 1}])
@pytest.mark.parametrize("direction", ["request", "reply"])
def test_not_a_message(wire: Wire, content: object, direction: str) -> None:
    """Well-formed values that are no map with a `type` are bad messages."""
    decode = wire.decode_request if direction == "request" else wire.decode_reply
    assert type(refusal(decode, frame(wire, content))) is BadMessage


@both_native
@pytest.mark.parametrize(
    "kind", ["", "Open", "opened", "audio", "ready", "done", 1, None, ["open"]]
)
def test_unknown_request_type(wire: Wire, kind: object) -> None:
    """A type that clients do not send is a bad message, also when the server may send it."""
    error = refusal(wire.decode_request, frame(wire, {"type": kind, "context": "a"}))
    assert type(error) is BadMessage
    assert "type" in str(error)


@both_native
def test_advice_for_an_unknown_type(wire: Wire) -> None:
    """The error lists the types that are known in this direction."""
    to_server = str(refusal(wire.decode_request, frame(wire, {"type": "x"})))
    assert all(f" {kind}" in to_server for kind in ("open", "text", "flush", "cancel", "close"))
    to_client = str(refusal(wire.decode_reply, frame(wire, {"type": "x"})))
    assert "cancel," not in to_client.replace("cancelled", "")


@both_native
@pytest.mark.parametrize(
    ("content", "names"),
    [
        (sampling(temperature=3), ["sampling.temperature", "2"]),
        (segment(max_delay_ms=-1), ["segment.max_delay_ms", "0"]),
        (segment(mode="word"), ["segment.mode"]),
        (config(lead_ms="x"), ["lead_ms", "int"]),
        (context(""), ["context", "1"]),
        ({"type": "text", "context": "a"}, ["text"]),
        ({"text": "a"}, ["type"]),
        (config(temperature=1), ["has a field"]),
    ],
    ids=briefly,
)
def test_advice_names_the_field(wire: Wire, content: object, names: list[str]) -> None:
    """The error says which field of ours is wrong and what it must be."""
    error = refusal(wire.decode_request, frame(wire, content))
    assert all(name in str(error) for name in names)


DEPTH = 100_000


@pytest.mark.parametrize(
    "start", ["", '{"type":"config","voice":', '{"x":', '{"type":"close","x":']
)
@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_deep_json(start: str, bracket: str) -> None:
    """Deep nesting is refused as one of the two kinds, and crashes nothing."""
    error = refusal(JSON.decode_request, start + bracket * DEPTH)
    assert type(error) in {BadMessage, Undecodable}


@pytest.mark.parametrize("start", [b"", b"\x82\xa4type\xa6config\xa5voice", b"\x82\xa1x"])
@pytest.mark.parametrize("bracket", [b"\x91", b"\x81\xa1a"])
def test_deep_msgpack(start: bytes, bracket: bytes) -> None:
    """Deep nesting is refused as one of the two kinds, and crashes nothing."""
    error = refusal(MSGPACK.decode_request, start + bracket * DEPTH + b"\xc0")
    assert type(error) in {BadMessage, Undecodable}


@pytest.mark.parametrize(
    "content",
    [
        {"type": "text", "context": "a", "text": msgpack.ExtType(4, b"x")},
        {"type": "text", "context": "a", "text": msgpack.Timestamp(1, 1)},
        {"type": "text", "context": "a", "text": b"x"},
        {"type": "close", 5: 1},
        {b"type": "close"},
    ],
)
def test_msgpack_has_more_kinds_than_we_use(content: object) -> None:
    """Extensions, timestamps, `bin` for text and keys that are no text are bad messages."""
    assert type(refusal(MSGPACK.decode_request, msgpack.packb(content))) is BadMessage


# Any frame at all ---------------------------------------------------------------------------------

# Surrogates included: nothing keeps them out of a Python string.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)


def outcome(decode: Callable[[str | bytes], object], content: str | bytes) -> type | None:
    """The kind of error that this frame is refused with, if it is. Others are raised."""
    try:
        decode(content)
    except BadMessage as error:
        return type(error)
    return None


ALLOWED = {None, WrongFrameKind, Undecodable, BadMessage}


@every_wire
@given(content=st.one_of(st.binary(max_size=60), ANY_TEXT))
@settings(max_examples=80, deadline=None)
def test_any_frame(wire: Wire, content: str | bytes) -> None:
    """Whatever is in a frame, it is a message or one of the three errors."""
    assert outcome(wire.decode_request, content) in ALLOWED
    assert outcome(wire.decode_reply, content) in ALLOWED


@every_wire
@given(message=st.one_of(REQUESTS, REPLIES), data=st.data())
@settings(max_examples=80, deadline=None)
def test_any_damaged_frame(
    wire: Wire, message: m.ClientMessage | m.ServerMessage, data: st.DataObject
) -> None:
    """A real frame with a piece replaced by anything is a message or one of the three errors."""
    # Each of the two encoders takes any message: only the types keep them apart.
    whole = wire.encode_reply(cast("m.ServerMessage", message))
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, min(len(whole), begin + 4)))
    damaged: str | bytes
    if isinstance(whole, str):
        damaged = whole[:begin] + data.draw(ANY_TEXT.map(lambda text: text[:4])) + whole[end:]
    else:
        damaged = whole[:begin] + data.draw(st.binary(max_size=4)) + whole[end:]
    assert outcome(wire.decode_request, damaged) in ALLOWED
    assert outcome(wire.decode_reply, damaged) in ALLOWED


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = sorted(
    {
        name
        for kind in (*get_args(m.ClientMessage), *get_args(m.ServerMessage))
        for name in kind.__struct_fields__
    }
)
TYPES = sorted(
    kind.__struct_config__.tag for kind in (*get_args(m.ClientMessage), *get_args(m.ServerMessage))
)


@both_native
@given(
    kind=st.sampled_from(TYPES),
    fields=st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=6),
)
@settings(max_examples=80, deadline=None)
def test_any_value_in_any_field(wire: Wire, kind: str, fields: dict[str, Any]) -> None:
    """Whatever is in the fields of a message, it is a message or one of the three errors."""
    content = frame(wire, {"type": kind, **fields})
    assert outcome(wire.decode_request, content) in ALLOWED
    assert outcome(wire.decode_reply, content) in ALLOWED


# What the peer sent stays out of errors -----------------------------------------------------------

GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
WORD = st.text(GREEK, min_size=6, max_size=12)
# Made to look like the decoder's own words, to slip through the translation of its errors.
SECRETS = st.one_of(
    WORD,
    st.builds(
        lambda shape, word: shape.format(word),
        st.sampled_from(
            [
                "Expected `{0}`, got `str` - at `$.{0}`",
                "Expected `{0}` - at `$.{0}`",
                "Invalid enum value '{0}' - at `$.{0}`",
                "Invalid value\n - at `$.{0}`",
                "` - at `$.{0}`",
                "Object missing required field `{0}`",
                "`$.type`{0}",
                "{0}.{0}",
                "'{0}'",
                '"{0}"',
                "{0}\n{0}",
            ]
        ),
        WORD,
    ),
)

Place = Callable[[Any], Any]
PLACES: dict[str, Place] = {
    "type": lambda s: {"type": s},
    "key": lambda s: {"type": "close", s: 1},
    "key before the type": lambda s: {s: 1, "type": "close"},
    "key and value": lambda s: {"type": "end", "context": "a", s: {s: [s]}},
    "nested key": lambda s: sampling(**{s: 1}),
    "key of an unknown type": lambda s: {"type": s, s: s},
    "mode": lambda s: segment(mode=s),
    "number": lambda s: sampling(temperature=s),
    "integer": lambda s: config(lead_ms=s),
    "boolean": lambda s: config(words=s),
    "object": lambda s: config(sampling=s),
    "text in a list": lambda s: {"type": "text", "context": "a", "text": [s]},
    "text in a map": lambda s: {"type": "text", "context": "a", "text": {s: s}},
    "long context": lambda s: {"type": "text", "context": s * 129, "text": s},
    "text without context": lambda s: {"type": "text", "text": s},
    "played": lambda s: {"type": "cancel", "context": s, "played_ms": s},
    "ping": lambda s: {"type": "ping", "id": [s]},
    "flush": lambda s: {"type": "flush", "context": "a", "id": {s: 1}},
    "top": lambda s: s,
    "list": lambda s: [s],
    "reason": lambda s: {"type": "done", "context": s, "reason": s, "audio_ms": 1, "chars": 1},
    "word": lambda s: {"type": "words", "context": s, "words": [{"text": s, "start_ms": s}]},
    "pcm": lambda s: {"type": "audio", "context": s, "seq": 1, "offset": 1, "pcm": s},
}


@both_native
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@given(secret=SECRETS)
@settings(max_examples=10, deadline=None)
def test_errors_never_repeat_the_peer(wire: Wire, place: Place, secret: str) -> None:
    """Nothing of a value, a key or a type that the peer sent is in the error's text."""
    content = frame(wire, place(secret))
    for decode in (wire.decode_request, wire.decode_reply):
        text = str(refusal(decode, content))
        assert not set(GREEK) & set(text)
        assert "\n" not in text


@every_wire
@given(secret=SECRETS, cut=st.integers(0, 40))
@settings(deadline=None)
def test_undecodable_frames_are_not_repeated(wire: Wire, secret: str, cut: int) -> None:
    """Nothing of a frame that cannot be decoded, or is of the wrong kind, is in the error's text."""
    for content in (
        secret,
        secret.encode(),
        json.dumps({"text": secret}, ensure_ascii=False)[:cut],
    ):
        for decode in (wire.decode_request, wire.decode_reply):
            with contextlib.suppress(BadMessage):
                decode(content)
                continue
            assert not set(GREEK) & set(str(refusal(decode, content)))


# Settings -----------------------------------------------------------------------------------------


def test_settings_defaults() -> None:
    """What is not asked for is the protocol page's default."""
    assert plain(m.Settings(voice="tara")) == {
        "voice": "tara",
        "encoding": "pcm_s16le",
        "sample_rate": 24_000,
        "temperature": 0.6,
        "top_p": 0.8,
        "repetition_penalty": 1.1,
        "seed": None,
        "max_tokens": 2048,
        "mode": "sentence",
        "max_delay_ms": 400,
        "lead_ms": 2000,
        "words": False,
        "traceparent": None,
    }


@given(options=st.one_of(structs(m.Config), structs(m.Open)))
@settings(deadline=None)
def test_settings_take_what_is_named(options: m.Options) -> None:
    """Options replace the settings they name, nested ones too, and no others."""
    before = m.Settings(voice="tara", seed=5, lead_ms=700)
    named = {
        **plain(options),
        **plain(options).get("sampling", {}),
        **plain(options).get("segment", {}),
    }
    after = plain(before.updated(options))
    for name, value in plain(before).items():
        assert after[name] == named.get(name, value)
