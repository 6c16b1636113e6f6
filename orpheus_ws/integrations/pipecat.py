"""A TTS service for Pipecat.

    pipeline = Pipeline([…, llm, OrpheusTTSService(url="ws://127.0.0.1:8765/v1/tts"), …])

Rule: an audio context of Pipecat's is one utterance, and all of a pipeline's are spoken on one socket,
which outlives interruptions: one sends `cancel` with how much was heard. Pipecat plays contexts in
order and so does the server.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

from orpheus_ws.client import (
    PATIENCE_SECONDS,
    Audio,
    Cancelled,
    Done,
    Sampling,
    Segmentation,
    ServerMessage,
    Utterance,
    Words,
    make_client,
)
from orpheus_ws.errors import ClientError, Disconnected, Refused, Unreachable, UtteranceFailed

try:
    from pipecat.frames.frames import (
        CancelFrame,
        EndFrame,
        Frame,
        TTSAudioRawFrame,
        TTSStoppedFrame,
    )
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
    from pipecat.services.settings import TTSSettings
    from pipecat.services.tts_service import TTSService
    from pipecat.utils.errors import ErrorCategory, classify_http_status_code
except ModuleNotFoundError as error:
    raise ImportError("Pipecat is missing: pip install 'orpheus-ws[pipecat]'") from error

AT_ONCE: Final = Segmentation(max_delay_ms=0)
"""Pipecat has already waited for the end of each sentence."""

LONGEST_PAUSE: Final = 60.0
"""Seconds for which a language model may stop in the middle of a turn, to call a tool for example."""

WRONG: Final = ("bad_message", "unknown_voice", "unsupported_format")
"""What the server answers when every turn would fail."""


@dataclass
class OrpheusTTSSettings(TTSSettings):
    """What `TTSUpdateSettingsFrame` can change: `voice`, for the contexts opened after it."""


class OrpheusTTSService(TTSService):
    """Speaks what Pipecat's pipeline writes.

    The sample rate is the pipeline's `audio_out_sample_rate`, or `sample_rate`: 8000 (a telephone
    line, which then needs no resampling), 16000, 24000 or 48000. `patience` is how many seconds a
    turn may wait for a server that is full or restarts. `ssl_context` says whose certificates are trusted
    at a `wss://` address; without it the system's are. Other arguments are `TTSService`'s.

    The event `on_speech_interrupted(service, spoken, remaining)` tells what was heard of an
    interrupted context.
    """

    Settings = OrpheusTTSSettings
    _settings: OrpheusTTSSettings

    def __init__(
        self,
        *,
        url: str,
        api_key: str | None = None,
        sampling: Sampling | None = None,
        segment: Segmentation | None = None,
        patience: float = PATIENCE_SECONDS,
        ssl_context: ssl.SSLContext | None = None,
        settings: OrpheusTTSSettings | None = None,
        **options: Any,
    ) -> None:
        chosen = OrpheusTTSSettings(model="orpheus", voice=None, language=None)
        if settings is not None:
            chosen.apply_update(settings)
        # Every context is ended here, and the server says why when it is silent.
        options.setdefault("stop_frame_timeout_s", LONGEST_PAUSE)
        options.setdefault("max_consecutive_zero_audio_contexts", 0)
        super().__init__(
            settings=chosen,
            push_start_frame=True,
            # Words come with their times.
            push_text_frames=False,
            append_trailing_space=True,
            **options,
        )
        self._register_event_handler("on_speech_interrupted")
        self._client = make_client(url, api_key=api_key, patience=patience, ssl_context=ssl_context)
        self._sampling = sampling
        self._segment = segment or (None if self._is_streaming_tokens else AT_ONCE)
        self._connecting: asyncio.Task[None] | None = None
        self._speeches: dict[str, _Speech] = {}
        self._player = _Player()

    def can_generate_metrics(self) -> bool:
        """Yes: time to first byte and to first audio, and characters."""
        return True

    @property
    def supports_processing_metrics(self) -> bool:
        """No: `run_tts` hands the text over, and the audio comes later."""
        return False

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Begin to connect; the pipeline starts meanwhile."""
        await super().setup(setup)
        self._connecting = self.create_task(self._connect())

    async def stop(self, frame: EndFrame) -> None:
        """Let what is being spoken be heard, then close the socket."""
        for speech in self._speeches.values():
            speech.text.end()
        await super().stop(frame)
        await self._close()

    async def cancel(self, frame: CancelFrame) -> None:
        """Close the socket, which cancels whatever is spoken on it."""
        await super().cancel(frame)
        await self._close()

    async def cleanup(self) -> None:
        """Leave nothing open, however the pipeline ended."""
        await super().cleanup()
        await self._close()

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Hand text over. Its audio goes to the audio context when it comes."""
        speech = self._speeches.get(context_id)
        if speech is None or speech.text.ended:
            speech = _Speech()
            self._speeches[context_id] = speech
            speech.task = self.create_task(self._speak(context_id, speech))
        speech.text.add(text)
        await self.start_tts_usage_metrics(text)
        yield None

    async def flush_audio(self, context_id: str | None = None) -> None:
        """The turn has no more text."""
        speech = self._speeches.get(context_id or self.get_active_audio_context_id() or "")
        if speech is not None:
            speech.text.end()

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Stop the engine; the socket stays."""
        await self.stop_all_metrics()
        speech = self._speeches.get(context_id)
        if speech is not None:
            speech.interrupted = True
            await speech.cancel(self._player.heard_ms(context_id, self._now()))
        self._player.stop()
        await super().on_audio_context_interrupted(context_id)

    async def on_audio_context_completed(self, context_id: str) -> None:
        """All of it was handed on, so nobody can interrupt it any more."""
        self._player.forget(context_id)
        await super().on_audio_context_completed(context_id)

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        """Note what the listener is given to hear."""
        if isinstance(frame, TTSAudioRawFrame) and frame.context_id is not None:
            seconds = frame.num_frames / frame.sample_rate
            self._player.play(frame.context_id, seconds, self._now())
        await super().push_frame(frame, direction)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _connect(self) -> None:
        try:
            await self._client.connection()
        except ClientError as error:
            await self._call_event_handler("on_connection_error", str(error))
            await self._report(error)
        else:
            await self._call_event_handler("on_connected")

    async def _close(self) -> None:
        speaking = [speech.task for speech in self._speeches.values()]
        for task in (self._connecting, *speaking):
            if task is not None:
                await self.cancel_task(task)
        self._connecting = None
        self._speeches.clear()
        await self._client.close()

    async def _speak(self, context_id: str, speech: "_Speech") -> None:
        """Speak a context; what its server loses before a sound was heard is spoken again, once."""
        try:
            try:
                await self._attempt(context_id, speech)
            except Disconnected:
                if speech.heard:
                    raise
                await self._attempt(context_id, speech)
        except ClientError as error:
            if not speech.interrupted:
                await self._report(error)
        finally:
            if self._speeches.get(context_id) is speech:
                del self._speeches[context_id]
        if self.audio_context_available(context_id) and not speech.interrupted:
            await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
            await self.remove_audio_context(context_id)

    async def _attempt(self, context_id: str, speech: "_Speech") -> None:
        if speech.interrupted:
            return
        utterance = self._client.speak(
            speech.text.pieces(),
            voice=self._settings.voice,
            sample_rate=self.sample_rate,
            sampling=self._sampling,
            segment=self._segment,
            words=True,
        )
        speech.utterance = utterance
        async with contextlib.aclosing(utterance.events()) as events:
            async for event in events:
                if isinstance(event, Cancelled):
                    await self._call_event_handler(
                        "on_speech_interrupted", event.text_spoken, event.text_remaining
                    )
                elif not speech.interrupted:
                    await self._deliver(context_id, speech, event)

    async def _deliver(self, context_id: str, speech: "_Speech", event: ServerMessage) -> None:
        """To the audio context, which plays audio and words in order."""
        if isinstance(event, Audio):
            speech.heard = True
            await self._play(context_id, event.pcm)
        elif isinstance(event, Done) and not event.audio_ms:
            # Pipecat takes a turn without audio for a failure, but an emoji has no sound.
            await self._play(context_id, bytes(2 * self.sample_rate // 100))
        elif isinstance(event, Words):
            times = [(word.text, word.start_ms / 1000) for word in event.words]
            await self.add_word_timestamps(times, context_id)

    async def _play(self, context_id: str, pcm: bytes) -> None:
        frame = TTSAudioRawFrame(pcm, self.sample_rate, 1, context_id=context_id)
        await self.append_to_audio_context(context_id, frame)

    async def _report(self, error: ClientError) -> None:
        """As Pipecat has it: some of what fails makes a service unusable."""
        await self.push_error(str(error), exception=error, category=_category(error))


class _Text:
    """Text that grows, and can be read from its start more than once."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._more = asyncio.Event()
        self.ended = False

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self._more.set()

    def end(self) -> None:
        self.ended = True
        self._more.set()

    async def pieces(self) -> AsyncGenerator[str, None]:
        position = 0
        while True:
            while position < len(self._pieces):
                yield self._pieces[position]
                position += 1
            if self.ended:
                return
            self._more.clear()
            await self._more.wait()


class _Speech:
    """A context while it is spoken."""

    def __init__(self) -> None:
        self.text = _Text()
        self.task: asyncio.Task[None] | None = None
        self.utterance: Utterance | None = None
        self.heard = False
        self.interrupted = False

    async def cancel(self, heard_ms: float) -> None:
        self.text.end()
        if self.utterance is not None:
            await self.utterance.cancel(played_ms=heard_ms)


class _Player:
    """What a listener hears, who is given frames earlier than they are played."""

    def __init__(self) -> None:
        self._until = 0.0
        self._began: dict[str, float] = {}

    def play(self, context_id: str, seconds: float, now: float) -> None:
        self._until = max(self._until, now)
        self._began.setdefault(context_id, self._until)
        self._until += seconds

    def heard_ms(self, context_id: str, now: float) -> float:
        return 1000 * max(0.0, now - self._began.get(context_id, now))

    def forget(self, context_id: str) -> None:
        self._began.pop(context_id, None)

    def stop(self) -> None:
        self._until = 0.0
        self._began.clear()


def _category(error: ClientError) -> ErrorCategory:
    match error:
        case Refused():
            return classify_http_status_code(error.status)
        case Unreachable() | Disconnected():
            return ErrorCategory.CONNECTIVITY
        case UtteranceFailed() if error.code in WRONG:
            return ErrorCategory.INVALID_REQUEST
        case UtteranceFailed(code="text_too_long"):
            return ErrorCategory.APPLICATION
        case UtteranceFailed():
            return ErrorCategory.SERVER
        case _:
            return ErrorCategory.UNKNOWN
