"""LiveKit's own Deepgram plugin."""

from typing import Any

import aiohttp
from livekit.plugins import deepgram

from tests.clients.acting import Opening, act
from tests.clients.livekit_turns import opening


def tts(server: Opening, session: aiohttp.ClientSession) -> Any:
    """As its users make one."""
    return deepgram.TTS(
        api_key=server.key,
        base_url=f"{server.ws}/v1/speak",
        model=server.voice,
        http_session=session,
    )


if __name__ == "__main__":
    act(opening(tts))
