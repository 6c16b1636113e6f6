"""LiveKit's own Cartesia plugin."""

from typing import Any

import aiohttp
from livekit.plugins import cartesia

from tests.clients.acting import Opening, act
from tests.clients.livekit_turns import opening


def tts(server: Opening, session: aiohttp.ClientSession) -> Any:
    """As its users make one. It makes the WebSocket's address of `base_url` itself."""
    return cartesia.TTS(
        api_key=server.key,
        base_url=server.ws.replace("ws", "http", 1),
        voice=server.voice,
        http_session=session,
    )


if __name__ == "__main__":
    act(opening(tts))
