"""What can ail a server, and the alerts that it must raise.

Rule: the fault is real, inside a server that serves real sockets; no metric is written by a test.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from orpheus_ws import client
from orpheus_ws import messages as m
from orpheus_ws.server import Server
from tests.certificates import Authority
from tests.harness import peer
from tests.server_peers import SENTENCE
from tests.test_server_slow import ENDLESS, SMALL_BUFFER, fall_silent

PAUSE_SECONDS: Final = 0.1
"""Between attempts, so that a dozen servers leave two cores some time."""


HEALTHY: Final = ("engine.name=tests.reporting_engine", "engine.options.step_seconds=0.005")
"""As long as its capacity was measured, which a manifest has to say."""
TIMED: Final = {
    "OrpheusFirstByteLate",
    "OrpheusUnderruns",
    "OrpheusSpeechSlow",
    "OrpheusContextsWaiting",
    "OrpheusSegmentsStalled",
    "OrpheusCodecSaturated",
    "OrpheusCodecStuck",
    "OrpheusTargetMissing",
}
"""What a machine that is busy with other things may raise as well, since alerts fire here without waiting: a scrape
that is not answered within a second is one."""


def _no_files(_folder: Path) -> tuple[str, ...]:
    return ()


class Ill(NamedTuple):
    """Settings that make a server ill, what its clients do, and what fires. They never stop."""

    settings: tuple[str, ...]
    drive: Callable[[Server], Awaitable[None]]
    alerts: frozenset[str]
    files: Callable[[Path], tuple[str, ...]] = _no_files
    """Writes what it needs into a folder, and returns settings that name it."""


async def speak(started: Server, pause: float = PAUSE_SECONDS) -> None:
    """Say a sentence and hear it to its end, whatever that is, over and over."""
    async with peer(started.address.url) as connected:
        number = 0
        while True:
            await connected.say(f"{number}", SENTENCE)
            await connected.utterance(f"{number}")
            await asyncio.sleep(pause)
            number += 1


async def four_speak(started: Server) -> None:
    """Four clients without a pause."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(speak(started, 0.0))


async def converse(started: Server) -> None:
    """Two clients with our own SDK; every third utterance is interrupted."""

    async def one() -> None:
        async with client.connect(started.address.url) as speaker:
            number = 0
            while True:
                utterance = speaker.speak(SENTENCE, lead_ms=10_000)
                async for _ in utterance:
                    if number % 3 == 2:
                        await utterance.cancel()
                        break
                number += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(one())


async def say_once(started: Server) -> None:
    """Say something that never comes to an end, and stay."""
    async with peer(started.address.url) as connected:
        await connected.say("a", SENTENCE)
        await asyncio.Event().wait()


async def stay(_started: Server) -> None:
    """Do nothing."""
    await asyncio.Event().wait()


async def be_refused(started: Server) -> None:
    """Be refused, over and over."""
    while True:
        with contextlib.suppress(InvalidStatus):
            async with connect(started.address.url):
                pass
        await asyncio.sleep(PAUSE_SECONDS)


async def fill(started: Server) -> None:
    """Take the only slot, and have others refused."""
    async with peer(started.address.url):
        await be_refused(started)


async def kill(started: Server) -> None:
    """Speak until it dies, and be refused by what is left."""
    with contextlib.suppress(Exception):
        await speak(started)
    await be_refused(started)


async def interrupt(started: Server) -> None:
    """Hear the first sound of a long speech, and have enough of it, over and over."""
    async with peer(started.address.url) as connected:
        number = 0
        while True:
            await connected.say(f"{number}", SENTENCE)
            await connected.wait_for(m.Audio)
            await connected.send(m.Cancel(context=f"{number}"))
            await connected.utterance(f"{number}")
            await asyncio.sleep(PAUSE_SECONDS)
            number += 1


async def read_nothing(started: Server) -> None:
    """Ask for audio and take none until the server has enough, over and over."""
    while True:
        async with peer(started.address.url, receive_buffer=SMALL_BUFFER) as slow:
            (connection,) = started._connections
            await fall_silent(slow)
            while connection in started._connections:  # noqa: ASYNC110 - nobody signals this
                await asyncio.sleep(PAUSE_SECONDS)
            slow.socket.transport.abort()


