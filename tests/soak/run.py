"""The rounds of a soak: traffic, then nobody, and a look at what is left.

Rule: what has happened is written to disk as it happens. Listeners are held to every sample; that a
listener raises is a loss as well. A round ends when every client has left and the server has said that it
is idle; it has a while for it, and what is still held then is a leak.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests import http_peers
from tests.soak.listeners import LISTENERS, Known, Listener, reference
from tests.soak.server import Held, Subject
from tests.soak.troublemakers import TROUBLEMAKERS, Troublemaker
from tests.soak.verdict import MEGABYTE, MOST_GROWTH_BYTES, Memory, memory

QUIET_SECONDS: Final = 90.0
"""Until then a server must hold nothing any more: 60 s is the longest that TCP has, and the timers of
sockets that were left in the middle of everything are shorter."""
SAMPLE_SECONDS: Final = 1.0
ACT_SECONDS: Final = 120.0
"""More than any client takes; one that takes longer is a fault of the server's."""
LOGGED: Final = {"engine failed": "TypeError"}
"""What it may log, and the error with it: what an engine's junk comes to."""
_NOTHING: Final = ("sockets", "contexts", "turns", "waiting", "engine_slots", "codec_slots")
_EXPECTED: Final = (ConnectionClosed, InvalidHandshake, http_peers.CutOff, ConnectionError)


@dataclass
class Result:
    """What a soak came to."""

    settings: list[str]
    seconds: float = 0.0
    rounds: int = 0
    baseline: dict[str, int] = field(default_factory=dict)
    acts: Counter[str] = field(default_factory=Counter)
    whole: Counter[str] = field(default_factory=Counter)
    """Utterances that were heard to the last sample, by kind of listener."""
    lost_samples: int = 0
    faults: list[str] = field(default_factory=list)
    """What went wrong, in words."""
    samples: list[Held] = field(default_factory=list)
    quiet: list[Held] = field(default_factory=list)
    """What was held at the end of each round."""
    metrics: dict[str, float] = field(default_factory=dict)
    logged: Counter[str] = field(default_factory=Counter)
    """How often the server logged what, from `warning` on."""

    def save(self, folder: Path) -> None:
        """Write it where it can be read while it goes on."""
        content = dict(vars(self))
        for name in ("samples", "quiet"):
            content[name] = [held._asdict() for held in getattr(self, name)]
        file = folder / "soak.json"
        draft = file.with_suffix(".part")
        draft.write_text(json.dumps(content))
        draft.replace(file)


class Soak:
    """One run against one server."""

    def __init__(
        self,
        server: Subject,
        folder: Path,
        settings: list[str],
        seed: int = 0,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self.result = Result(settings)
        self._server = server
        self._folder = folder
        self._chance = random.Random(seed)
        self._quiet_seconds = quiet_seconds
        self._started = time.monotonic()

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    async def run(self, *, seconds: float, round_seconds: float, clients: int) -> None:
        """Find out what an idle server holds, then take rounds for so long, or until there is a fault."""
        async with self._sampled():
            known = await reference(self._server)
            # What is made when it is first needed, such as threads, is no leak.
            await self._round(min(round_seconds, 20.0), clients, known)
            idle = await self._settled(None)
            self.result.baseline = idle.counts
            end = self._seconds + seconds
            while self._seconds < end and not self.result.faults:
                await self._round(min(round_seconds, end - self._seconds), clients, known)
                self.result.quiet.append(await self._settled(idle.counts))
                self.result.rounds += 1
                self.result.seconds = self._seconds
                await asyncio.to_thread(self.result.save, self._folder)
        self.result.metrics = await asyncio.to_thread(self._server.metrics)
        await asyncio.to_thread(self.result.save, self._folder)

    def read_log(self, log: Path) -> None:
        """Count what the server has logged; what it should not have is a fault."""
        for line in log.read_text().splitlines():
            entry = json.loads(line)
            self.result.logged[entry["event"]] += 1
            if LOGGED.get(entry["event"], "") != entry.get("error"):
                self.result.faults.append(f"logged: {line}")

    def judge_memory(self) -> Memory:
        """How memory went; that it grows is a fault."""
        grown = memory(self.result.samples)
        if grown.growth_bytes > MOST_GROWTH_BYTES:
            megabytes = grown.growth_bytes / MEGABYTE
            self.result.faults.append(f"memory grew by {megabytes:.1f} MB in {grown.seconds:.0f} s")
        return grown

    async def _round(self, seconds: float, clients: int, known: Known) -> None:
        """Half of the clients listen, the others make trouble, one act after the other."""
        end = self._seconds + seconds

        async def client(number: int) -> None:
            kinds = LISTENERS if number % 2 else TROUBLEMAKERS
            order: list[str] = []
            while self._seconds < end and not self.result.faults:
                # Shuffled, so that every kind has its turn.
                order = order or self._chance.sample(sorted(kinds), len(kinds))
                await self._act(order.pop(), known)

        async with asyncio.TaskGroup() as tasks:
            for number in range(clients):
                tasks.create_task(client(number))

    async def _act(self, name: str, known: Known) -> None:
        chance = random.Random(self._chance.random())
        self.result.acts[name] += 1
        try:
            async with asyncio.timeout(ACT_SECONDS):
                if name in LISTENERS:
                    await self._listen(name, LISTENERS[name], chance, known)
                else:
                    await self._trouble(TROUBLEMAKERS[name], chance)
        except Exception as error:  # noqa: BLE001 - whatever it was, it is told with the result
            self.result.faults.append(f"{name}: {type(error).__name__}: {error}")

    async def _listen(
        self, name: str, listener: Listener, chance: random.Random, known: Known
    ) -> None:
        heard = await listener(self._server, chance, known)
        self.result.whole[name] += heard.whole
        self.result.lost_samples += heard.lost_samples
        if heard.lost_samples:
            self.result.faults.append(f"{name}: {heard.lost_samples} samples were lost")

    async def _trouble(self, troublemaker: Troublemaker, chance: random.Random) -> None:
        # A full server refuses, and one that had enough closes: both are as it should be.
        with contextlib.suppress(*_EXPECTED):
            await troublemaker(self._server, chance)

    async def _settled(self, idle: dict[str, int] | None) -> Held:
        """Wait until everything is as it was, or for the first time until nothing is held."""
        deadline = self._seconds + self._quiet_seconds
        while True:
            held = await self._look()
            wanted = idle or held.counts | dict.fromkeys(_NOTHING, 0)
            if held.counts == wanted and (idle or (await self._look()).counts == wanted):
                return held
            if self._seconds > deadline:
                left = {
                    name: f"{held.counts[name]} instead of {count}"
                    for name, count in wanted.items()
                    if held.counts[name] != count
                }
                self.result.faults.append(f"left behind: {left}")
                return held
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _look(self) -> Held:
        return await asyncio.to_thread(self._server.held, self._seconds)

    @contextlib.asynccontextmanager
    async def _sampled(self) -> AsyncIterator[None]:
        async def sample() -> None:
            while True:
                self.result.samples.append(await self._look())
                await asyncio.sleep(SAMPLE_SECONDS)

        sampling = asyncio.create_task(sample())
        try:
            yield
        finally:
            sampling.cancel()
            for error in await asyncio.gather(sampling, return_exceptions=True):
                if not isinstance(error, asyncio.CancelledError):
                    self.result.faults.append(f"the server could not be asked: {error}")
