"""A server by hand that speaks our protocol and does one thing wrong, for the load harness to notice.

Rule: real sockets; what it says is made of the text that it gets, so that a turn without a fault is whole.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
from msgspec.structs import replace

from orpheus_ws import messages as m
from orpheus_ws.loadtest import Figures, Plan
from orpheus_ws.loadtest.tally import Batch, Tally
from orpheus_ws.loadtest.worker import Share, Worker
from orpheus_ws.text import Segmenter
from orpheus_ws.trace import clock
from tests.client_peers import FaultySocket, faulty

CHUNK = 2048
CHARS_PER_SECOND = 15

Said = Sequence[m.ServerMessage]
Fault = Callable[[Said], Said]


def speech(context: str, text: str) -> list[m.ServerMessage]:
    """What a good server says: one segment, noise for as long as the text takes, and `done`."""
    segments = [*(segmenter := Segmenter()).feed(text), *segmenter.flush()]
    chars = len(" ".join(segments))
    count = chars * 24_000 // CHARS_PER_SECOND // CHUNK + 1
    noise = np.random.default_rng(len(text)).integers(-9000, 9000, (count, CHUNK)).astype("<i2")
    audio_ms = count * CHUNK / 24
    return [
        m.Started(context=context, handle=0, queue_ms=0.5),
        m.Segment(context=context, index=0, text=" ".join(segments), offset=0),
        *(
            m.Audio(context=context, seq=n, offset=n * CHUNK, pcm=noise[n].tobytes())
            for n in range(count)
        ),
        m.Done(context=context, reason="end", audio_ms=audio_ms, chars=chars),
    ]


def chunks(said: Said) -> list[int]:
    """Where the audio is among the messages."""
    return [n for n, message in enumerate(said) if isinstance(message, m.Audio)]


def changed(said: Said, at: int, **fields: object) -> list[m.ServerMessage]:
    """The same with other fields in one message."""
    copy = list(said)
    copy[at] = replace(copy[at], **fields)
    return copy


@contextlib.asynccontextmanager
async def speaking(fault: Fault = list, *, sockets: int = 8) -> AsyncIterator[str]:
    """A server that says every turn with the fault; its URL."""

    async def behave(socket: FaultySocket) -> None:
        while True:
            context = await socket.receive(m.End)
            text = "".join(
                message.text
                for message in socket.heard
                if isinstance(message, m.Text) and message.context == context
            )
            await socket.send(*fault(speech(context, text)))

    async with faulty(*[behave] * sockets) as server:
        yield server.url


async def listen(plan: Plan) -> tuple[Figures, Tally]:
    """Do a plan in this process, and what was heard."""
    batches: list[Batch] = []
    await Worker(plan, Share(0, 1), clock(), batches.append).run()
    tally = Tally(plan.objective_ms)
    for batch in batches:
        tally.add(batch)
    assert batches[-1].last
    assert batches[-1].fatal is None
    return tally.figures(), tally


async def behind(url: str, **options: object) -> Figures:
    """Two medium turns from a server, one after the other; what came of them."""
    plan = Plan(url=url, streams=1, utterances=2, ramp_seconds=0, sizes=(0, 1, 0), **options)  # type: ignore[arg-type]
    figures, _ = await listen(plan)
    return figures
