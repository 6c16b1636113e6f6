"""What is told of utterances to those who collect traces; to nobody, unless somebody is named.

Rule: a tracer hears of a context when it opens, when a segment of it is spoken, and when it ends; never
of a frame. What happened in between is in its `Trace`. `otel` is the only module that imports
OpenTelemetry, and it is imported only if `tracing.endpoint` is set.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Protocol

from orpheus_ws.config import TracingConfig
from orpheus_ws.named_parts import load_part
from orpheus_ws.trace import Trace


class Tracer(Protocol):
    """Somebody who is told of utterances. Nothing here waits, apart from `close`, or fails."""

    def opened(self, trace: Trace, voice: str, own: str | None, handshake: str | None) -> None:
        """A context was opened, with its own traceparent or with that of its socket's handshake.

        Sets `trace.trace_id` if it belongs to a trace.
        """
        ...

    def segment(self, trace: Trace, chars: int) -> contextlib.AbstractContextManager[None]:
        """Enter it to hand a segment of so many characters to the engine.

        Leave it, in whatever way, when the segment has freed engine and codec.
        """
        ...

    def ended(self, trace: Trace, figures: Mapping[str, object]) -> None:
        """A context has ended; `figures` are those of `Context.summary`. Called once for each."""
        ...

    async def close(self) -> None:
        """Hand on what is left. Takes a bounded time, whoever is at the other end."""
        ...


class Untraced:
    """A `Tracer` that tells nobody."""

    def opened(self, trace: Trace, voice: str, own: str | None, handshake: str | None) -> None:
        """See `Tracer`."""

    def segment(self, trace: Trace, chars: int) -> contextlib.AbstractContextManager[None]:
        """See `Tracer`."""
        return contextlib.nullcontext()

    def ended(self, trace: Trace, figures: Mapping[str, object]) -> None:
        """See `Tracer`."""

    async def close(self) -> None:
        """See `Tracer`."""


async def open_tracer(config: TracingConfig) -> Tracer:
    """The tracer that the configuration asks for.

    Raises `StartupError` when the extra is not installed or does not take its configuration.
    """
    endpoint = config.endpoint
    if endpoint is None:
        return Untraced()

    def import_and_open() -> Tracer:
        opener = load_part(__name__, "otel", "open_otel", extra="otel")
        tracer: Tracer = opener(endpoint)
        return tracer

    # Both read files.
    return await asyncio.to_thread(import_and_open)
