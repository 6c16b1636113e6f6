"""Translators as their tests ask for them."""

import json
from typing import Any

from orpheus_ws import messages as m
from orpheus_ws.surfaces import Opening, Translator, surfaces

VOICES = ("tara", "leo")
BY_NAME = {surface.name: surface for surface in surfaces()}
LIMITS = m.Limits(
    contexts=1,
    text_chars=1,
    message_bytes=1,
    messages_per_second=1,
    idle_seconds=1.0,
    session_seconds=1.0,
)
SAID: tuple[m.ServerMessage, ...] = (
    m.Ready(session="s", encodings=(), sample_rates=(), voices=VOICES, limits=LIMITS),
    m.Draining(deadline_ms=1),
    m.Warn(code="context_idle", message="m"),
    m.Error(code="bad_message", message="m", retryable=False, fatal=False),
)
"""What may be said at any time."""


def translator(name: str) -> Translator:
    """A fresh one."""
    opening = Opening(parameters={}, query={}, headers={}, subprotocol=None, voices=VOICES)
    return BY_NAME[name].open(opening)


def receive(translated: Translator, *requests: dict[str, Any]) -> list[m.ClientMessage]:
    """What requests in JSON mean."""
    return [message for each in requests for message in translated.receive(json.dumps(each))]


def send(translated: Translator, *messages: m.ServerMessage) -> list[Any]:
    """What is sent for messages, JSON decoded."""
    return [
        frame if isinstance(frame, bytes) else json.loads(str(frame))
        for message in messages
        for frame in translated.send(message)
    ]


def error(context: str | None, *, retryable: bool = True) -> m.Error:
    """A failure as the session tells it."""
    return m.Error(
        context=context, code="engine_failed", message="m", retryable=retryable, fatal=False
    )
