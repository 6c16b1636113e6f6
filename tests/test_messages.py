"""Messages: the schema is that of the protocol page, field by field and bound by bound."""

import math
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws import messages as m

OPTIONS = "voice encoding sample_rate sampling segment lead_ms words trace traceparent"  # of config and open
CLIENT = {
    "config": OPTIONS,
    "open": f"context {OPTIONS}",
    "text": "context text",
    "flush": "context id",
    "end": "context",
    "cancel": "context played_ms",
    "ping": "id",
    "close": "",
}
SERVER = {
    "ready": "session encodings sample_rates voices limits",
    "started": "context handle queue_ms",
    "audio": "context handle seq offset pcm",
    "segment": "context index text offset",
    "flushed": "context id",
    "words": "context words approx",
    "done": "context reason audio_ms chars ttfa_ms rtf trace",
    "cancelled": "context sent_ms text_spoken text_remaining trace",
    "warning": "context code message",
    "error": "context code message retryable retry_after_ms fatal",
    "draining": "deadline_ms",
    "pong": "id",
}


def schema(union: Any) -> dict[str, set[str]]:
    """The fields of each type, by its name on the wire."""
    return {
        str(kind.__struct_config__.tag): set(kind.__struct_fields__) for kind in get_args(union)
    }


def split(table: dict[str, str]) -> dict[str, set[str]]:
    """A table as above, in the form of `schema`."""
    return {name: set(fields.split()) for name, fields in table.items()}


def receive(message: dict[str, object]) -> m.ClientMessage:
    """What a decoded frame becomes."""
    received: m.ClientMessage = msgspec.convert(message, m.ClientMessage)
    return received


# The schema ---------------------------------------------------------------------------------------


def test_types_and_fields() -> None:
    """Both sides have the types and fields of the protocol page, and no other."""
    assert schema(m.ClientMessage) == split(CLIENT)
    assert schema(m.ServerMessage) == split(SERVER)
    nested = {
        m.Sampling: "temperature top_p repetition_penalty seed max_tokens",
        m.Segmentation: "mode max_delay_ms",
        m.Limits: "contexts text_chars message_bytes messages_per_second idle_seconds session_seconds",
        m.Word: "text start_ms end_ms",
        m.Times: "ready_ms turn_ms first_token_ms first_frame_ms first_samples_ms first_chunk_ms "
        "first_audio_ms",
    }
    for kind, fields in nested.items():
        assert set(kind.__struct_fields__) == set(fields.split())


@pytest.mark.parametrize("name", CLIENT)
def test_unknown_fields_are_refused(name: str) -> None:
    """A misspelt field is an error rather than a default that nobody asked for."""
    full: dict[str, object] = {"type": name, "context": "a", "text": "x", "id": 1}
    message = {key: full[key] for key in ("type", *CLIENT[name].split()) if key in full}
    receive(message)
    with pytest.raises(msgspec.ValidationError):
        receive({**message, "unknown": 1})


@pytest.mark.parametrize("name", ["open", "text", "flush", "end", "cancel"])
def test_context_is_required(name: str) -> None:
    """Only `config`, `ping` and `close` are not about a context."""
    with pytest.raises(msgspec.ValidationError, match="context"):
        receive({"type": name, "text": "x"} if name == "text" else {"type": name})


@pytest.mark.parametrize("kind", [*get_args(m.ClientMessage), *get_args(m.ServerMessage)])
def test_messages_are_frozen(kind: type[msgspec.Struct]) -> None:
    """A message can be kept by whoever gets it, as nobody can change it."""
    assert kind.__struct_config__.frozen


# Bounds -------------------------------------------------------------------------------------------

# Where a value stands in `open`, the values allowed at the limits, and those refused beyond.
BOUNDS: list[tuple[str, list[object], list[object]]] = [
    ("sampling.temperature", [0, 0.0, 2, 2.0], [-0.001, 2.001, math.nan, math.inf, "1"]),
    ("sampling.top_p", [0, 1.0], [-0.001, 1.001, math.nan]),
    ("sampling.repetition_penalty", [1, 2.0], [0.999, 2.001, math.nan]),
    ("sampling.seed", [0, 2**31 - 1], [-1, 2**31, 0.5]),
    ("sampling.max_tokens", [7, 4096], [6, 4097, 7.5]),
    ("segment.mode", ["sentence", "clause", "flush"], ["", "word", "Sentence", 1]),
    ("segment.max_delay_ms", [0, 5000], [-1, 5001]),
    ("lead_ms", [200, 10_000], [199, 10_001]),
    ("words", [True, False], [0, "true"]),
    ("trace", [True, False], [0, "true"]),
    ("voice", ["tara"], [None, 1]),
    ("sample_rate", [24_000], ["24000", None]),
]


