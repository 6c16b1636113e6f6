"""LiveKit's own OpenAI plugin; the argument is a format of its audio, or nothing for its default."""

import sys
from typing import Any

import aiohttp
from livekit.plugins import openai

from tests.clients.acting import Opening, act
from tests.clients.livekit_turns import opening


def tts(server: Opening, _session: aiohttp.ClientSession) -> Any:
    """As its users make one."""
    chosen = {"response_format": sys.argv[1]} if len(sys.argv) > 1 else {}
    return openai.TTS(
        api_key=server.key, base_url=f"{server.http}/v1", voice=server.voice, **chosen
    )


if __name__ == "__main__":
    act(opening(tts))
