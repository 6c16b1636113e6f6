"""vLLM-Omni's speech stream, as it is and as Baseten's qwen3-tts deployments have it.

Rule: an utterance is a context, numbered as clients number it: it begins with `input.text` and ends
with `input.done`, and the next may begin at once on the same socket. A segment of ours is a sentence of
theirs, between `audio.start` and `audio.done`. Our `words` are the last that is said of a segment, so
they are always asked for and tell that it is over. `input.done` without text keeps a socket alive.

The two kinds differ in how word times are asked for: `timestamp_type` (Baseten) brings them in
`audio.done`, `word_timestamps` (vLLM-Omni) has audio in JSON and brings them in a last chunk of it.
"""

import base64
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, Unworkable
from orpheus_ws.pcm import STREAMED_WAV_HEADER
from orpheus_ws.surfaces import Opening, Surface, find_voice
from orpheus_ws.tokens import SAMPLE_RATE
from orpheus_ws.wire.native import without_halves

PATH: Final = "/v1/audio/speech/stream"

_VOICES: Final = "voices"
"""The ping that stands for `voice.list`; others are numbers of utterances."""
_MODES: Final[dict[str, m.SegmentMode]] = {"none": "flush", "clause": "clause"}
_BYTES_PER_MS: Final = SAMPLE_RATE * 2 / 1000


class _Config(msgspec.Struct, frozen=True, tag="session.config"):
    """What means nothing here is ignored: `model`, `task_type`, `language`, `instructions` and more.

    So is `max_new_tokens`, which counts tokens of another length.
    """

    voice: str | None = None
    speaker: str | None = None
    response_format: Literal["pcm", "wav"] = "wav"
    stream_audio: bool = False
    speed: float | None = None
    seed: int | None = None
    split_granularity: Literal["none", "sentence", "clause"] | None = None
    timestamp_type: str | None = None
    word_timestamps: bool = False


class _Text(msgspec.Struct, frozen=True, tag="input.text"):
    text: str = ""


class _Done(msgspec.Struct, frozen=True, tag="input.done"):
    pass


class _Close(msgspec.Struct, frozen=True, tag="session.close"):
    pass


class _ListVoices(msgspec.Struct, frozen=True, tag="voice.list"):
    pass


_Request = _Config | _Text | _Done | _Close | _ListVoices
_REQUESTS: Final[msgspec.json.Decoder[_Request]] = msgspec.json.Decoder(_Request)


class _Utterance:
    """What is said of one: frames for the messages of its context, in their order."""

    def __init__(self, number: int, config: _Config) -> None:
        self.complete = False
        """`input.done` has come for it."""
        self.sentences = 0
        self._number = number
        self._config = config
        self._speaking = False
        self._bytes = 0  # of the sentence that is being spoken
        self._start_ms = 0.0
        self._chunks = 0

    @property
    def heard(self) -> bool:
        """Whether a part of a sentence was heard, and its end was not."""
        return self._speaking and self._bytes > 0

    def begin(self, message: m.Segment) -> list[str | bytes]:
        """A sentence is about to be heard."""
        self._speaking, self._bytes, self._chunks = True, 0, 0
        self._start_ms = message.offset * 1000 / SAMPLE_RATE
        self.sentences += 1
        frames: list[str | bytes] = [
            self._event(
                "audio.start",
                sentence_text=message.text,
                format=self._config.response_format,
                sample_rate=SAMPLE_RATE,
            )
        ]
        if self._config.response_format == "wav":
            frames.append(STREAMED_WAV_HEADER)
        return frames

    def audio(self, pcm: bytes) -> str | bytes:
        """More of it."""
        start_ms = self._bytes / _BYTES_PER_MS
        self._bytes += len(pcm)
        return self._chunk(pcm, start_ms, None) if self._config.word_timestamps else pcm

    def end(self, words: tuple[m.Word, ...]) -> list[str]:
        """It was heard to its end, with these words."""
        times = [
            (word.text, word.start_ms - self._start_ms, word.end_ms - self._start_ms)
            for word in words
        ]
        frames = []
        if self._config.word_timestamps:
            listed = [
                {"word": text, "start_ms": round(start), "end_ms": round(end)}
                for text, start, end in times
            ]
            frames.append(self._chunk(b"", 0.0, listed))
        info: dict[str, Any] = {}
        if self._config.timestamp_type == "word":
            info["timestamp_info"] = {
                "word_alignment": {
                    "words": [text for text, _, _ in times],
                    "word_start_times_seconds": [round(start / 1000, 4) for _, start, _ in times],
                    "word_end_times_seconds": [round(end / 1000, 4) for _, _, end in times],
                }
            }
        return [*frames, self._end(error=False, **info)]

    def fail(self) -> list[str]:
        """It will not be heard to its end."""
        return [self._end(error=True)] if self._speaking else []

    def _end(self, *, error: bool, **info: Any) -> str:
        self._speaking = False
        return self._event("audio.done", total_bytes=self._bytes, error=error, **info)

    def _chunk(self, pcm: bytes, start_ms: float, words: list[dict[str, Any]] | None) -> str:
        self._chunks += 1
        return self._event(
            "audio.chunk",
            chunk_id=self._chunks - 1,
            chunk_start_ms=round(start_ms),
            chunk_end_ms=round(self._bytes / _BYTES_PER_MS),
            sample_rate=SAMPLE_RATE,
            audio_b64=base64.b64encode(pcm).decode(),
            timestamps=words,
        )

    def _event(self, kind: str, **fields: Any) -> str:
        place = {"utterance_index": self._number, "sentence_index": self.sentences - 1}
        return _json(kind, **place, **fields)


