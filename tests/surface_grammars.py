"""What a surface may say, and in what order: one grammar for each protocol of others.

Rule: a grammar hears what the client sends and what it gets, knows nothing of how the server does it, and
raises `AssertionError` at the first frame that is not of its protocol or comes when it may not.
"""

import base64
import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

from orpheus_ws.surfaces import HangUp

SECRET: Final = "marmalade"
"""What users say in tests; nothing but what says it aloud may repeat it."""


class Grammar(ABC):
    """Of one socket."""

    fence: ClassVar[str]
    """What is answered once all before it was read, or ends the socket then."""

    def passed(self, _frame: str | bytes) -> bool:
        """Whether this answers the only fence there is. It was `got` already."""
        return False

    def sent(self, frame: str | bytes) -> None:  # noqa: B027 - some have nothing to remember
        """The client has sent this, and the server has taken it for what it is."""

    @abstractmethod
    def got(self, frame: str | bytes | HangUp) -> None:
        """The server has sent this."""

    @abstractmethod
    def at_rest(self) -> None:
        """Nothing more will come: what was to end has ended."""


def fields(frame: str | bytes) -> dict[str, Any]:
    """A frame's object; nothing if it is none."""
    try:
        found = json.loads(frame)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class Baseten(Grammar):
    """PCM, and nothing else."""

    fence = "__END__"
    _over = False

    def got(self, frame: str | bytes | HangUp) -> None:
        """See `Grammar`."""
        assert not self._over
        if isinstance(frame, HangUp):
            assert frame.code in (1008, 1011)
            self._over = True
        else:
            assert isinstance(frame, bytes)
            assert frame
            assert len(frame) % 2 == 0

    def at_rest(self) -> None:
        """See `Grammar`."""


class VllmOmni(Grammar):
    """Utterances; each has sentences from start to end, and one end."""

    fence = '{"type": "voice.list"}'

    def passed(self, frame: str | bytes) -> bool:
        """See `Grammar`."""
        return fields(frame).get("type") == "voice.list"

    def __init__(self) -> None:
        self._done = 0
        self._over: set[int] = set()
        self._sentence: tuple[int, int] | None = None
        self._bytes = 0

    def sent(self, frame: str | bytes) -> None:
        """See `Grammar`."""
        self._done += fields(frame).get("type") == "input.done"

    def got(self, frame: str | bytes | HangUp) -> None:
        """See `Grammar`."""
        assert not isinstance(frame, HangUp)
        if isinstance(frame, bytes):
            assert self._sentence is not None
            self._bytes += len(frame)
            return
        event = json.loads(frame)
        place = (event.get("utterance_index", -1), event.get("sentence_index", -1))
        match event["type"]:
            case "audio.start":
                assert self._sentence is None
                self._sentence, self._bytes = place, 0
            case "audio.chunk":
                assert place == self._sentence
                assert base64.b64decode(event["audio_b64"]) or event["timestamps"] is not None
            case "audio.done":
                assert place == self._sentence
                self._sentence = None
            case "session.done":
                # Those that there was no room for are over before those that wait, or that are heard just now.
                assert self._sentence is None or self._sentence[0] < place[0]
                assert place[0] not in self._over
                self._over.add(place[0])
                assert place[0] < self._done
            case "error":
                assert SECRET not in frame
            case kind:
                assert kind == "voice.list"

    def at_rest(self) -> None:
        """See `Grammar`."""
        assert len(self._over) == self._done
        assert self._sentence is None


class Cartesia(Grammar):
    """Contexts, each with one end; of what was cancelled nothing more is heard."""

    fence = '{"context_id": "fence"}'

    def passed(self, frame: str | bytes) -> bool:
        """See `Grammar`."""
        return fields(frame).get("context_id") == "fence"

    def __init__(self) -> None:
        self._live: dict[str, bool] = {}
        """Whether it was completed."""

    def sent(self, frame: str | bytes) -> None:
        """See `Grammar`."""
        request = fields(frame)
        context = request.get("context_id")
        if not isinstance(frame, str) or not isinstance(context, str):
            return
        if request.get("cancel"):
            self._live.pop(context, None)
        elif request.get("transcript") is not None:
            complete = self._live.get(context, False) or not request.get("continue")
            self._live[context] = complete

    def got(self, frame: str | bytes | HangUp) -> None:
        """See `Grammar`."""
        assert isinstance(frame, str)
        event = json.loads(frame)
        context, kind = event["context_id"], event["type"]
        assert event["done"] is (kind == "done")
        match kind:
            case "error":
                assert {"title", "message", "error_code", "status_code"} <= set(event)
                assert SECRET not in event["message"]
                self._live.pop(context, None)
            case "done":
                del self._live[context]  # complete, or ended because another one waited
            case "chunk":
                assert context in self._live
                assert base64.b64decode(event["data"])
            case _:
                assert kind in ("timestamps", "flush_done")
                assert context in self._live

    def at_rest(self) -> None:
        """See `Grammar`."""
        assert not any(self._live.values())


class Deepgram(Grammar):
    """PCM, and answers that are numbered."""

    fence = '{"type": "Clear"}'

    def passed(self, frame: str | bytes) -> bool:
        """See `Grammar`."""
        return self._clears == 0 and fields(frame).get("type") == "Cleared"

    def __init__(self) -> None:
        self._flushes = 0
        self._late = 0
        """Flushes before a clear, which the server may have answered before it saw that."""
        self._clears = 0
        self._answers = 0

    def sent(self, frame: str | bytes) -> None:
        """See `Grammar`."""
        kind = fields(frame).get("type")
        self._flushes += kind == "Flush"
        if kind == "Clear":
            self._late, self._flushes = self._late + self._flushes, 0
            self._clears += 1

    def got(self, frame: str | bytes | HangUp) -> None:
        """See `Grammar`."""
        assert not isinstance(frame, HangUp)
        if isinstance(frame, bytes):
            assert frame
            return
        event = json.loads(frame)
        kind = event["type"]
        if kind in ("Flushed", "Cleared"):
            assert event["sequence_id"] == self._answers
            self._answers += 1
            if kind == "Cleared":
                self._clears -= 1
                self._late = self._late if self._clears else 0
            elif self._late:
                self._late -= 1
            else:
                self._flushes -= 1
            assert min(self._flushes, self._clears) >= 0
        else:
            assert kind in ("Metadata", "Warning", "Error")
            assert SECRET not in frame

    def at_rest(self) -> None:
        """See `Grammar`."""
        assert (self._flushes, self._clears) == (0, 0)


GRAMMARS: Final[dict[str, type[Grammar]]] = {
    "baseten": Baseten,
    "vllm_omni": VllmOmni,
    "cartesia": Cartesia,
    "deepgram": Deepgram,
}
