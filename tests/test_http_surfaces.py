"""Surfaces over HTTP, without a server: what a body means, and what a message is in a response."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws import messages as m
from orpheus_ws import tokens
from orpheus_ws.errors import BadMessage, OrpheusError, UnknownVoice, UnsupportedFormat
from orpheus_ws.pcm import STREAMED_WAV_HEADER
from orpheus_ws.server.http import KEEP_ALIVE_SECONDS
from orpheus_ws.surfaces import (
    HTTP_LEAD_MS,
    HttpSurface,
    Opening,
    Reply,
    http_surfaces,
    surfaces,
)
from orpheus_ws.surfaces.openai import VOICES

PAGE = (Path(__file__).parents[1] / "docs" / "surfaces.md").read_text(encoding="utf-8")
BY_NAME = {surface.name: surface for surface in http_surfaces()}
TEXTS = st.text(min_size=1, max_size=40)


def reply(name: str, body: bytes, voices: tuple[str, ...] = tokens.VOICES) -> Reply:
    """What is answered to a body."""
    opening = Opening(parameters={}, query={}, headers={}, subprotocol=None, voices=voices)
    return BY_NAME[name].open(opening, body)


def openai(voices: tuple[str, ...] = tokens.VOICES, **fields: Any) -> Reply:
    """What is answered to a request as OpenAI's clients make it."""
    return reply("openai", json.dumps({"input": "Hello."} | fields).encode(), voices)


def opened(answer: Reply) -> m.Open:
    """The message that opens its context."""
    first = answer.messages[0]
    assert isinstance(first, m.Open)
    return first


def audio(pcm: bytes) -> m.Audio:
    """A piece of speech."""
    return m.Audio(context="speech", seq=0, offset=0, pcm=pcm)


def done(*, audio_ms: float = 0.0, chars: int = 0) -> m.Done:
    """The end of it."""
    return m.Done(context="speech", reason="end", audio_ms=audio_ms, chars=chars)


def failure() -> m.Error:
    """A failure."""
    return m.Error(context="speech", code="engine_failed", message="m", retryable=True, fatal=False)


# All ----------------------------------------------------------------------------------------------


def test_names_and_paths_are_nobody_else_s() -> None:
    """No surface shares its name with another; paths differ among those that are asked alike."""
    names = [*BY_NAME, *(surface.name for surface in surfaces())]
    assert len(set(names)) == len(names)
    paths = [path for surface in http_surfaces() for path in (*surface.paths, *surface.pages)]
    assert len(set(paths)) == len(paths)


def test_every_one_is_documented() -> None:
    """The page has a line for each path, the voices as they are, and the numbers."""
    for surface in http_surfaces():
        for path in surface.paths:
            assert f"| `POST {path}` | `{surface.name}` |" in PAGE
        for path in surface.pages:
            assert f"`GET {path}`" in PAGE
    names, ours = re.findall(r"^\| (?:OpenAI's|ours) \| (.*) \|$", PAGE, re.MULTILINE)
    assert dict(zip(names.split(" | "), ours.split(" | "), strict=True)) == {
        f"`{name}`": f"`{voice}`" for name, voice in VOICES.items()
    }
    assert f"at most {HTTP_LEAD_MS / 1000:g} s ahead" in PAGE
    assert f"kept for {KEEP_ALIVE_SECONDS} s" in PAGE


BODIES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(str.encode),
    st.builds(
        lambda fields: json.dumps(fields).encode(),
        st.dictionaries(
            st.sampled_from(
                ["input", "prompt", "voice", "speed", "response_format", "stream_format", "model",
                 "temperature", "max_tokens", "instructions"]
            ),
            st.one_of(
                st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
                st.sampled_from(["Hello.", "alloy", "pcm", "wav", "mp3", "sse", "audio"]),
                st.dictionaries(st.sampled_from(["id", "name"]), st.text(max_size=8), max_size=2),
            ),
            max_size=6,
        ),
    ),
)  # fmt: skip


@pytest.mark.parametrize("surface", BY_NAME.values(), ids=BY_NAME)
@given(body=BODIES)
def test_garbage_is_refused_with_a_typed_error(surface: HttpSurface, body: bytes) -> None:
    """A body is a whole utterance, or an error of ours that repeats nothing of it."""
    refused: OrpheusError | None = None
    try:
        answer = reply(surface.name, body)
    except OrpheusError as error:
        refused = error
    if refused is not None:
        assert len(body) < 20 or body.decode("latin-1") not in str(refused)
        assert json.loads(surface.refusal(400, refused.code, str(refused)))["error"]
        return
    opening, text, end, close = answer.messages
    assert isinstance(opening, m.Open)
    assert opening.voice in tokens.VOICES
    assert isinstance(text, m.Text)
    assert isinstance(end, m.End)
    assert opening.context == text.context == end.context
    assert isinstance(close, m.Close)
    for said in (audio(b"\0\0"), done(audio_ms=1.0), failure()):
        assert all(isinstance(part, bytes) for part in answer.send(said))


