"""Translators, without sockets: what comes in becomes our messages, and our messages what goes out."""

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, Unworkable
from orpheus_ws.surfaces import HangUp, Opening, Routes, Surface, Translator, find_voice, surfaces
from orpheus_ws.surfaces.baseten import END

VOICES = ("tara", "leo")
BY_NAME = {surface.name: surface for surface in surfaces()}
LIMITS = m.Limits(contexts=1, text_chars=1, message_bytes=1, idle_seconds=1.0, session_seconds=1.0)
SAID: tuple[m.ServerMessage, ...] = (
    m.Ready(session="s", encodings=(), sample_rates=(), voices=VOICES, limits=LIMITS),
    m.Draining(deadline_ms=1),
    m.Warn(code="context_idle", message="m"),
    m.Error(code="bad_message", message="m", retryable=False, fatal=False),
)
"""What may be said at any time."""


def translator(name: str) -> Translator:
    """A fresh one."""
    opening = Opening(parameters={}, query={}, headers={}, subprotocol=None, voices=VOICES)
    return BY_NAME[name].open(opening)


def error(context: str | None, *, retryable: bool = True) -> m.Error:
    """A failure as the session tells it."""
    return m.Error(
        context=context, code="engine_failed", message="m", retryable=retryable, fatal=False
    )


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


# vLLM-Omni ----------------------------------------------------------------------------------------

CONFIG = {"type": "session.config", "response_format": "pcm", "stream_audio": True}
DONE = {"type": "input.done"}


class Stream:
    """One translator of vLLM-Omni's, with JSON on its outside."""

    def __init__(self, **config: Any) -> None:
        self.translator = translator("vllm_omni")
        self.receive({**CONFIG, **config})

    def receive(self, *requests: dict[str, Any]) -> list[m.ClientMessage]:
        """What requests mean."""
        return [
            message
            for request in requests
            for message in self.translator.receive(json.dumps(request))
        ]

    def send(self, *messages: m.ServerMessage) -> list[Any]:
        """What is sent for messages, JSON decoded."""
        return [
            frame if isinstance(frame, bytes) else json.loads(str(frame))
            for message in messages
            for frame in self.translator.send(message)
        ]

    def say(self, text: str) -> list[m.ClientMessage]:
        """A whole utterance."""
        return self.receive({"type": "input.text", "text": text}, DONE)


