"""Deepgram's own SDK."""

import contextlib
from typing import Any

from deepgram import AsyncDeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Text
from websockets.exceptions import ConnectionClosed

from tests.clients.acting import HEARD_BEFORE_LEAVING, Failed, Opening, Turn, act

SAMPLE_RATE = 24_000


class DeepgramSpeaker:
    """One connection for all turns; a new one if it was closed, and `patient` says so."""

    def __init__(self, server: Opening) -> None:
        environment = DeepgramClientEnvironment(
            base=server.http, production=server.ws, agent="", agent_rest=""
        )
        self._client = AsyncDeepgramClient(api_key=server.key, environment=environment)
        self._server = server
        self._stack = contextlib.AsyncExitStack()
        self._connection: Any = None

    async def say(self, text: str) -> Turn:
        """See `Speaker`."""
        try:
            return await self._turn(text, float("inf"))
        except ConnectionClosed as error:
            if not self._server.patient:
                raise Failed(type(error).__name__) from error
        await self.close()
        return await self._turn(text, float("inf"))

    async def interrupt(self, text: str) -> Turn:
        """See `Speaker`."""
        turn = await self._turn(text, HEARD_BEFORE_LEAVING)
        await self._connection.send_clear()
        while getattr(await self._connection.recv(), "type", "") != "Cleared":
            pass
        return turn

    async def close(self) -> None:
        """See `Speaker`."""
        self._connection = None
        await self._stack.aclose()

    async def _turn(self, text: str, seconds: float) -> Turn:
        if self._connection is None:
            connecting = self._client.speak.v1.connect(
                model=self._server.voice, encoding="linear16", sample_rate=str(SAMPLE_RATE)
            )
            try:
                self._connection = await self._stack.enter_async_context(connecting)
            except ApiError as error:
                raise Failed(type(error).__name__, status=error.status_code) from error
        for word in text.split():
            await self._connection.send_text(SpeakV1Text(text=f"{word} "))
        await self._connection.send_flush()
        pcm, failure = b"", ""
        while len(pcm) < seconds * SAMPLE_RATE * 2:
            event = await self._connection.recv()
            if isinstance(event, bytes):
                pcm += event
            elif event.type == "Flushed":
                break
            elif event.type == "Error":  # the flush is answered all the same
                failure = event.err_code
        if failure:
            raise Failed(failure)
        return Turn(pcm, SAMPLE_RATE)


async def open_speaker(server: Opening) -> DeepgramSpeaker:
    """For `act`."""
    return DeepgramSpeaker(server)


if __name__ == "__main__":
    act(open_speaker)
