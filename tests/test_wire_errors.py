"""Wire: what is not a message is told so, without repeating it."""

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, Undecodable, WrongFrameKind
from orpheus_ws.wire import Wire, wires
from tests.wire_frames import (
    CONTROL,
    JSON,
    MSGPACK,
    REQUESTS,
    both_native,
    briefly,
    config,
    context,
    frame,
    refusal,
    sampling,
    segment,
)

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
    begun = whole[: data.draw(st.integers(0, len(whole) - 1))]
    error = refusal(wire.decode_request, begun)
    if not cut_in_a_number(begun):
        assert type(error) is Undecodable
        assert error.close_code == 1007


def cut_in_a_number(begun: str | bytes) -> bool:
    """Whether JSON ends in digits: what is left of the number may not fit, which is seen first."""
    return isinstance(begun, str) and begun[-1:].isdigit()


@both_native
@given(reply=CONTROL, data=st.data())
@settings(max_examples=60, deadline=None)
def test_truncated_replies(wire: Wire, reply: m.ServerMessage, data: st.DataObject) -> None:
    """The same for what a client receives."""
    whole = wire.encode_reply(reply)
    begun = whole[: data.draw(st.integers(0, len(whole) - 1))]
    error = refusal(wire.decode_reply, begun)
    assert type(error) is Undecodable or cut_in_a_number(begun)


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
            '\ufeff{"type":"close"}',
        ),
        *('{"type":"close"}\0', '{"type":"close"},', '{"type":"close"}{"type":"close"}'),
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
        (config(temperature=1), ["'config' has a field", "it knows voice, encoding,"]),
        (context("a") | {"text": "b"}, ["'end' has a field", "it knows context"]),
        ({"type": "close", "now": True}, ["'close' has a field", "none but type"]),
        (sampling(temp=1), ["'sampling' has a field", "it knows temperature, top_p,"]),
        (segment(size=1), ["'segment' has a field", "it knows mode, max_delay_ms"]),
    ],
    ids=briefly,
)
def test_advice_names_the_field(wire: Wire, content: object, names: list[str]) -> None:
    """The error says which field of ours is wrong and what it must be."""
    error = refusal(wire.decode_request, frame(wire, content))
    assert all(name in str(error) for name in names)


@both_native
@pytest.mark.parametrize("name", ["secret", "secret` - at `$.secret", "\n - at `$.sampling`", ""])
def test_unknown_fields_are_not_repeated(wire: Wire, name: str) -> None:
    """Whatever a field that is not ours is called, the error has names of ours alone."""
    for content in (config(**{name: 1}), sampling(**{name: 1}), context("a") | {name: 1}):
        error = str(refusal(wire.decode_request, frame(wire, content)))
        assert "has a field that" in error
        assert "secret" not in error
        assert error.isprintable()


@both_native
@pytest.mark.parametrize(
    "unfit",
    [{"played_ms": -1}, {"played_ms": 9e7}, {"played_ms": True}, {"played_ms": "x"}, {"at": 7}],
    ids=briefly,
)
def test_what_was_to_be_cancelled_is_known(wire: Wire, unfit: dict[str, object]) -> None:
    """A `cancel` that does not fit still says whose it is; without a fitting context it is nobody's."""
    error = refusal(wire.decode_request, frame(wire, {"type": "cancel", "context": "a"} | unfit))
    assert (error.context, error.cancels) == ("a", True)
    for content in ({"context": 5}, {"context": ""}, {}):
        error = refusal(wire.decode_request, frame(wire, {"type": "cancel"} | content | unfit))
        assert (error.context, error.cancels) == (None, False)
    error = refusal(wire.decode_request, frame(wire, {"type": "open", "context": "a"} | unfit))
    assert (error.context, error.cancels) == ("a", False)


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"Hi \ud83d there", "Hi  there"),
        (r"\ude00 ok", " ok"),
        (r"Hi \ud83d\ude00!", "Hi \U0001f600!"),
        (r"a literal \\ud83d stays", r"a literal \ud83d stays"),
        (r"caf\u00e9 \n \"x\"", 'café \n "x"'),
    ],
)
def test_half_a_character_in_json(text: str, expected: str) -> None:
    """Half of an escaped surrogate pair, as cut text has it, is left out; nothing else is touched."""
    message = wires()["tts.v1.json"].decode_request(
        f'{{"type":"text","context":"a","text":"{text}"}}'
    )
    assert message == m.Text(context="a", text=expected)
