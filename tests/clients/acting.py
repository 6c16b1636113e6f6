"""What a client is told to do, and how it says what came of it.

Rule: one JSON object a line on standard input, and one on standard output for each. Only the standard
library is used. By hand:

    echo '{"do": "open", "ws": "ws://127.0.0.1:8765", "http": ""}
    {"do": "say", "text": "Hello there."}' | python -m tests.clients.livekit_baseten orpheus
"""

import asyncio
import base64
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

LONGEST_LINE = 1 << 20
HEARD_BEFORE_LEAVING = 0.5
"""Seconds of audio that an interrupted turn has been heard for."""


class Opening(NamedTuple):
    """A server. `open` has these fields."""

    ws: str
    """Scheme, host and port of its WebSockets, without a path."""
    http: str
    """The same of its HTTP; empty if it speaks none."""
    key: str = "none"
    voice: str = "tara"
    patient: bool = False
    """Whether to try again as the client does by itself; else what fails is told at once."""


class Turn(NamedTuple):
    """What was heard of a text."""

    pcm: bytes
    """Mono, 16-bit, little-endian."""
    sample_rate: int
    words: Sequence[tuple[str, float]] = ()
    """And when, in seconds, as far as the client tells."""
    facts: Mapping[str, Any] = {}
    """What else there is to say of it, such as the client's own metrics."""


class Failed(Exception):
    """A client says that it could not speak."""

    def __init__(
        self, kind: str, *, status: int | None = None, retryable: bool | None = None
    ) -> None:
        super().__init__(kind)
        self.kind = kind
        self.status = status
        """Of HTTP, if the client knows it."""
        self.retryable = retryable
        """Whether the client thinks that it is worth trying again, if it thinks at all."""


class Speaker(Protocol):
    """A client that is connected, or would be once it speaks. All methods may raise `Failed`."""

    async def say(self, text: str) -> Turn:
        """Speak to the end: `{"do": "say", "text": …}`."""
        ...

    async def interrupt(self, text: str) -> Turn:
        """Speak, and leave after `HEARD_BEFORE_LEAVING`, as the client's users do in a barge-in."""
        ...

    async def close(self) -> None:
        """Give everything back: `{"do": "close"}`, also done by the next `open`."""
        ...


Open = Callable[[Opening], Awaitable[Speaker]]


def act(open_speaker: Open) -> None:
    """Do what standard input says until it ends."""
    asyncio.run(_act(open_speaker))


async def _act(open_speaker: Open) -> None:
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    speaker: Speaker | None = None
    while line := await reader.readline():
        asked = json.loads(line)
        done = asked.pop("do")
        answer: dict[str, Any] = {}
        try:
            if done in ("open", "close") and speaker is not None:
                await speaker.close()
                speaker = None
            if done == "open":
                speaker = await open_speaker(Opening(**asked))
            elif done != "close":
                assert speaker is not None, "nothing is open"
                answer = _told(await getattr(speaker, done)(asked["text"]))
        except Failed as error:
            answer = {"error": error.kind, "status": error.status, "retryable": error.retryable}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    if speaker is not None:
        await speaker.close()


def _told(turn: Turn) -> dict[str, Any]:
    return {
        "pcm": base64.b64encode(turn.pcm).decode(),
        "sample_rate": turn.sample_rate,
        "words": list(turn.words),
        "facts": dict(turn.facts),
    }
