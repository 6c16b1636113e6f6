"""Cartesia's speech socket: contexts, each with a transcript that is continued.

Rule: their contexts are ours, under the ids that clients give them. `continue` keeps one open, and
without it the context ends. `max_buffer_delay_ms: 0` says that every transcript is a whole one, so
each is flushed; otherwise transcripts are one text, with a space where two sentences met without one.

Every message names a context, also errors that are nobody's, as clients look for it: those name the
one that was last heard of. An error is the end of its context, whoever is to blame, and its `done` is
false, as that word means success to clients. What is cancelled is not heard of again: clients would take
its end for that of what they say next.
"""

import base64
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage
from orpheus_ws.surfaces import Opening, Surface, find_voice
from orpheus_ws.tokens import SAMPLE_RATE
from orpheus_ws.wire.native import without_halves

PATH: Final = "/tts/websocket"

_ENCODINGS: Final = {
    "pcm_s16le": "pcm_s16le",
    "pcm_f32le": "pcm_f32le",
    "pcm_mulaw": "mulaw",
    "pcm_alaw": "alaw",
}
_STATUS: Final = {
    "bad_message": 400,
    "unknown_voice": 400,
    "unsupported_format": 400,
    "text_too_long": 413,
    "context_limit": 429,
    "rate_limited": 429,
    "overloaded": 503,
}
"""As HTTP would have it; what is not here is 500."""

_ENDED: Final = re.compile(r"""[.!?…]["'”’)\]]*\Z""")
_OPENERS: Final = "\"'“‘([¿¡"


class _Voice(msgspec.Struct, frozen=True):
    id: str | None = None


class _Format(msgspec.Struct, frozen=True):
    container: str = "raw"
    encoding: str = "pcm_s16le"
    sample_rate: int = SAMPLE_RATE


class _Generation(msgspec.Struct, frozen=True):
    speed: float | None = None


class _Request(msgspec.Struct, frozen=True, rename={"continues": "continue"}):
    """What means nothing here is ignored: `model_id`, `language`, `pronunciation_dict_id` and more."""

    context_id: m.ContextId
    cancel: bool | None = None
    transcript: str | None = None
    continues: bool | None = None
    flush: bool | None = None
    voice: str | _Voice | None = None
    output_format: _Format = _Format()
    add_timestamps: bool | None = None
    max_buffer_delay_ms: Annotated[int, Meta(ge=0, le=5000)] | None = None
    generation_config: _Generation | None = None


class _Named(msgspec.Struct, frozen=True):
    """Whatever names a context."""

    context_id: m.ContextId


_T = TypeVar("_T", _Request, _Named)


class _Context:
    """A context that has not ended."""

    def __init__(self) -> None:
        self.flushes = 0
        self.complete = False
        """No more may be said; what was said may still have to be heard."""
        self._ended = False  # what was written of it is the end of a sentence

    def join(self, transcript: str) -> str:
        """A transcript as the continuation of those before it."""
        starts = transcript.lstrip(_OPENERS)[:1].isupper()
        space = " " if self._ended and starts else ""
        self._ended = bool(_ENDED.search(transcript)) if transcript else self._ended
        return space + transcript