def sentence(context: str, index: int, offset: int, pcm: bytes) -> list[m.ServerMessage]:
    """What is said of a segment of one word."""
    start, end = offset / 24.0, (offset + len(pcm) // 2) / 24.0
    return [
        m.Segment(context=context, index=index, text="Hi.", offset=offset),
        m.Audio(context=context, seq=index, offset=offset, pcm=pcm),
        m.Words(context=context, words=(m.Word(text="Hi.", start_ms=start, end_ms=end),)),
    ]


def done(context: str) -> m.Done:
    """The end of a context."""
    return m.Done(context=context, reason="end", audio_ms=1, chars=1)


def kinds(frames: list[Any]) -> list[str]:
    """Types of events; PCM is `pcm`."""
    return ["pcm" if isinstance(frame, bytes) else frame["type"] for frame in frames]


def test_omni_utterances_are_contexts() -> None:
    """Each `input.done` ends a context, opened with what was configured, and the next has a name of its own."""
    stream = Stream(voice="Leo", seed=2**31 + 5)
    opened = m.Open(
        context="0",
        voice="leo",
        sampling=m.Sampling(seed=5),
        segment=m.Segmentation(mode="sentence"),
        words=True,
    )
    assert stream.say("Hi.") == [opened, m.Text(context="0", text="Hi."), m.End(context="0")]
    assert [getattr(message, "context", "") for message in stream.say("Hi.")] == ["1"] * 3


def test_omni_two_sentences() -> None:
    """Sentences have their own numbers and bytes; `session.done` counts them."""
    stream = Stream()
    stream.say("Hi. Hi.")
    frames = stream.send(
        *sentence("0", 0, 0, bytes(4800)), *sentence("0", 1, 2400, bytes(960)), done("0")
    )
    one = ["audio.start", "pcm", "audio.done"]
    assert kinds(frames) == [*one, *one, "session.done"]
    place = {"utterance_index": 0, "sentence_index": 1}
    start = {"sentence_text": "Hi.", "format": "pcm", "sample_rate": 24000}
    assert frames[3] == {"type": "audio.start", **place, **start}
    assert frames[5] == {"type": "audio.done", **place, "total_bytes": 960, "error": False}
    assert frames[6] == {"type": "session.done", "utterance_index": 0, "total_sentences": 2}


def test_omni_word_times_of_baseten() -> None:
    """They come with `audio.done` and begin at the sentence."""
    stream = Stream(timestamp_type="word", timestamp_transport_strategy="sync")
    stream.say("Hi. Hi.")
    *_, last = stream.send(*sentence("0", 0, 0, bytes(4800)), *sentence("0", 1, 2400, bytes(4800)))
    assert last["timestamp_info"]["word_alignment"] == {
        "words": ["Hi."],
        "word_start_times_seconds": [0.0],
        "word_end_times_seconds": [0.1],
    }


def test_omni_word_times_of_its_own() -> None:
    """Audio is in JSON then, and an empty chunk at the end has the words."""
    stream = Stream(word_timestamps=True)
    stream.say("Hi.")
    start, chunk, last, _ = stream.send(*sentence("0", 0, 0, bytes(4800)))
    assert start["type"] == "audio.start"
    assert base64.b64decode(chunk["audio_b64"]) == bytes(4800)
    assert (chunk["chunk_id"], chunk["chunk_start_ms"], chunk["chunk_end_ms"]) == (0, 0, 100)
    assert chunk["timestamps"] is None
    assert last["timestamps"] == [{"word": "Hi.", "start_ms": 0, "end_ms": 100}]
    assert last["audio_b64"] == ""


def test_omni_wav() -> None:
    """Without a format a sentence is a WAV file that ends where it ends."""
    stream = Stream(response_format="wav", stream_audio=False)
    stream.say("Hi.")
    _, header, pcm, _ = stream.send(*sentence("0", 0, 0, b"abcd"))
    assert header[:4] + header[8:16] == b"RIFFWAVEfmt "
    assert len(header) == 44
    assert pcm == b"abcd"


def test_omni_keep_alive() -> None:
    """`input.done` without text is answered at once, but after what is still being spoken."""
    stream = Stream()
    assert stream.receive(DONE) == [m.Ping(id=0)]
    answer = {"type": "session.done", "utterance_index": 0, "total_sentences": 0}
    assert stream.send(m.Pong(id=0)) == [answer]
    stream.say("Hi.")
    assert [type(message) for message in stream.receive(DONE)] == [m.Open, m.End]
    frames = stream.send(done("1"), done("2"))
    assert [frame["utterance_index"] for frame in frames] == [1, 2]


def test_omni_failure_in_mid_sentence() -> None:
    """It is an error, the end of the sentence, and the end of the utterance once that is complete."""
    stream = Stream()
    stream.receive({"type": "input.text", "text": "Hi."})
    frames = stream.send(*sentence("0", 0, 0, b"1234")[:2], error("0"))
    assert kinds(frames) == ["audio.start", "pcm", "error", "audio.done"]
    assert frames[2]["partial_audio"] is True
    assert frames[3]["error"] is True
    assert stream.receive({"type": "input.text", "text": "more"}) == []
    assert stream.receive(DONE) == [m.Ping(id=0)]
    (over,) = stream.send(m.Pong(id=0))
    assert (over["utterance_index"], over["total_sentences"]) == (0, 1)
    assert isinstance(stream.say("Hi.")[0], m.Open)


def test_omni_failure_of_a_complete_utterance() -> None:
    """Both ends come with it, and nobody is told of audio that there was none of."""
    stream = Stream()
    stream.say("Hi.")
    frames = stream.send(error("0"))
    assert kinds(frames) == ["error", "session.done"]
    assert "partial_audio" not in frames[0]


def test_omni_configuration_between_utterances_only() -> None:
    """In the middle of one it is refused; afterwards it counts for the next, not for what is spoken."""
    stream = Stream()
    stream.receive({"type": "input.text", "text": "Hi."})
    with pytest.raises(BadMessage, match=r"input\.done first") as refused:
        stream.receive(CONFIG)
    assert refused.value.close_code is None
    stream.receive(DONE)
    stream.receive({**CONFIG, "word_timestamps": True})
    assert kinds(stream.send(*sentence("0", 0, 0, b"12"))) == ["audio.start", "pcm", "audio.done"]


@pytest.mark.parametrize(
    "config",
    [
        {"voice": "Vivian"},
        {"speed": 1.5},
        {"response_format": "mp3"},
        {"word_timestamps": True, "stream_audio": False},
        {"seed": "x"},
        {"type": "voice.add"},
        {"type": "input.text", "text": "Hi."},
        {"type": "input.done"},
        {"type": None},
    ],
)
def test_omni_bad_configuration(config: dict[str, Any]) -> None:
    """The first message must be a good one; a later one that is not changes nothing."""
    frame = json.dumps({**CONFIG, **config})
    with pytest.raises(Unworkable):
        translator("vllm_omni").receive(frame)
    if not str(config.get("type", "")).startswith("input."):
        with pytest.raises(BadMessage) as refused:
            Stream().translator.receive(frame)
        assert refused.value.close_code is None


def test_omni_lists_voices() -> None:
    """Also before it is configured."""
    translated = translator("vllm_omni")
    assert translated.receive('{"type": "voice.list"}') == (m.Ping(id="voices"),)
    (listed,) = translated.send(m.Pong(id="voices"))
    assert json.loads(str(listed))["voices"] == list(VOICES)


def test_omni_close() -> None:
    """`session.close` lets what is open end."""
    assert Stream().receive({"type": "session.close"}) == [m.Close()]
