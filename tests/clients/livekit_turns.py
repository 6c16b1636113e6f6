"""Turns through any TTS plugin of LiveKit Agents, as its voice pipeline has them."""

from collections.abc import Callable
from typing import Any

import aiohttp
from livekit.agents import APIConnectOptions, APIError, APIStatusError
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT

from tests.clients.acting import HEARD_BEFORE_LEAVING, Failed, Open, Opening, Turn

ONCE = APIConnectOptions(max_retry=0, timeout=60.0)
PATIENT = APIConnectOptions(max_retry=20)
"""By itself it tries three times more, the last 4 s after the first; a server may take longer to start."""


class LiveKitSpeaker:
    """A plugin's TTS."""

    def __init__(
        self, session: aiohttp.ClientSession, tts: Any, options: APIConnectOptions
    ) -> None:
        self._session = session
        self._tts = tts
        self._options = options
        self._metrics: list[Any] = []
        tts.on("metrics_collected", self._metrics.append)

    async def say(self, text: str) -> Turn:
        """See `Speaker`."""
        return await self._turn(text, float("inf"))

    async def interrupt(self, text: str) -> Turn:
        """See `Speaker`: the stream is closed, which is all that LiveKit does."""
        return await self._turn(text, HEARD_BEFORE_LEAVING)

    async def close(self) -> None:
        """See `Speaker`."""
        await self._tts.aclose()
        await self._session.close()

    async def _turn(self, text: str, seconds: float) -> Turn:
        self._metrics.clear()
        frames, words = [], []
        try:
            async with self._stream(text) as stream:
                async for event in stream:
                    frames.append(event)
                    timed = event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, ())
                    words += [(str(word).strip(), word.start_time) for word in timed]
                    if sum(event.frame.duration for event in frames) >= seconds:
                        break
        except APIError as error:
            status = error.status_code if isinstance(error, APIStatusError) else None
            raise Failed(type(error).__name__, status=status, retryable=error.retryable) from error
        facts = {
            "finals": [event.is_final for event in frames].count(True),
            "last_is_final": bool(frames) and frames[-1].is_final,
            "requests": len({event.request_id for event in frames}),
            "longest_frame": max((event.frame.duration for event in frames), default=0.0),
            "metrics": [metric.model_dump(mode="json") for metric in self._metrics],
        }
        pcm = b"".join(bytes(event.frame.data) for event in frames)
        return Turn(pcm, self._tts.sample_rate, words, facts)

    def _stream(self, text: str) -> Any:
        """The text in pieces as a language model sends them, if the plugin takes pieces."""
        if not self._tts.capabilities.streaming:
            return self._tts.synthesize(text, conn_options=self._options)
        stream = self._tts.stream(conn_options=self._options)
        for position, word in enumerate(text.split()):
            stream.push_text(f" {word}" if position else word)
        stream.end_input()
        return stream


def opening(make: Callable[[Opening, aiohttp.ClientSession], Any]) -> Open:
    """For `act`: make the plugin's TTS for a server."""

    async def open_speaker(server: Opening) -> LiveKitSpeaker:
        session = aiohttp.ClientSession()
        options = PATIENT if server.patient else ONCE
        return LiveKitSpeaker(session, make(server, session), options)

    return open_speaker
