"""Whether the server can speak, asked by a load balancer.

Rule: ready means that engine and codec did real work within the last five seconds, or answered a
probe now. A probe takes a slot, so it runs only while one is free; a full server that makes progress
is ready. Dead or draining is not.
"""

import asyncio
import contextlib
from typing import Final

from prometheus_client import CollectorRegistry

from orpheus_ws.audio import MOST_FRAMES, Portion, Shaper
from orpheus_ws.codec import Codec
from orpheus_ws.engine import Engine, Prompt
from orpheus_ws.errors import OrpheusError
from orpheus_ws.metrics import Metrics
from orpheus_ws.pcm import Output
from orpheus_ws.server.admission import Admission
from orpheus_ws.synthesis import Synthesis
from orpheus_ws.tokens import SAMPLE_RATE
from orpheus_ws.trace import Trace, clock

FRESH_SECONDS: Final = 5.0
PROBE_SECONDS: Final = 5.0
_PROBE_TEXT: Final = "Ready."


class Health:
    """Readiness of one engine and codec."""

    def __init__(self, engine: Engine, codec: Codec, admission: Admission) -> None:
        self._engine = engine
        self._codec = codec
        # What a probe speaks does not count: it has instruments of its own, which nobody reads.
        self._synthesis = Synthesis(engine, codec, Metrics(CollectorRegistry()))
        self._admission = admission
        self._worked_at: float | None = None
        self._work = asyncio.Event()
        self._probing: asyncio.Task[bool] | None = None

    @property
    def alive(self) -> bool:
        """False once engine or codec can never answer again."""
        return self._engine.alive and self._codec.alive

    @property
    def fresh(self) -> bool:
        """Whether it is ready for sure, because it spoke just now."""
        if self._admission.draining or not self.alive or self._worked_at is None:
            return False
        return clock() - self._worked_at < FRESH_SECONDS

    def worked(self) -> None:
        """Audio was produced just now."""
        self._worked_at = clock()
        self._work.set()

    async def ready(self) -> bool:
        """Answer within `PROBE_SECONDS`. Concurrent questions share one probe."""
        if self._admission.draining or not self.alive:
            return False
        if self.fresh:
            return True
        if self._engine.statistics().active >= self._engine.capacity:
            return await self._progresses()
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self.probe())
        return await asyncio.shield(self._probing)

    async def _progresses(self) -> bool:
        """Whether one of the streams that take all slots produces audio within the time."""
        self._work.clear()
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._work.wait()
        except TimeoutError:
            return False
        return True

    async def probe(self) -> bool:
        """Speak a word and throw it away; true if there was audio in time."""
        prompt = Prompt(text=_PROBE_TEXT, voice=self._engine.voices[0], seed=0)
        speech = self._synthesis.speak(
            prompt,
            Shaper(),
            Output("pcm_s16le", SAMPLE_RATE),
            Trace(),
            lambda: Portion(1, MOST_FRAMES),
        )
        try:
            async with asyncio.timeout(PROBE_SECONDS), contextlib.aclosing(speech) as chunks:
                async for _ in chunks:
                    self.worked()
                    return True
        except (OrpheusError, TimeoutError):
            return False
        return False