class _Speech:
    """See `Translator`."""

    def __init__(self, voices: tuple[str, ...]) -> None:
        self._voices = voices
        self._live: dict[str, _Context] = {}
        self._latest = ""
        """The context that was last heard of."""

    def receive(self, frame: str | bytes) -> Sequence[m.ClientMessage]:
        """See `Translator`. A message that does not fit ends the context that it names."""
        named = _decoded(frame, _Named)
        request = _decoded(frame, _Request)
        if named is None or named.context_id == m.ALL_CONTEXTS:
            advice = f"name a context_id of 1 to 128 characters, other than {m.ALL_CONTEXTS!r}"
            problem = f"send JSON objects in text frames that {advice}"
            raise BadMessage(problem, context=self._latest or None, cancels=bool(self._latest))
        self._latest = named.context_id
        problem = "a field of the message does not fit" if request is None else _problem(request)
        if request is None or problem:
            raise BadMessage(problem, context=named.context_id, cancels=True)
        if request.cancel:
            return (m.Cancel(context=request.context_id),)
        return self._continue(request)

    def _continue(self, request: _Request) -> list[m.ClientMessage]:
        id_ = request.context_id
        messages: list[m.ClientMessage] = []
        if id_ not in self._live:
            self._live[id_] = _Context()
            messages.append(self._open(request))
        context = self._live[id_]
        if context.complete:
            return self._late(request)
        if text := context.join(request.transcript or ""):
            messages.append(m.Text(context=id_, text=text))
        whole = bool(text) and bool(request.continues) and request.max_buffer_delay_ms == 0
        if request.flush or whole:
            context.flushes += 1
            messages.append(m.Flush(context=id_, id=context.flushes))
        if not request.continues:
            context.complete = True
            messages.append(m.End(context=id_))
        return messages

    def _late(self, request: _Request) -> list[m.ClientMessage]:
        """Whoever ends a context twice has said nothing new; whoever says more is told that this cannot be."""
        if (request.transcript or "").strip() or request.flush:
            advice = "the context takes no more transcripts; name another context_id"
            raise BadMessage(advice, context=request.context_id, cancels=True)
        return []

    def _open(self, request: _Request) -> m.Open:
        voice, delay = request.voice, request.max_buffer_delay_ms
        name = voice.id if isinstance(voice, _Voice) else voice
        return m.Open(
            context=request.context_id,
            voice=find_voice(self._voices, name) or self._voices[0],
            encoding=_ENCODINGS[request.output_format.encoding],
            sample_rate=request.output_format.sample_rate,
            segment=m.Segmentation(max_delay_ms=UNSET if delay is None else delay),
            words=bool(request.add_timestamps),
        )

    def send(self, message: m.ServerMessage) -> Sequence[str]:
        """See `Translator`."""
        match message:
            case m.Audio(context=id_):
                data = base64.b64encode(message.pcm).decode()
                return (_event("chunk", id_, 206, data=data, step_time=0.0),)
            case m.Words(context=id_):
                return (_event("timestamps", id_, 206, word_timestamps=_times(message.words)),)
            case m.Flushed(context=id_):
                return (_event("flush_done", id_, 206, flush_id=message.id, flush_done=True),)
            case m.Done(context=id_):
                self._live.pop(id_, None)
                return (_event("done", id_, 200, done=True),)
            case m.Cancelled(context=id_):
                self._live.pop(id_, None)
                return ()
            case m.Error(context=id_, code=code):
                self._live.pop(id_ or "", None)
                return (self._error(id_, code, message.message),)
            case m.Warn(context=id_, code="bad_message" as code):
                return (self._error(id_, code, message.message),)
            case m.Warn(context=id_, code="context_idle") if id_ in self._live:
                self._live[id_].complete = True
                return ()
            case _:
                return ()

    def _error(self, id_: str | None, code: str, message: str) -> str:
        status = _STATUS.get(code, 500)
        return _event("error", id_ or self._latest, status, **_fault(code, message))


def _decoded(frame: str | bytes, kind: type[_T]) -> _T | None:
    try:
        if isinstance(frame, str):
            return msgspec.json.decode(without_halves(frame), type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    return None


def _problem(request: _Request) -> str:
    """What does not fit in a message that decodes; nothing if all does."""
    if request.cancel:
        return ""
    if request.transcript is None:
        return "send a transcript, or cancel"
    if request.output_format.container != "raw":
        return "the only container is raw"
    if request.output_format.encoding not in _ENCODINGS:
        return f"use one of the encodings {', '.join(_ENCODINGS)}"
    if request.generation_config and request.generation_config.speed not in (None, 1.0):
        return "the only speed is 1.0"
    return ""


def _times(words: Sequence[m.Word]) -> dict[str, list[Any]]:
    return {
        "words": [word.text for word in words],
        "start": [round(word.start_ms / 1000, 4) for word in words],
        "end": [round(word.end_ms / 1000, 4) for word in words],
    }


def _event(kind: str, context: str, status: int, **fields: Any) -> str:
    common = {"type": kind, "context_id": context, "status_code": status, "done": False}
    return msgspec.json.encode(common | fields).decode()


def _fault(code: str, message: str) -> dict[str, Any]:
    return {"title": code.replace("_", " ").capitalize(), "message": message, "error_code": code}


def _refusal(status: int, reason: str, advice: str) -> bytes:
    return msgspec.json.encode({"status_code": status, **_fault(reason, advice)}) + b"\n"


def _open(opening: Opening) -> _Speech:
    return _Speech(opening.voices)


SURFACES: Final = (Surface("cartesia", (PATH,), _open, refusal=_refusal),)
