"""Clients that behave, one of each kind, and what they must hear: every sample.

Rule: what a text sounds like is known from the first time it is spoken, alone, on an idle server, and by
arithmetic how long that is. Whatever anybody hears later is compared with it sample by sample.
"""

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from typing import Final

from websockets.exceptions import InvalidStatus

from orpheus_ws import messages as m
from orpheus_ws.audio import SHORTEST_PAUSE
from orpheus_ws.engine import simulated
from orpheus_ws.engine.simulated_speech import spoken_frames
from orpheus_ws.surfaces import http_surfaces, surfaces
from orpheus_ws.tokens import SAMPLES_PER_FRAME
from tests import http_peers
from tests.conformance.speakers import client_of, speaking
from tests.harness import JSON, MSGPACK, Peer, Reachable, pcm, peer

TEXTS: Final = (
    "The quick brown fox jumps over the lazy dog.",
    "Good morning. Nice day.",
    "There are seven birds on the old roof. One of them sings. The others listen to it.",
    "Please hold the line.",
    "We could meet at noon, or a little later. Which of the two suits you better?",
)
PATIENT: Final = m.Segmentation(max_delay_ms=5000)
"""However late its messages come, a text is cut at its sentences alone."""
LATE_SECONDS: Final = 0.2
"""Half of what a surface waits for more of a sentence: a client that is held up for so long, by a machine that
others use, writes like one that pauses."""
REFUSED: Final = 503
RETRY_SECONDS: Final = 0.2
FRAMES_PER_CHAR: Final = simulated.Options().frames_per_char

Known = dict[str, bytes]
"""What each text sounds like."""
Listener = Callable[[Reachable, random.Random, Known], Awaitable["Heard"]]


class Heard:
    """What one client has heard: utterances that were whole, and samples that were missing or wrong."""

    def __init__(self) -> None:
        self.whole = 0
        self.lost_samples = 0

    def compare(self, heard: bytes, expected: bytes) -> None:
        """One utterance more."""
        if heard == expected:
            self.whole += 1
            return
        same = next(
            (n for n, (a, b) in enumerate(zip(heard, expected, strict=False)) if a != b),
            min(len(heard), len(expected)),
        )
        self.lost_samples += max(1, (max(len(heard), len(expected)) - same) // 2)


async def reference(server: Reachable) -> Known:
    """Speak each text alone. How much the engine says of one is checked by arithmetic."""
    known = {}
    async with peer(server.address.url) as connected:
        for number, text in enumerate(TEXTS):
            known[text] = await _native(connected, f"{number}", text)
            assert len(known[text]) == 2 * _samples(text)
    return known


def _samples(text: str) -> int:
    """Whole frames of each sentence, and the pause between two."""
    sentences = re.findall(r"[^.?!]+[.?!]", text)
    frames = sum(spoken_frames(each.strip(), FRAMES_PER_CHAR) for each in sentences)
    # A tone begins with a sample of silence, which counts as the pause's.
    return frames * SAMPLES_PER_FRAME + (len(sentences) - 1) * (SHORTEST_PAUSE - 1)


async def _native(connected: Peer, context: str, text: str) -> bytes:
    await connected.send(m.Open(context=context, segment=PATIENT, lead_ms=10_000))
    await connected.say(context, text)
    received = await connected.utterance(context)
    assert isinstance(received[-1], m.Done), received[-1]
    return pcm(received)


def native(subprotocol: str) -> Listener:
    """Somebody who speaks a few times on one socket, and interrupts himself now and then."""

    async def listen(server: Reachable, chance: random.Random, known: Known) -> Heard:
        heard = Heard()
        async with peer(server.address.url, subprotocol) as connected:
            for turn in range(chance.randint(1, 4)):
                text = chance.choice(TEXTS)
                # The first is heard whole.
                if turn and chance.random() < 0.4:
                    await _interrupt(connected, f"{turn}", text, known[text])
                else:
                    heard.compare(await _native(connected, f"{turn}", text), known[text])
        return heard

    return listen


async def _interrupt(connected: Peer, context: str, text: str, expected: bytes) -> None:
    """What came before the interruption was right, and nothing comes after it."""
    await connected.send(m.Open(context=context, segment=PATIENT, lead_ms=10_000))
    await connected.say(context, text)
    await connected.wait_for(m.Started)
    await connected.send(m.Cancel(context=context))
    received = await connected.utterance(context)
    assert expected.startswith(pcm(received))
    assert isinstance(received[-1], m.Cancelled | m.Done)
    assert not any(isinstance(message, m.Audio) for message in await connected.fence())


def surface(name: str) -> Listener:
    """Somebody with the protocol of others."""

    async def listen(server: Reachable, chance: random.Random, known: Known) -> Heard:
        heard = Heard()
        text = chance.choice(TEXTS)
        async with speaking(server, name) as speaker:
            for _ in range(2 if client_of(name).warm else 1):
                begun = time.monotonic()
                await speaker.write(text, complete=True)
                late = time.monotonic() - begun > LATE_SECONDS
                said = await speaker.rest()
                if late and len(said) > len(known[text]):
                    # A text whose words come so late is rightly spoken in more pieces, with pauses between.
                    heard.whole += 1
                else:
                    heard.compare(said, known[text])
        return heard

    return listen


def request(name: str) -> Listener:
    """Somebody with a request over HTTP."""

    async def listen(server: Reachable, chance: random.Random, known: Known) -> Heard:
        heard = Heard()
        text = chance.choice(TEXTS)
        async with http_peers.calling(server) as caller:
            while await http_peers.ask(caller, name, text) == REFUSED:
                await caller.rest()
                await asyncio.sleep(RETRY_SECONDS)
            heard.compare(await caller.rest(), known[text])
        return heard

    return listen


def admitted(listener: Listener) -> Listener:
    """The same, who comes again when the server is full: that is no fault."""

    async def listen(server: Reachable, chance: random.Random, known: Known) -> Heard:
        while True:
            state = chance.getstate()
            try:
                return await listener(server, chance, known)
            except InvalidStatus as error:
                if error.response.status_code != REFUSED:
                    raise
                chance.setstate(state)
                await asyncio.sleep(RETRY_SECONDS)

    return listen


LISTENERS: Final[dict[str, Listener]] = {
    "msgpack": admitted(native(MSGPACK)),
    "json": admitted(native(JSON)),
    **{each.name: admitted(surface(each.name)) for each in surfaces() if each.name != "native"},
    **{each.name: request(each.name) for each in http_surfaces()},
}
