"""A bridge to a telephone: it speaks the messages of Twilio's Media Streams, `python -m
docs.examples.telephone`.

A call's audio comes and goes as JSON over a WebSocket, µ-law at 8000 samples a second in base64. The
server behind speaks that format itself, so nothing is converted here. When the caller speaks, `clear`
empties what the telephone company has not played yet, and the marks that came back say what it had.
"""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from orpheus_ws.client import Cancelled, Client, Utterance, connect
from orpheus_ws.errors import ClientError

FRAME = 160
"""Bytes of 20 ms."""
SILENCE = b"\xff"
LOUD = 4
"""Segment of µ-law, 0 to 7, from which on a sample is somebody's voice. Use a detector of yours."""
PAUSE = 25
"""Quiet frames, half a second, after which the caller has finished."""

Answer = Callable[[int], AsyncIterator[str]]


async def small_talk(turn: int) -> AsyncIterator[str]:
    """Stands for recogniser and language model; turn 0 greets."""
    text = "Good morning, how can I help?" if turn == 0 else "I see. Please tell me more about it."
    for word in text.split():
        yield word + " "


def is_loud(frame: bytes) -> bool:
    """Whether a voice is in 20 ms of µ-law, whose bytes are sent inverted."""
    return any((~byte & 0x70) >> 4 >= LOUD for byte in frame)


class Call:
    """One call: what comes of it, and what is said."""

    def __init__(self, socket: ServerConnection, client: Client, answer: Answer) -> None:
        self._socket, self._client, self._answer = socket, client, answer
        self._stream = ""
        self._turn = 0
        self._quiet = PAUSE  # frames since the caller's voice; from PAUSE on it is our turn
        self._utterance: Utterance | None = None
        self._sent = self._played = 0  # milliseconds of the utterance
        self.unheard: list[str] = []

    async def run(self) -> None:
        """Until the caller hangs up."""
        try:
            async with asyncio.TaskGroup() as tasks:
                speaking = None
                async for frame in self._socket:
                    if await self._take(json.loads(frame)):
                        speaking = tasks.create_task(self._speak())
                if speaking is not None:
                    speaking.cancel()
        except* ConnectionClosed:
            pass  # in the middle of a word

    async def _take(self, message: dict[str, Any]) -> bool:
        """Heed a message of the telephone company's; true when it is our turn to speak."""
        match message["event"]:
            case "start":
                self._stream = message["streamSid"]
                return True
            case "media":
                return await self._turn_ends(message["media"]["payload"])
            case "mark":
                name, _, played = message["mark"]["name"].partition(":")
                if self._utterance is not None and name == self._utterance.context:
                    self._played = int(played)
            case "stop":
                await self._socket.close()
            case _:  # connected, dtmf
                pass
        return False

    async def _turn_ends(self, payload: str) -> bool:
        """Listen to a frame; true at the end of what the caller said."""
        if is_loud(base64.b64decode(payload)):
            self._quiet = 0
            await self._interrupt()
        self._quiet += 1
        return self._quiet == PAUSE

    async def _interrupt(self) -> None:
        utterance, self._utterance = self._utterance, None
        if utterance is not None:
            await self._send("clear")
            await utterance.cancel(played_ms=self._played)

    async def _speak(self) -> None:
        """Say the next answer, in frames of 20 ms, with a mark after each chunk."""
        utterance = self._client.speak(self._answer(self._turn), encoding="mulaw", sample_rate=8000)
        self._turn += 1
        self._utterance, self._sent, self._played = utterance, 0, 0
        waiting = b""
        async for chunk in utterance:
            waiting = await self._frames(utterance, waiting + chunk.pcm)
        if waiting:
            await self._frames(utterance, waiting.ljust(FRAME, SILENCE))
        if isinstance(utterance.result, Cancelled):
            self.unheard.append(utterance.result.text_remaining or "")

    async def _frames(self, utterance: Utterance, audio: bytes) -> bytes:
        """Send whole frames of an utterance, if it still is the one that is spoken; what is left."""
        while len(audio) >= FRAME and utterance is self._utterance:
            frame, audio = audio[:FRAME], audio[FRAME:]
            self._sent += 20
            await self._send("media", media={"payload": base64.b64encode(frame).decode()})
        if utterance is self._utterance:
            await self._send("mark", mark={"name": f"{utterance.context}:{self._sent}"})
        return audio

    async def _send(self, event: str, **fields: object) -> None:
        await self._socket.send(json.dumps({"event": event, "streamSid": self._stream, **fields}))


async def main(
    url: str = "ws://127.0.0.1:8765/v1/tts", host: str = "127.0.0.1", port: int = 8080
) -> None:
    """Take calls, each with a client of its own, since a client speaks one thing at a time."""

    async def take(socket: ServerConnection) -> None:
        try:
            async with connect(url) as client:
                await Call(socket, client, small_talk).run()
        except ClientError as error:
            print(f"telephone: a call was lost: {error}", file=sys.stderr)

    async with connect(url):
        pass  # no caller should be the first to find out that there is no server
    async with serve(take, host, port) as bridge:
        print(
            f"calls come in at ws://{host}:{port}: the address of a <Stream> in your provider's document"
        )
        await bridge.serve_forever()


if __name__ == "__main__":
    from docs.examples import run

    run("telephone", lambda *given: asyncio.run(main(*given)), "[URL]")
