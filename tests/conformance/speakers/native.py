"""The native protocol in JSON."""

import json
from typing import Any

from tests.conformance.speakers import Speaker, pieces


class Client(Speaker):
    """See `Speaker`."""

    path = "/v1/tts"
    subprotocols = ("tts.v1.json",)
    warm = True
    _context = 0

    async def greet(self) -> None:
        """See `Speaker`."""
        assert (await self._event())["type"] == "ready"

    async def write(self, text: str, *, complete: bool) -> None:
        """See `Speaker`."""
        self._context += 1
        for piece in pieces(text):
            await self._send(type="text", context=str(self._context), text=piece)
        if complete:
            await self._send(type="end", context=str(self._context))

    async def hear(self) -> bytes:
        """See `Speaker`."""
        while True:
            frame = await self.socket.recv()
            if isinstance(frame, bytes):
                return frame[16:]
            if json.loads(frame)["type"] == "done":
                return b""

    async def fails(self) -> None:
        """See `Speaker`."""
        while (event := await self._event())["type"] != "error":
            assert event["type"] == "started"
        assert (event["context"], event["code"]) == (str(self._context), "no_audio")

    async def offend(self) -> None:
        """See `Speaker`."""
        await self._send(type="text", text=1)
        event = await self._event()
        assert (event["type"], event["code"], event["fatal"]) == ("error", "bad_message", False)

    async def _send(self, **fields: Any) -> None:
        await self.socket.send(json.dumps(fields))

    async def _event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.socket.recv())
        return event
