"""A long text into one WAV file: `python -m docs.examples.book book.txt book.wav`.

A stream is spoken little faster than it is heard, so a long text is cut into parts, between
paragraphs or else between sentences, and several are spoken at once, each on a socket of its own. No
part is generated in one go either: the server speaks sentence by sentence.
"""

import asyncio
import re
import sys
import wave
from pathlib import Path
from typing import NamedTuple

from orpheus_ws.client import Audio, connect
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


async def speak(url: str, text: str, *, streams: int = 4, part_chars: int = PART_CHARS) -> Spoken:
    """Speak a text of any length, `streams` parts at once."""
    free = asyncio.Semaphore(streams)

    async def part(words: str) -> Spoken:
        async with free, connect(url, patience=60) as client:
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
    spoken = asyncio.run(speak(url, Path(source).read_text(encoding="utf-8")))
    with wave.open(target, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(spoken.pcm)
    print(f"{target}: {len(spoken.pcm) / 2 / RATE:.0f} s, {len(spoken.segments)} segments")


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit("usage: python -m docs.examples.book book.txt book.wav [URL]")
    main(*sys.argv[1:])
