"""The client: one object for an application's life, many utterances.

    async with connect("ws://127.0.0.1:8765/v1/tts", api_key=key) as client:
        async for chunk in client.speak("Hello there."):
            play(chunk.pcm)

Rule: it imports the wire and nothing heavier, so it installs anywhere. `connection` is one socket,
`utterance` what is spoken on it, `lasting` finds it a socket, `blocking` is all that for programs
without an event loop.
"""

from orpheus_ws.access_tokens import make_token
from orpheus_ws.client.backoff import PATIENCE_SECONDS, Backoff
from orpheus_ws.client.blocking import BlockingClient, BlockingUtterance, connect_sync
from orpheus_ws.client.lasting import Client, SpeakOptions, connect, make_client
from orpheus_ws.client.text import SpokenText
from orpheus_ws.client.utterance import Utterance
from orpheus_ws.messages import (
    Audio,
    Cancelled,
    Done,
    Sampling,
    Segment,
    Segmentation,
    ServerMessage,
    Started,
    Times,
    Warn,
    Words,
)

__all__ = [
    "PATIENCE_SECONDS",
    "Audio",
    "Backoff",
    "BlockingClient",
    "BlockingUtterance",
    "Cancelled",
    "Client",
    "Done",
    "Sampling",
    "Segment",
    "Segmentation",
    "ServerMessage",
    "SpeakOptions",
    "SpokenText",
    "Started",
    "Times",
    "Utterance",
    "Warn",
    "Words",
    "connect",
    "connect_sync",
    "make_client",
    "make_token",
]
