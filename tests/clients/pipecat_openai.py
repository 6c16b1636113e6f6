"""Pipecat's own OpenAI service. It knows OpenAI's voices only, so one of them stands for ours."""

from typing import Any

from pipecat.services.openai.tts import VALID_VOICES, OpenAITTSService

from tests.clients.acting import Opening, act
from tests.clients.pipecat_turns import PATIENCE, opening


def service(server: Opening) -> Any:
    """As its users make one."""
    voice = server.voice if server.voice in VALID_VOICES else "alloy"
    return OpenAITTSService(
        api_key=server.key,
        base_url=f"{server.http}/v1",
        settings=OpenAITTSService.Settings(voice=voice),
        **PATIENCE,
    )


if __name__ == "__main__":
    act(opening(service))
