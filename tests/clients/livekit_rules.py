"""Our plugin for LiveKit Agents, watched for what LiveKit expects of any.

Rule: it does things and says what it saw; `tests/slow/test_plugins.py` knows what is right.

    python -m tests.clients.livekit_rules URL URL_OF_ONE_WHOSE_ENGINE_STALLS URL_OVER_TLS ITS_AUTHORITY
"""

import asyncio
import json
import ssl
import sys
from collections.abc import Iterable
from typing import Any

from livekit.agents import APIConnectOptions, APIError
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT

from orpheus_ws.integrations.livekit import TTS

TEXT = "It was cold. We went home."
HASTY = APIConnectOptions(max_retry=3, retry_interval=0.01, timeout=0.3)
LESS_HASTY = APIConnectOptions(max_retry=3, retry_interval=0.01, timeout=5.0)
"""For what is given up only once some of it was heard, however busy the machine is before that."""


class Watched:
    """A TTS and the events that it sends."""

    def __init__(self, url: str, **options: Any) -> None:
        self.tts = TTS(url, **options)
        self._metrics: list[Any] = []
        self._errors: list[Any] = []
        self.tts.on("metrics_collected", self._metrics.append)
        self.tts.on("error", self._errors.append)

    async def stream(self, pieces: Iterable[str], *, leave: bool = False, **options: Any) -> Any:
        """A turn that is written piece by piece."""
        stream = self.tts.stream(**options)
        for piece in pieces:
            stream.push_text(piece)
        stream.end_input()
        return await self._collect(stream, leave)

    async def whole(self, text: str, **options: Any) -> Any:
        """A turn that is all there."""
        return await self._collect(self.tts.synthesize(text, **options), leave=False)

    async def _collect(self, stream: Any, leave: bool) -> dict[str, Any]:
        self._metrics.clear()
        self._errors.clear()
        events, raised = [], None
        try:
            async with stream:
                async for event in stream:
                    events.append(event)
                    if leave:
                        break
        except APIError as error:
            raised = type(error).__name__
        timed = [
            word
            for event in events
            for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, ())
        ]
        return {
            "seconds": sum(event.frame.duration for event in events),
            "durations": [event.frame.duration for event in events],
            "rates": sorted({event.frame.sample_rate for event in events}),
            "finals": [event.is_final for event in events],
            "requests": [event.request_id for event in events],
            "segments": sorted({event.segment_id for event in events}),
            "words": "".join(timed),
            "times": [(word.start_time, word.end_time) for word in timed],
            "metrics": [metric.model_dump(mode="json") for metric in self._metrics],
            "errors": [error.recoverable for error in self._errors],
            "raised": raised,
        }


async def secure(url: str, authority: str) -> dict[str, Any]:
    """A turn over TLS by who knows the authority, and by who does not."""
    knowing = Watched(url, ssl_context=ssl.create_default_context(cafile=authority))
    stranger = Watched(url)
    turns = [await each.whole(TEXT) for each in (knowing, stranger)]
    await asyncio.gather(knowing.tts.aclose(), stranger.tts.aclose())
    return dict(zip(("known", "unknown"), turns, strict=True))


async def watch(url: str, stalling: str, over_tls: str, authority: str) -> dict[str, Any]:
    """What there is to see."""
    seen = {}
    words = [f" {word}" if position else word for position, word in enumerate(TEXT.split())]
    usual = Watched(url)
    usual.tts.prewarm()
    for name, turn in (
        ("first", usual.stream(words)),
        ("second", usual.stream(words)),
        ("left", usual.stream(words * 10, leave=True)),
        ("after_leaving", usual.stream(words)),
        ("empty", usual.stream(())),
        ("blank", usual.stream((" ", "\n"))),
        ("silent_stream", usual.stream(("🙂", "!"))),
        ("silent_whole", usual.whole("🙂")),
        ("whole", usual.whole(TEXT)),
    ):
        seen[name] = await turn
    both = await asyncio.gather(usual.tts.synthesize(TEXT).collect(), usual.stream(words))
    seen["at_once"] = {"whole": both[0].duration, "stream": both[1]["seconds"]}
    await usual.tts.aclose()
    telephone = Watched(url, sample_rate=8000, word_timestamps=False)
    seen["telephone"] = await telephone.stream(words)
    await telephone.tts.aclose()
    stalled = Watched(stalling)
    seen["stalling"] = await stalled.stream(words, conn_options=LESS_HASTY)
    seen["stalling_whole"] = await stalled.whole(TEXT, conn_options=HASTY)
    await stalled.tts.aclose()
    seen |= await secure(over_tls, authority)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as mute:
        port = mute.sockets[0].getsockname()[1]
        deaf = Watched(f"ws://127.0.0.1:{port}/v1/tts")
        seen["no_server"] = await deaf.stream(words, conn_options=HASTY)
        await deaf.tts.aclose()
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(watch(*sys.argv[1:]))))
