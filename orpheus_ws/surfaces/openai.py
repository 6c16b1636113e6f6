"""OpenAI's speech API, `POST /v1/audio/speech`, and the lists beside it.

Rule: a request is one utterance. What goes back is `pcm` or `wav` while it is spoken, as a body of its own
or in base64 as server-sent events; the `Content-Type` says which. Nothing is compressed here. `mp3` is the
API's default, which most clients name without having been asked: it is answered with a WAV that says so.
The other formats somebody has chosen, so they are refused. An option that would change how it sounds and
cannot is refused (`speed`), one that only asks for a manner is not heeded (`instructions`).
"""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, UnknownVoice, UnsupportedFormat
from orpheus_ws.pcm import STREAMED_WAV_HEADER
from orpheus_ws.surfaces import (
    HTTP_LEAD_MS,
    PCM_TYPE,
    HttpSurface,
    Opening,
    find_voice,
)
from orpheus_ws.tokens import CODES_PER_FRAME, SAMPLE_RATE, SAMPLES_PER_FRAME

PATH: Final = "/v1/audio/speech"
MODELS_PATH: Final = "/v1/models"
VOICES_PATH: Final = "/v1/audio/voices"
MODEL: Final = "orpheus"
"""What `MODELS_PATH` lists. Requests may name any other."""

WAV_TYPE: Final = "audio/wav"
SSE_TYPE: Final = "text/event-stream"

VOICES: Final[Mapping[str, str]] = {
    "alloy": "tara",
    "ash": "dan",
    "ballad": "leo",
    "cedar": "zac",
    "coral": "leah",
    "echo": "leo",
    "fable": "zac",
    "marin": "mia",
    "nova": "jess",
    "onyx": "dan",
    "sage": "mia",
    "shimmer": "zoe",
    "verse": "leo",
}
"""OpenAI's names, and which published voice of Orpheus is nearest: a woman's for a woman's, a man's for a
man's. Where an engine does not have it, its default."""

_CONTEXT: Final = "speech"
_FIELD: Final = re.compile(r"`\$\.(\w+)|missing required field `(\w+)`")
_PARAMETERS: Final = {
    UnknownVoice.code: "voice",
    UnsupportedFormat.code: "response_format",
    "text_too_long": "input",
}


class _CustomVoice(msgspec.Struct, frozen=True):
    id: str


class _Request(msgspec.Struct, frozen=True):
    """What has no meaning here is ignored: `model`, `instructions`, and whatever others have added."""

    input: str
    voice: str | _CustomVoice | None = None
    response_format: str | None = None
    speed: float | None = None
    stream_format: Literal["audio", "sse"] | None = None


class _Form(NamedTuple):
    """How audio goes back."""

    wav: bool
    events: bool

    @property
    def media_type(self) -> str:
        if self.events:
            return SSE_TYPE
        return WAV_TYPE if self.wav else PCM_TYPE


class _Speech:
    """See `Reply`."""

    def __init__(self, text: str, voice: str, form: _Form) -> None:
        self.media_type = form.media_type
        self.messages = (
            m.Open(context=_CONTEXT, voice=voice, lead_ms=HTTP_LEAD_MS),
            m.Text(context=_CONTEXT, text=text),
            m.End(context=_CONTEXT),
            m.Close(),
        )
        self._form = form
        self._begun = False

    def send(self, message: m.ServerMessage) -> Sequence[bytes]:
        """See `Reply`."""
        match message:
            case m.Audio():
                return self._audio(message.pcm)
            case m.Done():
                return self._done(message)
            case m.Error() if self._form.events:
                error = _error(500, message.code, message.message)
                return [_event("speech.audio.error", error=error)]
            case _:
                return ()

    def _audio(self, pcm: bytes) -> list[bytes]:
        data = STREAMED_WAV_HEADER + pcm if self._form.wav and not self._begun else pcm
        self._begun = True
        if not self._form.events:
            return [data]
        return [_event("speech.audio.delta", audio=base64.b64encode(data).decode())]

    def _done(self, done: m.Done) -> list[bytes]:
        """The end. The text is counted in characters, as nobody here knows OpenAI's tokens."""
        if not self._form.events:
            return []
        frames = done.audio_ms / 1000 * SAMPLE_RATE / SAMPLES_PER_FRAME
        spoken = round(frames * CODES_PER_FRAME)
        usage = {
            "input_tokens": done.chars,
            "output_tokens": spoken,
            "total_tokens": done.chars + spoken,
        }
        return [_event("speech.audio.done", usage=usage)]


def _open(opening: Opening, body: bytes) -> _Speech:
    request = _decode(body)
    if not request.input:
        raise BadMessage("'input' is empty: send the text to be spoken")
    if request.speed not in (None, 1.0):
        raise BadMessage("the only 'speed' is 1.0")
    return _Speech(request.input, _voice(opening.voices, request.voice), _form(request))


def _decode(body: bytes) -> _Request:
    try:
        return msgspec.json.decode(body, type=_Request)
    except msgspec.ValidationError as error:
        # Its text is not passed on: it can contain what was sent.
        found = _FIELD.search(str(error))
        if found is None:
            raise BadMessage("the body must be a JSON object") from None
        raise BadMessage(f"'{found[1] or found[2]}' is missing or does not fit") from None
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise BadMessage(
            'send a JSON object such as {"input": "Hello.", "voice": "alloy"}'
        ) from None


def _voice(voices: tuple[str, ...], asked: str | _CustomVoice | None) -> str:
    """The voice of that name, or the one that stands for OpenAI's of that name."""
    name = asked.id if isinstance(asked, _CustomVoice) else asked
    if not name:
        return voices[0]
    if own := find_voice(voices, name):
        return own
    nearest = VOICES.get(name.strip().lower())
    if nearest is None:
        raise UnknownVoice(f"use one of the voices: {', '.join((*voices, *VOICES))}")
    return find_voice(voices, nearest) or voices[0]


def _form(request: _Request) -> _Form:
    events = request.stream_format == "sse"
    match request.response_format:
        case "pcm":
            return _Form(wav=False, events=events)
        case "wav" | None:
            return _Form(wav=True, events=events)
        case "mp3":
            # Whoever would look for MP3 in events does not look at the type of each of them.
            return _Form(wav=True, events=False)
        case _:
            raise UnsupportedFormat("use the response_format pcm or wav")


def _refusal(status: int, reason: str, advice: str) -> bytes:
    return msgspec.json.encode({"error": _error(status, reason, advice)})


def _error(status: int, reason: str, advice: str) -> dict[str, str | None]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {
        "message": advice,
        "type": "requests" if status == 429 else kind,
        "param": _PARAMETERS.get(reason),
        "code": reason,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return b"data: " + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"


def _models(_voices: tuple[str, ...]) -> bytes:
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "orpheus-ws"}
    return msgspec.json.encode({"object": "list", "data": [model]})


def _voices(voices: tuple[str, ...]) -> bytes:
    return msgspec.json.encode({"voices": [{"id": name, "name": name} for name in voices]})


HTTP_SURFACES: Final = (
    HttpSurface(
        "openai",
        (PATH,),
        _open,
        refusal=_refusal,
        pages={MODELS_PATH: _models, VOICES_PATH: _voices},
    ),
)
