"""Wire: bytes and messages are the same thing, for us and for other implementations."""

import json

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws import messages as m
from orpheus_ws.wire import Wire
from tests.wire_frames import (
    CONTROL,
    JSON,
    MSGPACK,
    REPLIES,
    REQUESTS,
    WIRES,
    every_wire,
    plain,
    structs,
    without_defaults,
)

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
