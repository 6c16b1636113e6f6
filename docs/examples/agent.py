"""An agent that answers, and stops when the user speaks: `python -m docs.examples.agent`.

`heard` is what your speech recogniser puts out, `play` hands sound to your player and returns once
little of it waits there, `answer` is your language model.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from orpheus_ws.client import Cancelled, connect


async def answer(words: str) -> AsyncIterator[str]:
    """Stands for a language model, which writes word by word."""
    for word in f"You said: {words} I could talk about that for a long time. Shall I?".split():
        yield word + " "


async def converse(
    url: str, heard: "asyncio.Queue[str]", play: Callable[[bytes], Awaitable[None]]
) -> list[str]:
    """Answer whatever is heard until that is nothing; what the user did not hear of the answers."""
    unheard = []
    async with connect(url) as client:
        while words := await heard.get():
            utterance = client.speak(answer(words))
            async for chunk in utterance:  # 24 kHz, mono, 16-bit
                await play(chunk.pcm)
                if not heard.empty():  # barge-in
                    await utterance.cancel(played_ms=(chunk.offset + len(chunk.pcm) // 2) / 24)
            if isinstance(utterance.result, Cancelled):
                unheard.append(utterance.result.text_remaining or "")
    return unheard


async def main(url: str = "ws://127.0.0.1:8765/v1/tts") -> None:
    """A user who asks, interrupts the answer after a second, and leaves two seconds later."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    heard.put_nowait("How is the weather?")
    played = 0

    async def play(pcm: bytes) -> None:
        nonlocal played
        before, played = played, played + len(pcm)
        for second, words in ((1, "Never mind."), (3, "")):
            if before < second * 48_000 <= played:
                heard.put_nowait(words)

    for text in await converse(url, heard, play):
        print("not heard:", text)


if __name__ == "__main__":
    from docs.examples import run

    run("agent", lambda *given: asyncio.run(main(*given)), "[URL]")