def nested(path: str, value: object) -> dict[str, object]:
    """`{"a": {"b": value}}` for the path `a.b`."""
    for part in reversed(path.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def flat(cases: list[tuple[str, list[object], list[object]]], column: int) -> list[Any]:
    """One parameter per value of a column."""
    return [(case[0], value) for case in cases for value in case[column]]


@pytest.mark.parametrize(("path", "value"), flat(BOUNDS, 1))
def test_at_the_limit(path: str, value: object) -> None:
    """The limits that the protocol page gives are themselves allowed, in `open` and `config`."""
    for base in ({"type": "open", "context": "a"}, {"type": "config"}):
        found: object = receive({**base, **nested(path, value)})
        for part in path.split("."):
            found = getattr(found, part)
        assert found == value


@pytest.mark.parametrize(("path", "value"), flat(BOUNDS, 2))
def test_beyond_the_limit(path: str, value: object) -> None:
    """One step beyond a limit, or of another type, a value is refused."""
    for base in ({"type": "open", "context": "a"}, {"type": "config"}):
        with pytest.raises(msgspec.ValidationError):
            receive({**base, **nested(path, value)})


@pytest.mark.parametrize(
    "message",
    [
        {"type": "text", "context": "", "text": "x"},
        {"type": "text", "context": "x" * 129, "text": "x"},
        {"type": "text", "context": 1, "text": "x"},
        {"type": "cancel", "context": "a", "played_ms": -0.001},
        {"type": "cancel", "context": "a", "played_ms": math.nan},
        {"type": "flush", "context": "a", "id": "x" * 129},
        {"type": "flush", "context": "a", "id": [1]},
        {"type": "ping"},
        {"type": "ping", "id": "x" * 129},
        {"type": "audio", "seq": 0, "offset": 0, "pcm": b""},
        {"type": "Text", "context": "a", "text": "x"},
        {"context": "a", "text": "x"},
    ],
)
def test_malformed(message: dict[str, object]) -> None:
    """What no client should send is refused as a whole."""
    with pytest.raises(msgspec.ValidationError):
        receive(message)


@pytest.mark.parametrize("played_ms", [None, 0, 0.0, 86_400_000])
def test_played_ms(played_ms: float | None) -> None:
    """`played_ms` may be left out, null, or anything from 0 to a day."""
    received = receive({"type": "cancel", "context": "a" * 128, "played_ms": played_ms})
    assert isinstance(received, m.Cancel)
    assert received.played_ms == played_ms


# Settings -----------------------------------------------------------------------------------------


def test_defaults() -> None:
    """What is not named is what the protocol page says."""
    defaults = m.Settings(voice="tara")
    assert (defaults.encoding, defaults.sample_rate, defaults.lead_ms) == (
        "pcm_s16le",
        24_000,
        2000,
    )
    assert (defaults.temperature, defaults.top_p, defaults.repetition_penalty) == (0.6, 0.8, 1.1)
    assert (defaults.seed, defaults.max_tokens) == (None, 2048)
    assert (defaults.mode, defaults.max_delay_ms, defaults.words) == ("sentence", 400, False)


def test_updated_with_everything() -> None:
    """Every option has its place in the settings; nested ones come out flat."""
    options = m.Open(
        context="a",
        voice="leo",
        encoding="pcm_f32le",
        sample_rate=8000,
        sampling=m.Sampling(
            temperature=0.0, top_p=0.0, repetition_penalty=2.0, seed=0, max_tokens=7
        ),
        segment=m.Segmentation(mode="flush", max_delay_ms=0),
        lead_ms=200,
        words=True,
        traceparent="00-1-2-01",
    )
    assert m.Settings(voice="tara").updated(options) == m.Settings(
        voice="leo",
        encoding="pcm_f32le",
        sample_rate=8000,
        temperature=0.0,
        top_p=0.0,
        repetition_penalty=2.0,
        seed=0,
        max_tokens=7,
        mode="flush",
        max_delay_ms=0,
        lead_ms=200,
        words=True,
        traceparent="00-1-2-01",
    )


def test_nested_options_are_merged() -> None:
    """Naming one member of `sampling` or `segment` leaves its others as they were."""
    first = m.Settings(voice="tara").updated(
        m.Config(
            sampling=m.Sampling(temperature=0.9, seed=5), segment=m.Segmentation(max_delay_ms=100)
        )
    )
    second = first.updated(
        m.Config(sampling=m.Sampling(top_p=0.5), segment=m.Segmentation(mode="clause"))
    )
    assert (second.temperature, second.top_p, second.seed) == (0.9, 0.5, 5)
    assert (second.mode, second.max_delay_ms) == ("clause", 100)


def test_updated_leaves_the_original() -> None:
    """Settings are a value: contexts that hold them do not change with later `config`s."""
    before = m.Settings(voice="tara")
    before.updated(m.Config(voice="leo", sampling=m.Sampling(seed=1)))
    assert before == m.Settings(voice="tara")


MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "voice": st.sampled_from(["tara", "leo"]),
    "lead_ms": st.integers(200, 10_000),
    "words": st.booleans(),
    "temperature": st.floats(0, 2),
    "seed": st.integers(0, 2**31 - 1),
    "mode": st.sampled_from(["sentence", "clause", "flush"]),
    "max_delay_ms": st.integers(0, 5000),
}
NESTED = {
    "temperature": "sampling",
    "seed": "sampling",
    "mode": "segment",
    "max_delay_ms": "segment",
}


@given(changes=st.lists(st.fixed_dictionaries({}, optional=MEMBERS), max_size=4))
def test_updates_add_up(changes: list[dict[str, Any]]) -> None:
    """After any `config`s each setting has the value that was given last, or its default."""
    spoken = m.Settings(voice="tara")
    for change in changes:
        message: dict[str, Any] = {"type": "config"}
        for name, value in change.items():
            (message.setdefault(NESTED[name], {}) if name in NESTED else message)[name] = value
        received = receive(message)
        assert isinstance(received, m.Config)
        spoken = spoken.updated(received)
    expected = {name: value for change in changes for name, value in change.items()}
    assert spoken == msgspec.structs.replace(m.Settings(voice="tara"), **expected)
