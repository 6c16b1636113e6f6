"""LiveKit's own Baseten plugin; the arguments are its model, `orpheus` or `qwen3-tts`, and perhaps `http`."""

import sys
from typing import Any

import aiohttp
from livekit.plugins import baseten

from tests.clients.acting import Opening, act
from tests.clients.livekit_turns import opening

PATHS = {"orpheus": "/v1/baseten/websocket", "qwen3-tts": "/v1/audio/speech/stream"}
HTTP_PATH = "/v1/baseten/predict"


def tts(server: Opening, session: aiohttp.ClientSession) -> Any:
    """As its users make one."""
    model, *over_http = sys.argv[1:]
    endpoint = server.http + HTTP_PATH if over_http else server.ws + PATHS[model]
    return baseten.TTS(
        model=model,
        api_key=server.key,
        model_endpoint=endpoint,
        voice=server.voice,
        word_timestamps=model == "qwen3-tts",
        http_session=session,
    )


if __name__ == "__main__":
    act(opening(tts))
