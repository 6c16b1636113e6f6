"""Our own plugin for LiveKit Agents."""

from typing import Any

import aiohttp

from orpheus_ws.integrations import livekit
from tests.clients.acting import Opening, act
from tests.clients.livekit_turns import opening


def tts(server: Opening, _session: aiohttp.ClientSession) -> Any:
    """As its users make one."""
    return livekit.TTS(f"{server.ws}/v1/tts", api_key=server.key, voice=server.voice)


if __name__ == "__main__":
    act(opening(tts))
