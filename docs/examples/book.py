"""A long text into one WAV file: `python -m docs.examples.book book.txt book.wav`.

A stream is spoken little faster than it is heard, so a long text is cut into parts, between
paragraphs or else between sentences, and several are spoken at once, each on a socket of its own. No
part is generated in one go either: the server speaks sentence by sentence.
"""

import asyncio
import re
import wave
from pathlib import Path
from typing import NamedTuple

from orpheus_ws.client import Audio, Backoff, connect
from orpheus_ws.errors import ClientError, Refused
from orpheus_ws.messages import Segment

RATE = 24_000
PART_CHARS = 1000
"""About a minute of speech."""
PAUSE = bytes(2 * RATE // 4)
"""A quarter of a second between parts."""


class Spoken(NamedTuple):
    """Sound of 16-bit samples, and the segments it was made of."""

    pcm: bytes
    segments: list[tuple[int, str]]
    """Where each begins, in samples, and what it says."""


def parts(text: str, most: int) -> list[str]:
    """The text in parts of at most so many characters, unless a sentence is longer."""
    found = [""]
    for piece in re.findall(r"\S.*?(?:[.!?…]+[\"”’)]*(?=\s)|\n\s*\n|\Z)", text, re.DOTALL):
        if found[-1] and len(found[-1]) + len(piece) > most:
            found.append("")
        found[-1] += piece.strip() + " "
    return [part for part in found if part]


def full(error: ClientError, _seconds: float) -> None:
    """A server that is full has room in a moment; one that is not there is better known at once."""
    if not isinstance(error, Refused):
        raise error


async def speak(url: str, text: str, *, streams: int = 4, part_chars: int = PART_CHARS) -> Spoken:
    """Speak a text of any length, `streams` parts at once."""
    free = asyncio.Semaphore(streams)

    async def part(words: str) -> Spoken:
        async with free, connect(url, patience=60, backoff=Backoff(waiting=full)) as client:
            pcm, segments = bytearray(), []
            # Nobody listens yet: the server may run ahead as far as it does for anybody.
            async for event in client.speak(words, lead_ms=10_000).events():
                if isinstance(event, Audio):
                    pcm += event.pcm
                elif isinstance(event, Segment):
                    segments.append((event.offset, event.text))
            return Spoken(bytes(pcm), segments)

    async with asyncio.TaskGroup() as tasks:
        speaking = [tasks.create_task(part(words)) for words in parts(text, part_chars)]
    return joined([task.result() for task in speaking])


def joined(spoken: list[Spoken]) -> Spoken:
    """One after the other, with a pause between them."""
    pcm, segments = bytearray(), []
    for each in spoken:
        pcm += PAUSE if pcm else b""
        segments += [(len(pcm) // 2 + begin, text) for begin, text in each.segments]
        pcm += each.pcm
    return Spoken(bytes(pcm), segments)


def main(source: str, target: str, url: str = "ws://127.0.0.1:8765/v1/tts") -> None:
    """Read a text file, write a WAV file."""
    try:
        text = Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ClientError(f"{source} is no text in UTF-8") from error
    if not text.strip():
        raise ClientError(f"there is nothing to say in {source}")
    with Path(target).open("ab"):
        pass  # what cannot be written is better known now than in an hour
    spoken = asyncio.run(speak(url, text))
    with wave.open(target, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(spoken.pcm)
    print(f"{target}: {len(spoken.pcm) / 2 / RATE:.0f} s, {len(spoken.segments)} segments")


if __name__ == "__main__":
    from docs.examples import run

    run("book", main, "book.txt book.wav [URL]")
