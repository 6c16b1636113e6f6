"""Deepgram's, as LiveKit's plugin speaks it: word by word, then a flush."""

import json
from typing import Any

from tests.conformance.speakers import Speaker, pieces


class Client(Speaker):
    """See `Speaker`."""

    path = (
        "/v1/speak?encoding=linear16&model=aura-2-andromeda-en&sample_rate=24000&mip_opt_out=false"
    )
    warm = True
    _turns = 0

    async def greet(self) -> None:
        """See `Speaker`."""
        event = await self._event()
        assert (event["type"], event["model_name"]) == ("Metadata", "tara")

    async def write(self, text: str, *, complete: bool) -> None:
        """See `Speaker`."""
        for piece in filter(None, pieces(text)):
            await self._send(type="Speak", text=f"{piece.strip()} ")
        if complete:
            await self._send(type="Flush")

    async def hear(self) -> bytes:
        """See `Speaker`."""
        frame = await self.socket.recv()
        if isinstance(frame, bytes):
            return frame
        assert json.loads(frame) == {"type": "Flushed", "sequence_id": self._turns}
        self._turns += 1
        return b""

    async def fails(self) -> None:
        """See `Speaker`. The flush is answered all the same."""
        event = await self._event()
        assert (event["type"], event["err_code"]) == ("Error", "no_audio")
        assert await self.hear() == b""

    async def offend(self) -> None:
        """See `Speaker`."""
        await self._send(type="Sing")
        event = await self._event()
        assert (event["type"], event["code"]) == ("Warning", "bad_message")

    async def _send(self, **fields: Any) -> None:
        await self.socket.send(json.dumps(fields))

    async def _event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.socket.recv())
        return event
