"""Translators, without sockets: what comes in becomes our messages, and our messages what goes out."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, Unworkable
from orpheus_ws.surfaces import HangUp, Routes, Surface, find_voice
from orpheus_ws.surfaces.baseten import END
from tests.besieging import TURNS, say
from tests.translators import BY_NAME, SAID, VOICES, error, translator

# Routes -------------------------------------------------------------------------------------------


def test_every_path_leads_to_its_surface() -> None:
    """No two surfaces share a path, and each is found at its own."""
    routes = Routes(BY_NAME.values())
    paths = [path for surface in BY_NAME.values() for path in surface.paths]
    assert len(set(paths)) == len(paths)
    for surface in BY_NAME.values():
        for path in surface.paths:
            assert routes.find(path) == (surface, {})


def test_every_path_is_documented() -> None:
    """The page on surfaces has each of them with its name, and no other."""
    page = (Path(__file__).parents[1] / "docs" / "surfaces.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(/[^`]+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(
        (path, surface.name) for surface in BY_NAME.values() for path in surface.paths
    )


def test_paths_with_parameters() -> None:
    """A name in braces stands for one part of a path, which is decoded; nothing else matches."""
    surface = Surface("other", ("/a/{voice}/b",), BY_NAME["native"].open)
    routes = Routes([surface])
    assert routes.find("/a/t%C3%A4ra%2F/b") == (surface, {"voice": "tära/"})
    for path in ("", "/", "/a//b", "/a/x/b/", "/a/x", "/a/x/y/b", "/A/x/b"):
        assert routes.find(path) is None


def test_voices_are_found_in_whatever_case() -> None:
    """Names differ in case at most; others are nobody's."""
    assert find_voice(VOICES, " Leo") == "leo"
    assert find_voice(VOICES, "") is None
    assert find_voice(VOICES, None) is None
    assert find_voice(VOICES, "Vivian") is None


# All ----------------------------------------------------------------------------------------------

FRAMES = st.one_of(
    st.text(max_size=40),
    st.binary(max_size=40),
    st.sampled_from([END, '{"voice": "leo"}', '{"type": "session.config"}', '{"type": "input.done"}']),
    st.builds(
        json.dumps,
        st.dictionaries(
            st.sampled_from(["type", "text", "voice", "speed", "seed", "context", "temperature"]),
            st.one_of(
                st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
                st.sampled_from(["session.config", "input.text", "session.close", "voice.list"]),
            ),
            max_size=4,
        ),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((r"Hi \ud83d", r"\ude00 there."), "Hi  there."),
        ((r"Hi \ud83d\ude00", r" a literal \\ud83d"), "Hi \U0001f600 a literal \\ud83d"),
        ((r"\ude00\ud83d", r"\uD83DHi"), "Hi"),
    ],
)
@pytest.mark.parametrize("name", sorted(set(TURNS) - {"baseten"}))
def test_text_that_is_cut_in_a_character(name: str, parts: Sequence[str], expected: str) -> None:
    """Half of an escaped surrogate pair, as cut text has it, costs nobody the text around it.

    Baseten's text is no JSON, so it has no halves.
    """
    speech = translator(name)
    if name == "vllm_omni":
        speech.receive('{"type": "session.config"}')
    frame, _ = TURNS[name]
    messages = [message for part in parts for message in speech.receive(say(frame, part))]
    text = "".join(message.text for message in messages if isinstance(message, m.Text))
    assert text == expected


@pytest.mark.parametrize("name", BY_NAME)
@given(frames=st.lists(FRAMES, max_size=8))
def test_garbage_gives_typed_errors(name: str, frames: list[str | bytes]) -> None:
    """Whatever arrives becomes messages or a `BadMessage` whose text repeats nothing of it."""
    translated = translator(name)
    for frame in frames:
        problem = ""
        try:
            assert all(isinstance(each, m.ClientMessage) for each in translated.receive(frame))
        except BadMessage as refused:
            problem = str(refused)
        assert len(frame) < 20 or str(frame) not in problem
        for said in SAID:
            for answer in translated.send(said):
                assert isinstance(answer, str | bytes | HangUp)


