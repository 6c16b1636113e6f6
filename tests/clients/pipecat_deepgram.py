"""Pipecat's own Deepgram service."""

from typing import Any

from pipecat.services.deepgram.tts import DeepgramTTSService

from tests.clients.acting import Opening, act
from tests.clients.pipecat_turns import PATIENCE, RESTARTS, opening


def service(server: Opening) -> Any:
    """As its users make one."""
    return DeepgramTTSService(
        api_key=server.key,
        base_url=server.ws,
        settings=DeepgramTTSService.Settings(voice=server.voice),
        **PATIENCE,
        **RESTARTS,
    )


if __name__ == "__main__":
    act(opening(service))
