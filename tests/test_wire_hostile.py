"""Wire: any bytes at all, and nothing of them in an error."""

import contextlib
import json
from collections.abc import Callable
from typing import Any, cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, Undecodable, WrongFrameKind
from orpheus_ws.wire import Wire
from tests.wire_frames import (
    REPLIES,
    REQUESTS,
    both_native,
    config,
    every_wire,
    frame,
    refusal,
    sampling,
    segment,
)

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
