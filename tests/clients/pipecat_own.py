"""Our own service for Pipecat."""

from typing import Any

from orpheus_ws.integrations.pipecat import OrpheusTTSService
from tests.clients.acting import Opening, act
from tests.clients.pipecat_turns import opening


def service(server: Opening) -> Any:
    """As its users make one."""
    return OrpheusTTSService(
        url=f"{server.ws}/v1/tts",
        api_key=server.key,
        patience=40.0 if server.patient else 0.0,
        settings=OrpheusTTSService.Settings(voice=server.voice),
    )


if __name__ == "__main__":
    act(opening(service))
