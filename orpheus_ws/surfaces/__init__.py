"""Protocols of others ⇄ our messages: one file per protocol, found by looking.

Rule: pure. A surface says where it is and gives every socket a translator of its own, which turns
frames into our messages and our messages into frames and may remember what it has seen. What happens
between is the same for all: session, speech, pace, metrics, admission, drain and eviction know no
surface. A module of this package lists its surfaces in `SURFACES`, and in `HTTP_SURFACES` those that
take a request instead of a socket: all text at once, and the answer is its speech.

How protocols map: what keeps a socket alive becomes `ping`, and what answers it `pong`; what asks for
the speech of what is buffered `flush` and `flushed`; the end of a turn `end`, and `close` where it
ends the socket as well; an interruption `cancel`. A voice of theirs becomes one of ours; one that
nobody knows is an error where clients expect one, or else the default.
"""

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote

from orpheus_ws.context import Silence
from orpheus_ws.messages import ClientMessage, ServerMessage

PCM_TYPE: Final = "audio/pcm"
HTTP_LEAD_MS: Final = 10_000
"""How far a response runs ahead of its listener: the most that the native protocol has. A sentence comes
as fast as it is spoken; of a book that is left, little was for nobody."""


class HangUp(NamedTuple):
    """Among the frames of a translator: the socket is to be closed once they are sent.

    For protocols in which a failure ends the socket. What is still open on it is cut off.
    """

    code: int
    reason: str


class Translator(Protocol):
    """One socket's protocol. Frames are text or binary, as in WebSockets."""

    def receive(self, frame: str | bytes) -> Sequence[ClientMessage]:
        """What a frame means, which may be nothing. Raises `BadMessage`.

        The socket stays open then, unless the error has a close code. The session answers it with
        an `error`, which comes back through `send`.
        """
        ...

    def send(self, message: ServerMessage) -> Sequence[str | bytes | HangUp]:
        """What to send for a message, which may be nothing. Never raises.

        Called in the order in which frames leave. The first message is `ready`.
        """
        ...


class Opening(NamedTuple):
    """What is known of a socket before it is accepted, or of a request without its body."""

    parameters: Mapping[str, str]
    """What stands in the path for the names of the route, decoded."""
    query: Mapping[str, str]
    """The first value of each name, in lower case; never a token."""
    headers: Mapping[str, str]
    """The same of headers; never a key."""
    subprotocol: str | None
    """The one that was agreed on."""
    voices: tuple[str, ...]
    """What the engine offers; the first is the default."""


def our_refusal(_status: int, reason: str, advice: str) -> bytes:
    """A refusal as the native protocol has it."""
    return json.dumps({"error": reason, "message": advice}).encode() + b"\n"


class Surface(NamedTuple):
    """A protocol, and where it is spoken."""

    name: str
    """As the label `surface` of metrics has it."""
    paths: tuple[str, ...]
    """Routes. `{name}` stands for one part of a path."""
    open: Callable[[Opening], Translator]
    """Make a socket's translator. An `OrpheusError` refuses the socket with 400."""
    subprotocols: tuple[str, ...] = ()
    """Names in `Sec-WebSocket-Protocol`. None: whatever a client offers is not answered."""
    refusal: Callable[[int, str, str], bytes] = our_refusal
    """The JSON body of a refusal before the upgrade: from its HTTP status, our word for the reason
    and what to do."""
    silence: Silence = Silence.OF_TEXT


class Reply(Protocol):
    """What is answered to one request."""

    @property
    def media_type(self) -> str:
        """What `send` makes."""
        ...

    @property
    def messages(self) -> Sequence[ClientMessage]:
        """What the request means: one context from its `open` to its `end`, and `close`."""
        ...

    def send(self, message: ServerMessage) -> Sequence[bytes]:
        """The part of the body that a message is, which may be nothing. Never raises.

        Called in the order of the body, and for an `error` only when it comes after audio.
        """
        ...


class HttpSurface(NamedTuple):
    """A protocol in which a POST is answered with speech, and where that is.

    A request is always a turn, so where nothing can be heard the answer is `Silence.ALWAYS`.
    """

    name: str
    """As the label `surface` of metrics has it."""
    paths: tuple[str, ...]
    """Routes, as those of sockets."""
    open: Callable[[Opening, bytes], Reply]
    """Understand a request's body. An `OrpheusError` refuses it with 400."""
    refusal: Callable[[int, str, str], bytes] = our_refusal
    """The JSON body of a refusal, and of an error before any audio: see `Surface`."""
    pages: Mapping[str, Callable[[tuple[str, ...]], bytes]] = {}
    """What may be asked with GET, by path: JSON, made from the voices."""


def surfaces() -> tuple[Surface, ...]:
    """All that are spoken on a socket."""
    return tuple(surface for module in _modules() for surface in getattr(module, "SURFACES", ()))


def http_surfaces() -> tuple[HttpSurface, ...]:
    """All that are asked over HTTP."""
    return tuple(
        surface for module in _modules() for surface in getattr(module, "HTTP_SURFACES", ())
    )


def _modules() -> Iterator[ModuleType]:
    for module in pkgutil.iter_modules(__path__):
        yield importlib.import_module(f"{__name__}.{module.name}")


def find_voice(voices: Sequence[str], name: str | None) -> str | None:
    """The voice that is meant by a name, in whatever case; None if there is no such voice."""
    wanted = (name or "").strip().lower()
    return next((voice for voice in voices if voice.lower() == wanted), None)


class Routes:
    """Which surface is at a path."""

    def __init__(self, surfaces: Iterable[Surface]) -> None:
        self._routes: Final = [
            (path.split("/"), surface) for surface in surfaces for path in surface.paths
        ]

    @property
    def names(self) -> list[str]:
        """Names of the surfaces, each once."""
        return list(dict.fromkeys(surface.name for _, surface in self._routes))

    def find(self, path: str) -> tuple[Surface, dict[str, str]] | None:
        """The surface at a path without its query, and the parameters in it; None: there is none."""
        asked = path.split("/")
        for parts, surface in self._routes:
            parameters = _match(parts, asked)
            if parameters is not None:
                return surface, parameters
        return None


def _match(parts: Sequence[str], asked: Sequence[str]) -> dict[str, str] | None:
    if len(parts) != len(asked):
        return None
    parameters: dict[str, str] = {}
    for part, given in zip(parts, asked, strict=True):
        if part.startswith("{"):
            if not given:
                return None
            parameters[part.strip("{}")] = unquote(given)
        elif part != given:
            return None
    return parameters
