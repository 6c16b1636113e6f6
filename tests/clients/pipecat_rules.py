"""Our service for Pipecat, watched with Pipecat's own test utilities.

Rule: it does things and says what it saw; `tests/slow/test_plugins.py` knows what is right.

    python -m tests.clients.pipecat_rules URL URL_OF_ONE_WHOSE_ENGINE_STALLS URL_OVER_TLS ITS_AUTHORITY
"""

import asyncio
import itertools
import json
import ssl
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.tts_service import TextAggregationMode
from pipecat.tests.utils import SleepFrame, run_test

from orpheus_ws.integrations.pipecat import OrpheusTTSService

TEXT = "It was cold. We went home."
STARTED_SECONDS = 60.0
"""For a pipeline to start; how long that takes says how busy the machine is."""
HEARD = SleepFrame()
"""Stands for as long as it takes until something is heard."""


def turn(text: str = TEXT) -> list[Frame]:
    """A reply as a language model sends it."""
    words = text.split()
    tokens = [LLMTextFrame(f" {word}" if at else word) for at, word in enumerate(words)]
    return [LLMFullResponseStartFrame(), *tokens, LLMFullResponseEndFrame()]


def sent(frames: Iterable[Frame], heard: list[Frame]) -> Iterator[Frame]:
    """The frames, one by one as they are sent; after each, whoever sends it lets others run."""
    for frame in frames:
        if frame is not HEARD:
            yield frame
            continue
        while not heard:
            yield SleepFrame(0.01)


async def run(
    url: str, frames: Iterable[Frame], rate: int = 24_000, **options: Any
) -> dict[str, Any]:
    """What comes out of a pipeline for some frames."""
    service = OrpheusTTSService(url=url, patience=0, **options)
    interrupted: list[tuple[str | None, str | None]] = []

    @service.event_handler("on_speech_interrupted")
    async def on_speech_interrupted(_: Any, spoken: str | None, remaining: str | None) -> None:
        interrupted.append((spoken, remaining))

    heard: list[Frame] = []

    @service.event_handler("on_before_push_frame")
    async def on_before_push_frame(_: Any, frame: Frame) -> None:
        if isinstance(frame, TTSAudioRawFrame):
            heard.append(frame)

    down, up = await run_test(
        service,
        frames_to_send=sent(frames, heard),
        pipeline_params=PipelineParams(enable_metrics=True, audio_out_sample_rate=rate),
        start_timeout=STARTED_SECONDS,
    )
    errors = [frame for frame in up if isinstance(frame, ErrorFrame)]
    return {
        **heard_in(down),
        "errors": [error.category.value for error in errors],
        "usable": service.is_usable,
        "interrupted": interrupted,
    }


def heard_in(down: Sequence[Frame]) -> dict[str, Any]:
    """What a listener has of the frames that come out."""
    audio = [frame for frame in down if isinstance(frame, TTSAudioRawFrame)]
    words = [frame for frame in down if isinstance(frame, TTSTextFrame)]
    contexts = dict.fromkeys(frame.context_id for frame in audio)
    return {
        # Runs of the same kind are one.
        "frames": [kind for kind, _ in itertools.groupby(type(frame).__name__ for frame in down)],
        "seconds": {
            position: sum(
                frame.num_frames / frame.sample_rate for frame in audio if frame.context_id == name
            )
            for position, name in enumerate(contexts)
        },
        "rates": sorted({frame.sample_rate for frame in audio}),
        "even": all(len(frame.audio) % 2 == 0 for frame in audio),
        "words": " ".join(frame.text for frame in words),
        "ordered": [frame.pts for frame in words] == sorted(frame.pts for frame in words),
    }


async def watch(url: str, stalling: str, over_tls: str, authority: str) -> dict[str, Any]:
    """What there is to see."""
    voice = TTSUpdateSettingsFrame(delta=OrpheusTTSService.Settings(voice="leo"))
    tokens = TextAggregationMode.TOKEN
    cut = [*turn(TEXT * 10), HEARD, SleepFrame(0.7), InterruptionFrame(), *turn()]
    return {
        "turn": await run(url, turn()),
        "tokens": await run(url, turn(), text_aggregation_mode=tokens),
        "two": await run(url, [*turn(), voice, *turn()]),
        "spoken": await run(url, [TTSSpeakFrame(TEXT)]),
        "empty": await run(url, turn("")),
        "silent": await run(url, turn("🙂")),
        "telephone": await run(url, turn(), rate=8000),
        "interrupted": await run(url, cut),
        "known": await run(
            over_tls, turn(), ssl_context=ssl.create_default_context(cafile=authority)
        ),
        "unknown": await run(over_tls, turn()),
        "wrong_rate": await run(url, turn(), rate=11_025),
        "nobody": await run("ws://127.0.0.1:1/v1/tts", turn()),
        "stalled": await run(stalling, [*turn(), SleepFrame(0.5), InterruptionFrame()]),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(watch(*sys.argv[1:]))))
