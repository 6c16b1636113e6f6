"""OpenAI's own SDK."""

from openai import DEFAULT_MAX_RETRIES, APIConnectionError, APIStatusError, AsyncOpenAI

from tests.clients.acting import HEARD_BEFORE_LEAVING, Failed, Opening, Turn, act

SAMPLE_RATE = 24_000
WHOLE_SAMPLE = 2


class OpenAISpeaker:
    """A client with its pool of connections."""

    def __init__(self, server: Opening) -> None:
        self._client = AsyncOpenAI(
            api_key=server.key,
            base_url=f"{server.http}/v1",
            max_retries=DEFAULT_MAX_RETRIES if server.patient else 0,
        )
        self._voice = server.voice

    async def say(self, text: str) -> Turn:
        """See `Speaker`."""
        return await self._turn(text, float("inf"))

    async def interrupt(self, text: str) -> Turn:
        """See `Speaker`: the response is closed."""
        return await self._turn(text, HEARD_BEFORE_LEAVING)

    async def close(self) -> None:
        """See `Speaker`."""
        await self._client.close()

    async def _turn(self, text: str, seconds: float) -> Turn:
        speech = self._client.audio.speech.with_streaming_response.create(
            model="tts-1", voice=self._voice, input=text, response_format="pcm"
        )
        pcm = b""
        try:
            async with speech as response:
                async for part in response.iter_bytes():
                    pcm += part
                    if len(pcm) >= seconds * SAMPLE_RATE * WHOLE_SAMPLE:
                        break
        except APIStatusError as error:
            raise Failed(type(error).__name__, status=error.status_code) from error
        except APIConnectionError as error:
            raise Failed(type(error).__name__) from error
        return Turn(pcm[: len(pcm) // WHOLE_SAMPLE * WHOLE_SAMPLE], SAMPLE_RATE)


async def open_speaker(server: Opening) -> OpenAISpeaker:
    """For `act`."""
    return OpenAISpeaker(server)


if __name__ == "__main__":
    act(open_speaker)
