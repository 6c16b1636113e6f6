"""Cartesia's own SDK.

It has a way to connect again by itself, which gives back the connection that was closed.
"""

from typing import Any

from cartesia import AsyncCartesia
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.clients.acting import HEARD_BEFORE_LEAVING, Failed, Opening, Turn, act

SAMPLE_RATE = 24_000
FORMAT = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": SAMPLE_RATE}


class CartesiaSpeaker:
    """One connection, a context a turn; a new one if it was closed, and `patient` says so."""

    def __init__(self, server: Opening) -> None:
        self._client = AsyncCartesia(api_key=server.key, websocket_base_url=server.ws)
        self._server = server
        self._connection: Any = None

    async def say(self, text: str) -> Turn:
        """See `Speaker`."""
        try:
            return await self._turn(text, float("inf"))
        except ConnectionClosed as error:
            if not self._server.patient:
                raise Failed(type(error).__name__) from error
        self._connection = None
        return await self._turn(text, float("inf"))

    async def interrupt(self, text: str) -> Turn:
        """See `Speaker`."""
        return await self._turn(text, HEARD_BEFORE_LEAVING)

    async def close(self) -> None:
        """See `Speaker`."""
        if self._connection is not None:
            await self._connection.close()
        await self._client.close()

    async def _turn(self, text: str, seconds: float) -> Turn:
        try:
            if self._connection is None:
                self._connection = await self._client.tts.websocket_connect().enter()
            return await self._spoken(text, seconds)
        except InvalidStatus as error:
            raise Failed(type(error).__name__, status=error.response.status_code) from error

    async def _spoken(self, text: str, seconds: float) -> Turn:
        context = self._connection.context(
            model_id="sonic-3",
            voice={"mode": "id", "id": self._server.voice},
            output_format=FORMAT,
            add_timestamps=True,
        )
        for position, word in enumerate(text.split()):
            await context.push(f" {word}" if position else word)
        await context.no_more_inputs()
        pcm, words, ended = b"", [], False
        async for event in context.receive():
            if event.type == "error":
                raise Failed(event.error_code, status=event.status_code)
            if event.type == "chunk":
                pcm += event.audio
            if event.type == "timestamps":
                times = event.word_timestamps
                words += list(zip(times.words, times.start, strict=True))
            ended = event.type == "done"
            if len(pcm) >= seconds * SAMPLE_RATE * 2:
                await context.cancel()
                break
        if not ended and seconds == float("inf"):
            raise Failed("closed")
        return Turn(pcm, SAMPLE_RATE, words)


async def open_speaker(server: Opening) -> CartesiaSpeaker:
    """For `act`."""
    return CartesiaSpeaker(server)


if __name__ == "__main__":
    act(open_speaker)
