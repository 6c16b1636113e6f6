"""vLLM-Omni's speech stream, as LiveKit's plugin speaks it with Baseten's qwen3-tts."""

import json
from typing import Any

from tests.conformance.speakers import Speaker, pieces


class Client(Speaker):
    """See `Speaker`."""

    path = "/v1/audio/speech/stream"
    warm = True
    _bytes = 0
    _sentence = ""

    async def greet(self) -> None:
        """See `Speaker`."""
        await self._send(
            "session.config",
            task_type="Base",
            response_format="pcm",
            stream_audio=True,
            speed=1.0,
            voice="tara",
            language="Auto",
            timestamp_type="word",
            timestamp_transport_strategy="sync",
        )

    async def write(self, text: str, *, complete: bool) -> None:
        """See `Speaker`."""
        for piece in pieces(text):
            await self._send("input.text", text=piece)
        if complete:
            await self._send("input.done")

    async def hear(self) -> bytes:
        """See `Speaker`. Counts what it hears of each sentence."""
        while True:
            frame = await self.socket.recv()
            if isinstance(frame, bytes):
                self._bytes += len(frame)
                return frame
            event = json.loads(frame)
            match event["type"]:
                case "audio.start":
                    self._bytes = 0
                    self._sentence = event["sentence_text"]
                    assert (event["format"], event["sample_rate"]) == ("pcm", 24000)
                case "audio.done":
                    assert (event["total_bytes"], event["error"]) == (self._bytes, False)
                    words = event["timestamp_info"]["word_alignment"]["words"]
                    assert words == self._sentence.split()
                case kind:
                    assert kind == "session.done"
                    return b""

    async def fails(self) -> None:
        """See `Speaker`."""
        assert (await self._event())["type"] == "error"
        assert (await self._event())["type"] == "session.done"

    async def offend(self) -> None:
        """See `Speaker`."""
        await self._send("no.such.type")
        event = await self._event()
        assert event["type"] == "error"
        assert "session.config" in event["message"]

    async def _send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def _event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.socket.recv())
        return event