# Baseten ------------------------------------------------------------------------------------------


def spoken_text(messages: Sequence[m.ClientMessage]) -> str:
    """What all `text` messages say."""
    return "".join(message.text for message in messages if isinstance(message, m.Text))


def turn(*fragments: str, options: str = "{}") -> list[m.ClientMessage]:
    """All messages of a turn at Baseten's."""
    translated = translator("baseten")
    frames = [options, *fragments, END]
    return [message for frame in frames for message in translated.receive(frame)]


@given(
    st.lists(st.text(alphabet="ab ,.", min_size=1, max_size=6), min_size=1, max_size=30).filter(
        lambda pieces: any(" " in piece for piece in pieces[:10])
    )
)
def test_baseten_fragments_are_left_as_they_are(pieces: list[str]) -> None:
    """Text with white space in it is what the fragments are together, however it was cut."""
    assert spoken_text(turn(*pieces)) == "".join(pieces)


@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=6), min_size=1, max_size=30))
def test_baseten_words_get_spaces(words: list[str]) -> None:
    """Bare words are separated."""
    assert spoken_text(turn(*words)) == " ".join(words)


@pytest.mark.parametrize(
    ("fragments", "text"),
    [
        (["Hi", "!"], "Hi!"),
        (["Don", "'t", "go", "."], "Don't go."),
        (["Hello", ",", " how", " are", " you", "?"], "Hello, how are you?"),
        (["well", "-", "known"], "well - known"),
        (["", "a", "", "b"], "a b"),
        ([], ""),
        (["One whole sentence."], "One whole sentence."),
    ],
)
def test_baseten_joining(fragments: list[str], text: str) -> None:
    """What has no white space is words, but for what can only follow a word."""
    assert spoken_text(turn(*fragments)) == text


def test_baseten_holds_no_more_words_than_the_client_says() -> None:
    """With `buffer_size` words it is decided, and then every word goes on at once."""
    translated = translator("baseten")
    translated.receive('{"buffer_size": 2}')
    assert [spoken_text(translated.receive(word)) for word in "abc"] == ["", "a b", " c"]


def test_baseten_turn() -> None:
    """A turn is options, text, the end and the close."""
    config, text, *rest = turn(
        "Hello there.",
        options='{"voice": "Leo", "max_tokens": 6144, "temperature": 0, "buffer_size": 10}',
    )
    assert config == m.Config(voice="leo", sampling=m.Sampling(temperature=0.0, max_tokens=4096))
    assert text == m.Text(context="turn", text="Hello there.")
    assert rest == [m.End(context="turn"), m.Close()]
    assert turn()[1:] == [m.End(context="turn"), m.Close()]


def test_baseten_unknown_voice_is_the_default() -> None:
    """Its clients have no eyes for errors."""
    assert turn(options='{"voice": "vivian"}')[0] == m.Config(voice="tara", sampling=m.Sampling())


@pytest.mark.parametrize("frame", ["Hello", "[]", "1", "", '{"voice": 1}', b"\xff"])
def test_baseten_needs_options_first(frame: str | bytes) -> None:
    """What does not begin with options ends the socket."""
    with pytest.raises(Unworkable):
        translator("baseten").receive(frame)


def test_baseten_sends_audio_and_nothing_else() -> None:
    """A failure closes; everything else that is not audio is not said."""
    translated = translator("baseten")
    assert translated.send(m.Audio(context="turn", seq=0, offset=0, pcm=b"12")) == (b"12",)
    assert translated.send(m.Done(context="turn", reason="end", audio_ms=1, chars=1)) == ()
    assert translated.send(SAID[0]) == ()
    assert translated.send(error("turn")) == (HangUp(1011, "engine_failed"),)
    assert translated.send(error("turn", retryable=False)) == (HangUp(1008, "engine_failed"),)
