"""Deepgram's speech socket, version 1: text in JSON, PCM out in binary, and no names for anything.

Rule: what is said up to a `Flush` is a context, which the flush ends; so a socket that waits for its
next turn holds nothing. Every `Flush` is answered by `Flushed` once all before it was heard, whether
there was anything to hear or whether it failed, except for those that a `Clear` comes after: clients
would take the answer for that of what they say next. `Warning` says that something was not done,
`Error` that what is being said is lost. Voice and format are those in the address.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, UnsupportedFormat
from orpheus_ws.pcm import SAMPLE_RATES
from orpheus_ws.surfaces import Opening, Surface, find_voice
from orpheus_ws.tokens import SAMPLE_RATE
from orpheus_ws.wire.native import without_halves

PATH: Final = "/v1/speak"

_ENCODINGS: Final = {"linear16": "pcm_s16le", "mulaw": "mulaw", "alaw": "alaw"}
_NO_MODEL: Final = "00000000-0000-0000-0000-000000000000"
"""Clients of theirs want one; ours have no such number."""


class _Speak(msgspec.Struct, frozen=True, tag="Speak"):
    text: str


class _Flush(msgspec.Struct, frozen=True, tag="Flush"):
    pass


class _Clear(msgspec.Struct, frozen=True, tag="Clear"):
    pass


class _Close(msgspec.Struct, frozen=True, tag="Close"):
    pass


_Request = _Speak | _Flush | _Clear | _Close
_REQUESTS: Final[msgspec.json.Decoder[_Request]] = msgspec.json.Decoder(_Request)


class _Speech:
    """See `Translator`. `options` are those of every context."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._contexts = 0
        self._writing: str | None = None
        """The context that the next text goes to."""
        self._flushing: set[str] = set()
        """Those whose end is to be told."""
        self._answers = 0

    def receive(self, frame: str | bytes) -> Sequence[m.ClientMessage]:
        """See `Translator`."""
        match _decode(frame):
            case _Speak(text=""):
                return ()
            case _Speak(text=text):
                opened = () if self._writing else (self._open(),)
                return (*opened, m.Text(context=self._context, text=text))
            case _Flush():
                opened = () if self._writing else (self._open(),)
                context, self._writing = self._context, None
                self._flushing.add(context)
                return (*opened, m.End(context=context))
            case _Clear():
                self._writing = None
                return (m.Cancel(context=m.ALL_CONTEXTS), m.Ping(id="clear"))
            case _Close():
                return (m.Close(),)

    @property
    def _context(self) -> str:
        assert self._writing is not None
        return self._writing

    def _open(self) -> m.Open:
        self._contexts += 1
        self._writing = str(self._contexts)
        return m.Open(context=self._writing, **self._options)

    def send(self, message: m.ServerMessage) -> Sequence[str | bytes]:
        """See `Translator`."""
        match message:
            case m.Ready():
                return (self._metadata(message.session),)
            case m.Audio():
                return (message.pcm,)
            case m.Done():
                return self._over(message.context)
            case m.Cancelled():
                self._flushing.discard(message.context)
                return ()
            case m.Pong():
                return (self._answer("Cleared"),)
            case m.Warn():
                return (_problem("Warning", message),)
            case m.Error():
                return self._failed(message)
            case _:
                return ()

    def _metadata(self, session: str) -> str:
        voice = self._options["voice"]
        return _event(
            "Metadata",
            request_id=session,
            model_name=voice,
            model_version="1",
            model_uuid=_NO_MODEL,
        )

    def _over(self, context: str) -> tuple[str, ...]:
        """A context has ended; answer the `Flush` that ended it."""
        if context == self._writing:
            self._writing = None
        if context not in self._flushing:
            return ()
        self._flushing.remove(context)
        return (self._answer("Flushed"),)

    def _failed(self, error: m.Error) -> tuple[str, ...]:
        if error.context is None:
            return (_problem("Error" if error.fatal else "Warning", error),)
        return (_problem("Error", error), *self._over(error.context))

    def _answer(self, kind: str) -> str:
        self._answers += 1
        return _event(kind, sequence_id=self._answers - 1)


def _decode(frame: str | bytes) -> _Request:
    try:
        if isinstance(frame, str):
            return _REQUESTS.decode(without_halves(frame))
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    raise BadMessage('send {"type": "Speak", "text": "…"}, or the type Flush, Clear or Close')


def _problem(kind: str, message: m.Warn | m.Error) -> str:
    """Under the names that clients of theirs look for, which differ."""
    prefix = "warn" if kind == "Warning" else "err"
    told = {f"{prefix}_code": message.code, f"{prefix}_msg": message.message}
    return _event(kind, code=message.code, description=message.message, **told)


def _event(kind: str, **fields: Any) -> str:
    return msgspec.json.encode({"type": kind, **fields}).decode()


def _refusal(_status: int, reason: str, advice: str) -> bytes:
    return msgspec.json.encode({"err_code": reason, "err_msg": advice}) + b"\n"


def _open(opening: Opening) -> _Speech:
    query = opening.query
    encoding, sample_rate = _format(query)
    if query.get("speed", "1") not in ("1", "1.0"):
        raise BadMessage("the only speed is 1.0")
    voice = find_voice(opening.voices, query.get("model")) or opening.voices[0]
    return _Speech({"voice": voice, "encoding": encoding, "sample_rate": sample_rate})


def _format(query: Mapping[str, str]) -> tuple[str, int]:
    """Our encoding and the rate that are asked for. Raises `UnsupportedFormat`."""
    encoding = _ENCODINGS.get(query.get("encoding", "linear16"))
    if encoding is None:
        raise UnsupportedFormat(f"use one of the encodings {', '.join(_ENCODINGS)}")
    if query.get("container", "none") != "none":
        raise UnsupportedFormat("the only container is none")
    rates = {str(rate): rate for rate in SAMPLE_RATES}
    sample_rate = rates.get(query.get("sample_rate", str(SAMPLE_RATE)))
    if sample_rate is None:
        raise UnsupportedFormat(f"use one of the sample rates {', '.join(rates)}")
    return encoding, sample_rate


SURFACES: Final = (Surface("deepgram", (PATH,), _open, refusal=_refusal),)
