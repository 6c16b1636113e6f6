"""A TTS for LiveKit Agents.

    session = AgentSession(tts=orpheus.TTS("ws://127.0.0.1:8765/v1/tts"), …)

Rule: one stream is one utterance, and a socket outlives streams, interrupted ones too: leaving a stream
sends `cancel`, and the next stream speaks on the same socket. What is tried again is LiveKit's to
decide, so nothing is tried twice here.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from orpheus_ws.client import (
    Audio,
    Client,
    Done,
    Sampling,
    Segmentation,
    SpeakOptions,
    Words,
    make_client,
)
from orpheus_ws.errors import ClientError, Disconnected, Refused, Unreachable

try:
    from livekit.agents import (
        APIConnectionError,
        APIConnectOptions,
        APIError,
        APIStatusError,
        APITimeoutError,
        tts,
    )
    from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, TimedString
    from livekit.agents.utils import shortuuid
except ModuleNotFoundError as error:
    raise ImportError("LiveKit Agents is missing: pip install 'orpheus-ws[livekit]'") from error

SAMPLE_RATE: Final = 24_000
"""What the voice speaks at: nothing is resampled."""


class TTS(tts.TTS):
    """Speaks what LiveKit's pipeline writes. One for each session: it keeps one socket warm.

    `sample_rate` is 8000, 16000, 24000 or 48000. With `word_timestamps` a session with
    `use_tts_aligned_transcript` shows words when they are heard; the times are estimates. `ssl_context`
    says whose certificates are trusted at a `wss://` address; without it the system's are.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        voice: str | None = None,
        sample_rate: int = SAMPLE_RATE,
        sampling: Sampling | None = None,
        segment: Segmentation | None = None,
        word_timestamps: bool = True,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=word_timestamps),
            sample_rate=sample_rate,
            num_channels=1,
        )
        self._url = url
        self._api_key = api_key
        self._ssl_context = ssl_context
        self._voice = voice
        self._sampling = sampling
        self._segment = segment
        self._clients: set[Client] = set()
        self._idle: Client | None = None
        self._warming: asyncio.Task[None] | None = None

    @property
    def model(self) -> str:
        """For LiveKit's metrics."""
        return "orpheus"

    @property
    def provider(self) -> str:
        """For LiveKit's metrics."""
        return "orpheus-ws"

    def update_options(self, *, voice: str | None) -> None:
        """Speak with another voice from the next stream on; None is the server's default."""
        self._voice = voice

    def stream(
        self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.SynthesizeStream:
        """Speak text as it is written."""
        return _Stream(tts=self, conn_options=conn_options)

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        """Speak a text that is all there."""
        return _Whole(tts=self, input_text=text, conn_options=conn_options)

    def prewarm(self) -> None:
        """Open the socket that the first stream will use. What fails is told to that stream."""
        self._idle = self._idle or self._new_client()
        if self._warming is None or self._warming.done():
            self._warming = asyncio.create_task(_open(self._idle))

    async def aclose(self) -> None:
        """Close all sockets."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients))

    async def _speak(
        self,
        stream: "_Stream | _Whole",
        emitter: tts.AudioEmitter,
        pieces: AsyncGenerator[str, None],
        patience: float,
    ) -> None:
        """Speak on a socket of the stream's own. Raises LiveKit's errors.

        `patience` is how many seconds the server may say nothing once it has the whole text.
        """
        clock = asyncio.get_running_loop().time
        try:
            async with self._client() as client, asyncio.timeout(patience) as deadline:
                started = time.perf_counter()
                stream._connection_reused = client.connected
                await client.connection()
                stream._acquire_time = time.perf_counter() - started
                deadline.reschedule(None)

                async def text() -> AsyncGenerator[str, None]:
                    async with contextlib.aclosing(pieces):
                        async for piece in pieces:
                            yield piece
                    deadline.reschedule(clock() + patience)

                utterance = client.speak(text(), **self._options())
                async with contextlib.aclosing(utterance.events()) as events:
                    async for event in events:
                        if deadline.when() is not None:
                            deadline.reschedule(clock() + patience)
                        self._hear(event, emitter)
        except TimeoutError as error:
            raise APITimeoutError from error
        except ClientError as error:
            raise _translated(error) from error

    def _hear(self, event: object, emitter: tts.AudioEmitter) -> None:
        if isinstance(event, Audio):
            emitter.push(event.pcm)
        elif isinstance(event, Words):
            emitter.push_timed_transcript(_timed(event))
        elif isinstance(event, Done) and not event.audio_ms:
            # LiveKit takes no audio for a failure, but an emoji has no sound.
            emitter.push(bytes(2 * self.sample_rate // 100))

    def _options(self) -> SpeakOptions:
        return {
            "voice": self._voice,
            "sample_rate": self.sample_rate,
            "sampling": self._sampling,
            "segment": self._segment,
            "words": self.capabilities.aligned_transcript,
        }

    def _new_client(self) -> Client:
        client = make_client(
            self._url, api_key=self._api_key, patience=0, ssl_context=self._ssl_context
        )
        self._clients.add(client)
        return client

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        """The idle client, or another one while that is in use. One is kept afterwards."""
        client, self._idle = self._idle or self._new_client(), None
        silent = False
        try:
            yield client
        except TimeoutError:
            silent = True
            raise
        finally:
            # Who said nothing for so long may never do so again; and a socket holds a place that
            # somebody else could have.
            if silent or self._idle is not None:
                self._clients.discard(client)
                await client.close()
            else:
                self._idle = client


class _Stream(tts.SynthesizeStream):
    """A turn whose text is still being written."""

    _tts: TTS

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        name = shortuuid()
        _initialize(output_emitter, name, self._tts.sample_rate, stream=True)
        # An empty turn needs no socket.
        beginning = ""
        async for piece in self._pieces():
            beginning += piece
            if beginning.strip():
                output_emitter.start_segment(segment_id=name)
                await self._tts._speak(
                    self, output_emitter, self._rest(beginning), self._conn_options.timeout
                )
                output_emitter.end_segment()
                return

    async def _rest(self, beginning: str) -> AsyncGenerator[str, None]:
        self._mark_started()
        yield beginning
        async for piece in self._pieces():
            yield piece

    async def _pieces(self) -> AsyncGenerator[str, None]:
        """What is written until the turn is flushed: LiveKit has one segment to a stream."""
        async for piece in self._input_ch:
            if isinstance(piece, self._FlushSentinel):
                return
            yield piece


class _Whole(tts.ChunkedStream):
    """A turn whose text is all there."""

    _tts: TTS

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        _initialize(output_emitter, shortuuid(), self._tts.sample_rate, stream=False)
        await self._tts._speak(self, output_emitter, self._text(), self._conn_options.timeout)

    async def _text(self) -> AsyncGenerator[str, None]:
        yield self.input_text


def _initialize(emitter: tts.AudioEmitter, name: str, sample_rate: int, *, stream: bool) -> None:
    emitter.initialize(
        request_id=name,
        sample_rate=sample_rate,
        num_channels=1,
        mime_type="audio/pcm",
        stream=stream,
    )


async def _open(client: Client) -> None:
    with contextlib.suppress(ClientError):
        await client.connection()


def _timed(words: Words) -> list[TimedString]:
    """LiveKit puts words together as they are, and counts seconds."""
    return [
        TimedString(f"{word.text} ", start_time=word.start_ms / 1000, end_time=word.end_ms / 1000)
        for word in words.words
    ]


def _translated(error: ClientError) -> APIError:
    match error:
        case Refused():
            return APIStatusError(str(error), status_code=error.status, retryable=error.retryable)
        case Unreachable() | Disconnected():
            return APIConnectionError(str(error))
        case _:
            return APIError(str(error), retryable=error.retryable)
