"""Cartesia's, as LiveKit's plugin speaks it: a context a turn, sentence by sentence."""

import base64
import json
from typing import Any

from tests.conformance.speakers import Speaker, pieces


class Client(Speaker):
    """See `Speaker`."""

    path = "/tts/websocket?cartesia_version=2025-04-16"
    warm = True
    _turns = 0

    async def greet(self) -> None:
        """See `Speaker`. Nobody says anything."""

    async def write(self, text: str, *, complete: bool) -> None:
        """See `Speaker`. No text at all is only the end of it."""
        self._turns += 1
        for piece in filter(None, pieces(text)):
            await self._send(piece, more=True)
        if complete:
            await self._send(" ", more=False)

    async def hear(self) -> bytes:
        """See `Speaker`."""
        while True:
            event = await self._event()
            match event["type"]:
                case "chunk":
                    return base64.b64decode(event["data"])
                case "timestamps":
                    assert len(set(map(len, event["word_timestamps"].values()))) == 1
                case kind:
                    assert (kind, event["done"]) == ("done", True)
                    return b""

    async def fails(self) -> None:
        """See `Speaker`."""
        event = await self._event()
        assert (event["type"], event["error_code"], event["done"]) == ("error", "no_audio", False)

    async def offend(self) -> None:
        """See `Speaker`."""
        self._turns += 1
        await self.socket.send(json.dumps({"context_id": "1", "transcript": 1}))
        event = await self._event()
        assert (event["type"], event["status_code"], event["done"]) == ("error", 400, False)

    async def _send(self, transcript: str, *, more: bool) -> None:
        request = {
            "model_id": "sonic-3",
            "voice": {"mode": "id", "id": "f786b574-daa5-4673-aa0c-cbe3e8534c02"},
            "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
            "language": "en",
            "add_timestamps": True,
            "context_id": str(self._turns),
            "transcript": transcript,
            "continue": more,
        }
        await self.socket.send(json.dumps(request))

    async def _event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.socket.recv())
        assert event["context_id"] == str(self._turns)
        return event