class _Stream:
    """See `Translator`."""

    def __init__(self, voices: tuple[str, ...]) -> None:
        self._voices = voices
        self._config: _Config | None = None
        self._number = 0
        """Of the utterance that is being written."""
        self._live: dict[str, _Utterance] = {}
        """Those that are not over, by context."""
        self._failed: _Utterance | None = None
        """The one that is being written, if it is over already."""
        self._unanswered: dict[int, int] = {}
        """Sentences of those that a ping will answer."""

    def receive(self, frame: str | bytes) -> Sequence[m.ClientMessage]:
        """See `Translator`. Without a configuration nothing can follow, so then errors are fatal."""
        try:
            return self._request(_decode(frame))
        except BadMessage as error:
            if self._config is None:
                raise Unworkable(str(error)) from None
            raise

    def _request(self, request: _Request) -> Sequence[m.ClientMessage]:
        if isinstance(request, _Config):
            return self._configure(request)
        if isinstance(request, _ListVoices):
            return (m.Ping(id=_VOICES),)
        if self._config is None:
            raise BadMessage("begin with session.config")
        match request:
            case _Text():
                return self._text(request.text, self._config)
            case _Done():
                return self._done(self._config)
            case _Close():
                return (m.Close(),)

    def _configure(self, config: _Config) -> Sequence[m.ClientMessage]:
        if self._writing is not None or self._failed is not None:
            raise BadMessage("session.config fits only between utterances; send input.done first")
        name = config.voice or config.speaker
        if name and find_voice(self._voices, name) is None:
            raise BadMessage(f"use one of the voices: {', '.join(self._voices)}")
        if config.speed not in (None, 1.0):
            raise BadMessage("the only speed is 1.0")
        streamed = config.stream_audio and config.response_format == "pcm"
        if config.word_timestamps and not streamed:
            raise BadMessage("word_timestamps needs stream_audio and the response_format pcm")
        self._config = config
        return ()

    @property
    def _writing(self) -> _Utterance | None:
        return self._live.get(str(self._number))

    def _text(self, text: str, config: _Config) -> Sequence[m.ClientMessage]:
        if not text or self._failed is not None:
            return ()
        message = m.Text(context=str(self._number), text=text)
        return (message,) if self._writing else (self._open(config), message)

    def _done(self, config: _Config) -> Sequence[m.ClientMessage]:
        context, utterance = str(self._number), self._writing
        if utterance is None and not self._live:
            # Nothing to say, or what there was has failed; and nobody to wait for.
            self._unanswered[self._number] = self._failed.sentences if self._failed else 0
            self._failed = None
            self._number += 1
            return (m.Ping(id=self._number - 1),)
        opened = () if utterance else (self._open(config),)
        self._failed = None
        self._live[context].complete = True
        self._number += 1
        return (*opened, m.End(context=context))

    def _open(self, config: _Config) -> m.Open:
        context = str(self._number)
        self._live[context] = _Utterance(self._number, config)
        seed = msgspec.UNSET if config.seed is None else config.seed % 2**31
        return m.Open(
            context=context,
            voice=find_voice(self._voices, config.voice or config.speaker) or self._voices[0],
            sampling=m.Sampling(seed=seed),
            segment=m.Segmentation(mode=_MODES.get(config.split_granularity or "", "sentence")),
            words=True,
        )

    def send(self, message: m.ServerMessage) -> Sequence[str | bytes]:
        """See `Translator`."""
        match message:
            case m.Audio():
                return (self._live[message.context].audio(message.pcm),)
            case m.Segment():
                return self._live[message.context].begin(message)
            case m.Words():
                return self._live[message.context].end(message.words)
            case m.Done():
                return (_over(message.context, self._live.pop(message.context).sentences),)
            case m.Error():
                return self._error(message)
            case m.Pong(id=id_):
                return (self._pong(id_),)
            case _:
                return ()

    def _error(self, message: m.Error) -> list[str]:
        failed = None if message.context is None else self._live.pop(message.context)
        fields: dict[str, Any] = {"message": message.message, "code": message.code}
        if failed is None or message.context is None:
            return [_json("error", **fields)]
        if failed.heard:
            fields |= {"partial_audio": True, "action": "discard"}
        frames = [_json("error", **fields), *failed.fail()]
        if failed.complete:
            return [*frames, _over(message.context, failed.sentences)]
        self._failed = failed
        return frames

    def _pong(self, id_: str | int) -> str:
        if id_ == _VOICES:
            return _json("voice.list", voices=list(self._voices), uploaded_voices=[])
        assert isinstance(id_, int)
        return _over(str(id_), self._unanswered.pop(id_))


def _over(context: str, sentences: int) -> str:
    return _json("session.done", utterance_index=int(context), total_sentences=sentences)


def _decode(frame: str | bytes) -> _Request:
    if not isinstance(frame, str):
        raise BadMessage("send JSON messages in text frames")
    try:
        return _REQUESTS.decode(without_halves(frame))
    except msgspec.ValidationError as error:
        if "`$.type`" in str(error) or "missing required field `type`" in str(error):
            kinds = "session.config, input.text, input.done, session.close or voice.list"
            raise BadMessage(f"'type' must be {kinds}") from None
        raise BadMessage("a field of the message does not fit") from None
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise BadMessage("the message is not JSON") from None


def _json(kind: str, **fields: Any) -> str:
    return msgspec.json.encode({"type": kind, **fields}).decode()


def _open(opening: Opening) -> _Stream:
    return _Stream(opening.voices)


SURFACES: Final = (Surface("vllm_omni", (PATH,), _open),)