async def drain(started: Server) -> None:
    """Drain, and do not go."""
    await started.drain()
    await asyncio.Event().wait()


def short_lived(folder: Path) -> tuple[str, ...]:
    """A certificate that nobody renews, and a file of keys."""
    authority = Authority(folder)
    authority.issue(days=5)
    keys = folder / "keys.toml"
    keys.write_text('[alice]\nkeys = ["secret"]\n', encoding="utf-8")
    return (*authority.settings, f"auth.file={keys}")


async def mistype(started: Server) -> None:
    """Make a mistake in the file of keys, and go home."""
    await asyncio.to_thread(Path(started.config.auth.file).write_text, "[alice\n")
    started.reloading.ask()
    await asyncio.Event().wait()


def _all_but_first(fault: str) -> tuple[str, ...]:
    """A fault that spares the server's own test word."""
    requests = ",".join(map(str, range(1, 5000)))
    return f"engine.options.fault={fault}", f"engine.options.fault_requests={requests}"


ILLS: Final = {
    "none": Ill(HEALTHY, speak, frozenset()),
    "bad-ids": Ill(("engine.options.fault=bad_ids",), speak, frozenset({"OrpheusInvalidTokens"})),
    "raises": Ill(_all_but_first("raises"), speak, frozenset({"OrpheusContextsFailing"})),
    "stalls": Ill(_all_but_first("stalls"), say_once, frozenset({"OrpheusSegmentsStalled"})),
    "dies": Ill(
        _all_but_first("dies"), kill, frozenset({"OrpheusEngineDead", "OrpheusHandshakesRefused"})
    ),
    "codec-dies": Ill(
        ("codec.name=tests.mortal_codec",),
        kill,
        frozenset({"OrpheusCodecDead", "OrpheusHandshakesRefused"}),
    ),
    "codec-hangs": Ill(
        ("codec.name=tests.stuck_codec",),
        say_once,
        frozenset({"OrpheusCodecStuck"}),
    ),
    # A step takes longer than the speech that comes of it: clients who come into step would let a faster one rest.
    "codec-busy": Ill(
        ("codec.options.step_seconds=0.9",), four_speak, frozenset({"OrpheusCodecSaturated"})
    ),
    "engine-slow": Ill(
        ("engine.options.step_seconds=0.2",),
        four_speak,
        frozenset({"OrpheusFirstByteLate", "OrpheusUnderruns", "OrpheusSpeechSlow"}),
    ),
    "engine-hangs": Ill(
        ("engine.options.step_seconds=1.5",), speak, frozenset({"OrpheusContextsWaiting"})
    ),
    "overcommitted": Ill(
        ("engine.name=tests.reporting_engine", "engine.options.paused=2"),
        stay,
        frozenset({"OrpheusEngineOvercommitted"}),
    ),
    "full": Ill(
        ("engine.capacity=1",),
        fill,
        frozenset({"OrpheusCapacityNearlyUsed", "OrpheusHandshakesRefused"}),
    ),
    "oversubscribed": Ill(
        (
            "engine.capacity=1",
            "engine.options.step_seconds=0.05",
            "server.oversubscription=4",
            "server.max_queue_ms=200",
        ),
        four_speak,
        frozenset({"OrpheusTurnsAwaited", "OrpheusTurnsMissed", "OrpheusCapacityNearlyUsed"}),
    ),
    "guessed": Ill(HEALTHY, stay, frozenset({"OrpheusCapacityNotMeasured"})),
    "simulated": Ill((), stay, frozenset({"OrpheusEngineSimulated"})),
    "rejected": Ill(
        ("auth.keys.alice=secret",), be_refused, frozenset({"OrpheusHandshakesRejected"})
    ),
    "neglected": Ill(
        (),
        mistype,
        frozenset({"OrpheusReloadFailed", "OrpheusCertificateExpires", "OrpheusEngineSimulated"}),
        short_lived,
    ),
    "barge-in": Ill(
        ("engine.options.fault=never_stops",), interrupt, frozenset({"OrpheusOrphanedAudio"})
    ),
    "slow-readers": Ill(ENDLESS, read_nothing, frozenset({"OrpheusSlowConsumers"})),
    "draining": Ill(("server.drain_seconds=0.1",), drain, frozenset({"OrpheusDrainStuck"})),
}