@pytest.mark.parametrize("field", [("openai", "input"), ("baseten_http", "prompt")])
@given(text=TEXTS)
def test_the_text_is_spoken_as_it_is(field: tuple[str, str], text: str) -> None:
    """Not a character is changed, whatever else was asked for."""
    name, key = field
    body = json.dumps({key: text, "instructions": "Speak.", "language": "en"}).encode()
    (message,) = [each for each in reply(name, body).messages if isinstance(each, m.Text)]
    assert message.text == text


# OpenAI -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "voice"),
    [
        (None, "tara"),
        ("", "tara"),
        ("Zoe", "zoe"),
        ("alloy", "tara"),
        ("ONYX", "dan"),
        ({"id": "leo"}, "leo"),
        ({"id": "nova"}, "jess"),
    ],
)
def test_voices(asked: object, voice: str) -> None:
    """Ours by their names, OpenAI's as the nearest of ours; without one, the default."""
    assert opened(openai(voice=asked)).voice == voice


def test_every_voice_of_openais_is_one_of_orpheus() -> None:
    """And where the engine has none of them, its default."""
    for name, nearest in VOICES.items():
        assert nearest in tokens.VOICES
        assert opened(openai(voice=name)).voice == nearest
        assert opened(openai(("heart",), voice=name)).voice == "heart"


def test_an_own_voice_goes_before_openais() -> None:
    """An engine may have a voice that is called as one of OpenAI's."""
    assert opened(openai(("heart", "Alloy"), voice="alloy")).voice == "Alloy"


def test_unknown_voices() -> None:
    """They are refused, with all that there are."""
    with pytest.raises(UnknownVoice, match=r"zoe.*verse"):
        openai(voice="nobody")


@pytest.mark.parametrize(
    ("response_format", "stream_format", "media_type"),
    [
        ("pcm", None, "audio/pcm"),
        ("pcm", "audio", "audio/pcm"),
        ("pcm", "sse", "text/event-stream"),
        ("wav", None, "audio/wav"),
        ("wav", "sse", "text/event-stream"),
        (None, None, "audio/wav"),
        (None, "sse", "text/event-stream"),
        ("mp3", None, "audio/wav"),
        ("mp3", "audio", "audio/wav"),
        ("mp3", "sse", "audio/wav"),
    ],
)
def test_what_comes_back(
    response_format: str | None, stream_format: str | None, media_type: str
) -> None:
    """The type says what it is. The header of a WAV comes once, and everything else is samples."""
    answer = openai(response_format=response_format, stream_format=stream_format)
    assert answer.media_type == media_type
    parts = [part for pcm in (b"ab", b"cd") for part in answer.send(audio(pcm))]
    if media_type == "text/event-stream":
        deltas = [json.loads(part.removeprefix(b"data: ")) for part in parts]
        parts = [base64.b64decode(delta["audio"]) for delta in deltas]
    assert b"".join(parts) == (b"" if response_format == "pcm" else STREAMED_WAV_HEADER) + b"abcd"


@pytest.mark.parametrize("response_format", ["opus", "aac", "flac", "ogg"])
def test_formats_that_there_are_not(response_format: str) -> None:
    """Somebody chose them, so nothing else will do."""
    with pytest.raises(UnsupportedFormat, match="pcm or wav"):
        openai(response_format=response_format)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": ""}, "'input' is empty"),
        ({"input": None}, "'input'"),
        ({"speed": "fast"}, "'speed'"),
        ({"speed": 0.5}, "'speed' is 1.0"),
        ({"stream_format": "morse"}, "'stream_format'"),
        ({"voice": {"name": "x"}}, "'id'|'voice'"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], named: str) -> None:
    """Whoever sent it is told what to look at."""
    with pytest.raises(BadMessage, match=named):
        openai(**fields)


@pytest.mark.parametrize("body", [b"", b"[]", b'"input"', b"{}", b"\xff", b"[" * 10_000])
def test_bodies_that_are_none(body: bytes) -> None:
    """They are told apart from fields that do not fit."""
    with pytest.raises(BadMessage, match=r"JSON object|'input' is missing"):
        reply("openai", body)


def test_usage() -> None:
    """Seven tokens for each frame of 2048 samples, and the text in characters."""
    answer = openai(response_format="pcm", stream_format="sse")
    answer.send(audio(b"ab"))
    (last,) = answer.send(done(audio_ms=3 * 2048 / 24, chars=6))
    usage = {"input_tokens": 6, "output_tokens": 21, "total_tokens": 27}
    assert json.loads(last.removeprefix(b"data: ")) == {"type": "speech.audio.done", "usage": usage}


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (503, "server_error")]
)
def test_errors_have_openais_shape(status: int, kind: str) -> None:
    """Four fields, of which `param` is empty where none is meant."""
    told = json.loads(BY_NAME["openai"].refusal(status, "full", "m"))
    assert told == {"error": {"message": "m", "type": kind, "param": None, "code": "full"}}


# Baseten ------------------------------------------------------------------------------------------


def test_basetens_options() -> None:
    """Numbers become the nearest that are possible, and an unknown voice the default."""
    body = {"prompt": "Hi.", "voice": "nobody", "temperature": 9, "top_p": 0.5, "max_tokens": 1}
    opening = opened(reply("baseten_http", json.dumps(body).encode()))
    assert opening.voice == "tara"
    assert opening.sampling == m.Sampling(temperature=2.0, top_p=0.5, max_tokens=7)
