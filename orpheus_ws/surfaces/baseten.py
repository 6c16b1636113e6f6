"""Baseten's Orpheus deployments: a socket is one turn, and closing it ends the turn.

Rule: the first text frame is a JSON object of options, every other one a fragment of text, and
`__END__` the end. What goes back is PCM, 16 bits at 24 kHz, and nothing else: clients have no eyes for
anything but the close. So whatever fails closes the socket; before any audio, clients try again.

Two kinds of clients exist. Voice agents send fragments of a language model's, with white space in
them; Baseten's own sends bare words. Fragments are held until it is known which one it is.

Over HTTP the same options come with the whole text in `prompt`, and the same PCM goes back.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, Unworkable
from orpheus_ws.surfaces import (
    HTTP_LEAD_MS,
    PCM_TYPE,
    HangUp,
    HttpSurface,
    Opening,
    Surface,
    find_voice,
)

PATHS: Final = ("/v1/baseten/websocket",)
HTTP_PATHS: Final = ("/v1/baseten/predict",)
END: Final = "__END__"
_CONTEXT: Final = "turn"

MAX_HELD: Final = 10
"""Fragments. Baseten's server waits for as many words before it speaks, or for `buffer_size`."""
_SPACE: Final = re.compile(r"\s")
_JOINS_LEFT: Final = re.compile(r"[.,;:!?…]+|['’](?:s|t|m|d|re|ll|ve)")
"""Fragments that belong to the word before them."""

_Number = TypeVar("_Number", int, float)


class _Options(msgspec.Struct):
    """The first frame. What it has besides is of no interest."""

    voice: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    buffer_size: Annotated[int, Meta(ge=1)] | None = None


class _Request(_Options, kw_only=True):
    """The body of a request over HTTP."""

    prompt: str


class _Joiner:
    """Fragments as one text: as they are, or with spaces between if they are bare words.

    Which one is decided at the first white space, or else when `most` fragments are held.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: list[str] = []
        self._decided = False
        self._words = False
        self._begun = False

    def feed(self, fragment: str) -> str:
        """The text that is certain by now."""
        if self._decided:
            return self._join(fragment)
        self._held += filter(None, (fragment,))
        if _SPACE.search(fragment):
            return self._decide(words=False)
        return self._decide(words=True) if len(self._held) >= self._most else ""

    def finish(self) -> str:
        """The rest."""
        return "" if self._decided else self._decide(words=True)

    def _decide(self, *, words: bool) -> str:
        self._decided, self._words = True, words
        return "".join(map(self._join, self._held))

    def _join(self, fragment: str) -> str:
        if not self._words or not fragment:
            return fragment
        space = " " if self._begun and not _JOINS_LEFT.fullmatch(fragment) else ""
        self._begun = True
        return space + fragment


class _Turn:
    """See `Translator`."""

    def __init__(self, voices: tuple[str, ...]) -> None:
        self._voices = voices
        self._joiner: _Joiner | None = None
        self._ended = False

    def receive(self, frame: str | bytes) -> Sequence[m.ClientMessage]:
        """See `Translator`."""
        if self._ended:
            return ()
        if self._joiner is None:
            options = _decode(frame)
            self._joiner = _Joiner(min(options.buffer_size or MAX_HELD, MAX_HELD))
            return (self._config(options),)
        if not isinstance(frame, str):
            raise Unworkable("send text in text frames")
        if frame != END:
            return _text(self._joiner.feed(frame))
        self._ended = True
        return (*_text(self._joiner.finish()), m.End(context=_CONTEXT), m.Close())

    def _config(self, options: _Options) -> m.Config:
        return m.Config(voice=_voice(self._voices, options), sampling=_sampling(options))

    def send(self, message: m.ServerMessage) -> Sequence[str | bytes | HangUp]:
        """See `Translator`."""
        match message:
            case m.Audio():
                return (message.pcm,)
            case m.Error():
                return (HangUp(1011 if message.retryable else 1008, message.code),)
            case _:
                return ()


class _Answer:
    """See `Reply`."""

    media_type = PCM_TYPE

    def __init__(self, voices: tuple[str, ...], request: _Request) -> None:
        opening = m.Open(
            context=_CONTEXT,
            voice=_voice(voices, request),
            sampling=_sampling(request),
            lead_ms=HTTP_LEAD_MS,
        )
        text = m.Text(context=_CONTEXT, text=request.prompt)
        self.messages = (opening, text, m.End(context=_CONTEXT), m.Close())

    def send(self, message: m.ServerMessage) -> Sequence[bytes]:
        """See `Reply`."""
        match message:
            case m.Audio():
                return (message.pcm,)
            case _:
                return ()


def _voice(voices: tuple[str, ...], options: _Options) -> str:
    return find_voice(voices, options.voice) or voices[0]


def _sampling(options: _Options) -> m.Sampling:
    """Nobody reads what is wrong with a number, so it becomes the nearest that is possible."""
    return m.Sampling(
        temperature=_within(options.temperature, 0.0, 2.0),
        top_p=_within(options.top_p, 0.0, 1.0),
        repetition_penalty=_within(options.repetition_penalty, 1.0, 2.0),
        max_tokens=_within(options.max_tokens, 7, 4096),
    )


def _within(number: _Number | None, low: _Number, high: _Number) -> _Number | UnsetType:
    return UNSET if number is None else min(max(number, low), high)


def _text(text: str) -> tuple[m.Text, ...]:
    return (m.Text(context=_CONTEXT, text=text),) if text else ()


def _decode(frame: str | bytes) -> _Options:
    try:
        return msgspec.json.decode(frame, type=_Options)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise Unworkable('begin with a JSON object such as {"voice": "tara"}') from None


def _open(opening: Opening) -> _Turn:
    return _Turn(opening.voices)


def _answer(opening: Opening, body: bytes) -> _Answer:
    try:
        return _Answer(opening.voices, msgspec.json.decode(body, type=_Request))
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise BadMessage(
            'send a JSON object such as {"prompt": "Hello.", "voice": "tara"}'
        ) from None


SURFACES: Final = (Surface("baseten", PATHS, _open),)
HTTP_SURFACES: Final = (HttpSurface("baseten_http", HTTP_PATHS, _answer),)
