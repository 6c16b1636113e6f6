"""The translator of vLLM-Omni's speech stream, in both of its variants, without sockets."""

import base64
import json
from typing import Any

import pytest

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, Unworkable
from tests.translators import VOICES, error, receive, send, translator

CONFIG = {"type": "session.config", "response_format": "pcm", "stream_audio": True}
DONE = {"type": "input.done"}


class Stream:
    """One translator of vLLM-Omni's, with JSON on its outside."""

    def __init__(self, **config: Any) -> None:
        self.translator = translator("vllm_omni")
        self.receive({**CONFIG, **config})

    def receive(self, *requests: dict[str, Any]) -> list[m.ClientMessage]:
        """What requests mean."""
        return receive(self.translator, *requests)

    def send(self, *messages: m.ServerMessage) -> list[Any]:
        """What is sent for messages, JSON decoded."""
        return send(self.translator, *messages)

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
