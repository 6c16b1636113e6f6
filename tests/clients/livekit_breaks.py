"""Our plugin for LiveKit Agents, used as badly as a framework may use it.

Rule: it does things and says what it saw; `tests/slow/test_plugins.py` knows what is right.

    python -m tests.clients.livekit_breaks URL URL_OF_ONE_THAT_IS_FULL
"""

import asyncio
import contextlib
import json
import sys
from typing import Any

from livekit.agents import APIConnectOptions, APIError

from orpheus_ws.integrations.livekit import TTS

TEXT = "It was cold. We went home."
STEPS = range(0, 240, 6)
"""Turns of the event loop after which a turn is cancelled: from before the first await to the end."""
ONCE = APIConnectOptions(max_retry=0, retry_interval=0.01, timeout=60.0)


async def spoken(tts: TTS) -> float:
    """A turn to its end, in seconds."""
    seconds: float = (await tts.synthesize(TEXT, conn_options=ONCE).collect()).duration
    return seconds


async def listen(tts: TTS) -> None:
    """A turn that is written piece by piece, to its end."""
    async with tts.stream(conn_options=ONCE) as stream:
        for word in TEXT.split():
            stream.push_text(f"{word} ")
        stream.end_input()
        async for _ in stream:
            pass


async def raised(speaking: "asyncio.Task[Any]") -> str | None:
    """What a turn comes to."""
    try:
        await speaking
    except APIError as error:
        return type(error).__name__
    except asyncio.CancelledError:
        return "CancelledError"
    return None


async def cancelled_everywhere(tts: TTS) -> list[str | None]:
    """What becomes of turns that are cancelled, each a little later than the last."""
    ends = []
    for steps in STEPS:
        speaking = asyncio.create_task(listen(tts))
        for _ in range(steps):
            await asyncio.sleep(0)
        speaking.cancel()
        ends.append(await raised(speaking))
    return ends


async def closed_in_the_middle(url: str) -> str | None:
    """A turn whose TTS is closed, twice, while it is spoken; and then once more."""
    tts = TTS(url)
    async with tts.stream(conn_options=ONCE) as stream:
        stream.push_text(TEXT * 20)
        with contextlib.suppress(APIError):
            await anext(aiter(stream))
        await asyncio.gather(tts.aclose(), tts.aclose())
        stream.end_input()

        async def rest() -> None:
            async for _ in stream:
                pass

        end = await raised(asyncio.create_task(rest()))
    await tts.aclose()
    return end


async def fails_in_the_middle(tts: TTS) -> tuple[str | None, bool]:
    """A turn whose writer raises once something is heard: what comes of it, and is its socket kept."""

    async def fail() -> None:
        async with tts.stream(conn_options=ONCE) as stream:
            stream.push_text(TEXT)
            await anext(aiter(stream))
            raise LookupError

    try:
        await fail()
    except LookupError as error:
        return type(error).__name__, len(tts._clients) == 1 and tts._idle is not None
    return None, False


async def warmed(url: str) -> tuple[int, float]:
    """Sockets after many prewarms at once, and a turn after that."""
    tts = TTS(url)
    for _ in range(5):
        tts.prewarm()
    seconds = await spoken(tts)
    count = len(tts._clients)
    await tts.aclose()
    return count, seconds


async def watch(url: str, full: str) -> dict[str, Any]:
    """What there is to see."""
    first, second = TTS(url), TTS(url)
    seen: dict[str, Any] = {"usual": await spoken(first)}
    seen["cancelled"] = await cancelled_everywhere(first)
    seen["failing"] = await fails_in_the_middle(first)
    seen["after"] = await spoken(first)
    seen["both"] = await asyncio.gather(spoken(first), spoken(second), spoken(second))
    seen["closed"] = await closed_in_the_middle(url)
    seen["warmed"] = await warmed(url)
    refused = TTS(full)
    seen["full"] = await raised(asyncio.create_task(listen(refused)))
    for tts in (first, second, refused):
        await tts.aclose()
    seen["tasks"] = len(asyncio.all_tasks()) - 1
    # Nobody waits for this one, and the event loop ends.
    left = TTS(url)
    left.prewarm()
    left.stream().push_text(TEXT)
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(watch(*sys.argv[1:]))))
