"""Pipecat's own Cartesia service."""

from typing import Any

from pipecat.services.cartesia.tts import CartesiaTTSService

from tests.clients.acting import Opening, act
from tests.clients.pipecat_turns import PATIENCE, RESTARTS, opening


def service(server: Opening) -> Any:
    """As its users make one."""
    return CartesiaTTSService(
        api_key=server.key,
        url=f"{server.ws}/tts/websocket",
        settings=CartesiaTTSService.Settings(voice=server.voice),
        **PATIENCE,
        **RESTARTS,
    )


if __name__ == "__main__":
    act(opening(service))
