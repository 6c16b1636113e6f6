"""Wire: values at the end of their range, and one past it."""

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, Undecodable
from orpheus_ws.wire import Wire
from tests.wire_frames import (
    JSON,
    MSGPACK,
    both_native,
    briefly,
    cancel,
    config,
    context,
    flush,
    frame,
    plain,
    refusal,
    sampling,
    segment,
    structs,
)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# Bounds -------------------------------------------------------------------------------------------


AT_THE_LIMIT = [
    *(sampling(temperature=value) for value in (0, 0.0, 2, 2.0)),
    *(sampling(top_p=value) for value in (0.0, 1.0)),
    *(sampling(repetition_penalty=value) for value in (1.0, 2.0)),
    *(sampling(seed=value) for value in (0, 2**31 - 1)),
    *(sampling(max_tokens=value) for value in (7, 4096)),
    *(segment(max_delay_ms=value) for value in (0, 5000)),
    *(segment(mode=value) for value in get_args(m.SegmentMode)),
    *(config(lead_ms=value) for value in (200, 10_000)),
    *(config(traceparent=value) for value in (TRACEPARENT, TRACEPARENT.replace("1", "f"))),
    *(context(value) for value in ("c", "c" * 128, "é" * 128, "*")),
    *(flush(value) for value in ("", "f" * 128, 0, 2**53 - 1, None)),
    *(cancel(value) for value in (0, 0.0, 86_400_000, None)),
    *({"type": "ping", "id": value} for value in ("", "p" * 128, 0, 2**53 - 1)),
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
    *(
        config(traceparent=value)
        for value in ("", "words", TRACEPARENT + "0", TRACEPARENT.upper(), 5)
    ),
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
        "trace": False,
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
