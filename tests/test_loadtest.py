"""The load harness over real sockets: what is wrong with a server's audio is noticed, by its name."""

import asyncio

import pytest

from orpheus_ws import messages as m
from orpheus_ws.loadtest import Plan
from orpheus_ws.loadtest.tally import Batch
from orpheus_ws.loadtest.worker import Share, Worker
from orpheus_ws.trace import clock
from tests.client_peers import FaultySocket, faulty, refusing
from tests.load_peers import CHUNK, Fault, Said, behind, changed, chunks, listen, speaking

SLOW = 0.15
"""Seconds that a slow server takes for a turn."""
QUICK = {"traffic": "steady", "words_per_second": None}


def audio(said: Said, at: int) -> m.Audio:
    """One of the chunks."""
    message = said[at]
    assert isinstance(message, m.Audio)
    return message


def drop(said: Said) -> Said:
    """A chunk is missing."""
    return [*said[:6], *said[7:]]


def renumbered(said: Said) -> Said:
    """A chunk is missing, and only the offsets tell."""
    copy = drop(said)
    for at in chunks(copy)[4:]:
        copy = changed(copy, at, seq=audio(copy, at).seq - 1)
    return copy


def repeat(said: Said) -> Said:
    """A chunk comes twice."""
    return [*said[:6], said[5], *said[6:]]


def same_again(said: Said) -> Said:
    """A chunk has the samples of the one before, and its own numbers."""
    return changed(said, 6, pcm=audio(said, 5).pcm)


def go_silent(said: Said) -> Said:
    """Nothing is heard for 1.7 s in the middle."""
    for at in range(8, 28):
        said = changed(said, at, pcm=bytes(2 * CHUNK))
    return said


def all_silent(said: Said) -> Said:
    """Nothing is heard at all; the turn is as long as it should be."""
    for at in chunks(said):
        said = changed(said, at, pcm=bytes(2 * CHUNK))
    return said


def odd(said: Said) -> Said:
    """A byte is missing."""
    return changed(said, 6, pcm=audio(said, 6).pcm[:-1])


def stop_speaking(said: Said) -> Said:
    """Nothing more comes, not even `done`."""
    return said[:1]


def end_early(said: Said) -> Said:
    """`done` claims more audio than there was."""
    return [*said[:-4], said[-1]]


def leave_out_text(said: Said) -> Said:
    """The last words are not spoken, and `done` says so."""
    done = said[-1]
    assert isinstance(done, m.Done)
    return changed(said, -1, chars=done.chars - 12)


def run_out(said: Said) -> Said:
    """The model did not come to an end."""
    return changed(said, -1, reason="length")


def hurry(said: Said) -> Said:
    """Less audio than anybody could say the text in; `done` knows."""
    return [*changed(said[:8], 0), changed(said, -1, audio_ms=6 * CHUNK / 24)[-1]]


def go_on(said: Said) -> Said:
    """`done` claims less audio than there was."""
    done = said[-1]
    assert isinstance(done, m.Done)
    return changed(said, -1, audio_ms=done.audio_ms - 20)


def speak_after_done(said: Said) -> Said:
    """A chunk comes after the end."""
    return [*said, said[-2]]


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (drop, "dropped_chunk"),
        (renumbered, "dropped_chunk"),
        (repeat, "duplicated_chunk"),
        (same_again, "duplicated_chunk"),
        (go_silent, "silence"),
        (all_silent, "silence"),
        (odd, "odd_byte"),
        (end_early, "early_end"),
        (leave_out_text, "early_end"),
        (run_out, "early_end"),
        (hurry, "early_end"),
        (go_on, "surplus_audio"),
    ],
)
async def test_faults_are_named(fault: Fault, name: str) -> None:
    """Each fault of the audio is found in every turn that has it, and no other one is."""
    async with speaking(fault) as url:
        figures = await behind(url, **QUICK)
    assert figures.faults == {name: 2}
    assert (figures.done, figures.failures) == (2, {})


async def test_no_fault() -> None:
    """A server that does everything right is not accused."""
    async with speaking() as url:
        # Nobody is too late for this player.
        figures = await behind(url, prebuffer_ms=60_000, **QUICK)
    assert (figures.faults, figures.failures, figures.underruns) == ({}, {}, 0)
    assert figures.first_byte_ms is not None
    assert figures.first_byte_ms.count == 2


async def test_words_as_they_are_written() -> None:
    """Text that comes in words is the same text; latencies begin where the first sentence is complete."""
    async with speaking() as url:
        figures, tally = await listen(
            Plan(url=url, streams=1, utterances=2, ramp_seconds=0, sizes=(0, 1, 0), traffic="steady",
                 words_per_second=400)
        )  # fmt: skip
    assert figures.faults == {}
    for turn in tally.turns:
        assert turn.first_byte_ms is not None
        assert turn.sounded is not None
        assert turn.first_byte_ms < (turn.sounded - turn.begun) * 1000


async def test_stall() -> None:
    """A turn in which nothing comes any more is given up, cancelled and counted, and the next begins."""
    async with speaking(stop_speaking) as url:
        figures = await behind(url, stall_seconds=0.2, **QUICK)
    assert (figures.faults, figures.failures) == ({"stall": 2}, {"stall": 2})
    assert (figures.failed, figures.first_byte_ms) == (2, None)


async def test_audio_after_the_end() -> None:
    """A chunk after `done` is noticed, though its turn is over."""
    async with speaking(speak_after_done) as url:
        figures = await behind(url, **QUICK)
    # Nobody waits for what comes after the last turn of all.
    assert figures.faults.get("late_audio", 0) >= 1
    assert set(figures.faults) == {"late_audio"}


async def test_errors_are_counted() -> None:
    """An error that the server answers is a failure by its code."""

    def fail(said: Said) -> Said:
        context = said[0].context  # type: ignore[union-attr]
        return [
            m.Error(context=context, code="engine_failed", message="x", retryable=True, fatal=False)
        ]

    async with speaking(fail) as url:
        figures = await behind(url, **QUICK)
    assert (figures.failed, figures.failures) == (2, {"engine_failed": 2})


async def test_a_lost_socket_is_replaced() -> None:
    """A socket lost in a turn fails that turn alone; the next one has a fresh socket."""

    async def lose(socket: FaultySocket) -> None:
        await socket.receive(m.End)
        await socket.lose()

    async def speak(socket: FaultySocket) -> None:
        while True:
            await socket.speak()

    async with faulty(lose, speak) as server:
        figures = await behind(server.url, **QUICK)
    assert figures.failures == {"disconnected": 1}
    assert figures.done == 1
    assert figures.connect_ms is not None
    assert figures.connect_ms.count == 2


async def test_barge_in() -> None:
    """A listener who interrupts hears no more; how long that takes is measured."""

    async def obey(socket: FaultySocket) -> None:
        while True:
            context = await socket.receive(m.End)
            pcm = b"\0\x20" * CHUNK
            await socket.send(m.Audio(context=context, seq=0, offset=0, pcm=pcm))
            await socket.receive(m.Cancel)
            await socket.send(m.Cancelled(context=context, sent_ms=CHUNK / 24))

    async with faulty(obey) as server:
        plan = Plan(url=server.url, streams=1, utterances=2, ramp_seconds=0, sizes=(1, 0, 0),
                    traffic="steady", words_per_second=None, barge_in=1)  # fmt: skip
        figures, _ = await listen(plan)
    assert (figures.cancelled, figures.faults, figures.failures) == (2, {}, {})
    assert figures.cancel_ms is not None
    assert figures.cancel_ms.count == 2


async def test_open_loop() -> None:
    """Turns begin when they are to: one that waits for a socket has the wait in its latency."""

    async def slowly(socket: FaultySocket) -> None:
        while True:
            context = await socket.receive(m.End)
            await asyncio.sleep(SLOW)
            pcm = b"\0\x20" * CHUNK
            await socket.send(
                m.Audio(context=context, seq=0, offset=0, pcm=pcm),
                m.Done(context=context, reason="end", audio_ms=CHUNK / 24, chars=1),
            )

    async with faulty(slowly) as server:
        plan = Plan(url=server.url, streams=1, rate=100, utterances=5, ramp_seconds=0,
                    words_per_second=None)  # fmt: skip
        _, tally = await listen(plan)
    turns = sorted(tally.turns, key=lambda turn: turn.begun)
    assert len(turns) == 5
    for number, turn in enumerate(turns):
        assert turn.sounded is not None
        assert turn.first_byte_ms == pytest.approx((turn.sounded - turn.begun) * 1000)
        # It has waited for all that began before it.
        assert turn.sounded - turns[0].begun >= SLOW * (number + 1)


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_what_makes_no_sense_ends_the_run(status: int) -> None:
    """A wrong key or path is said at once, not tried again."""
    said: list[Batch] = []
    async with refusing(status) as (url, answered):
        plan = Plan(url=url, streams=1, ramp_seconds=0)
        await Worker(plan, Share(0, 1), clock(), said.append).run()
    assert said[-1].fatal is not None
    assert str(status) in said[-1].fatal
    assert answered == [status]


async def test_a_full_server_is_asked_again() -> None:
    """Refusals are counted by reason and are no failure."""
    full = '{"error":"full","message":"all streams are in use"}'
    said: list[Batch] = []

    def refused() -> int:
        return sum(batch.refused.get("full", 0) for batch in said)

    def report(batch: Batch) -> None:
        said.append(batch)
        if refused() >= 2:
            worker.stop()

    async with refusing(503, body=full) as (url, answered):
        plan = Plan(url=url, streams=1, ramp_seconds=0, seconds=600)
        worker = Worker(plan, Share(0, 1), clock(), report)
        await worker.run()
    # One more may have been asked for when it was told to stop.
    assert 2 <= refused() <= len(answered) <= refused() + 1
    assert not any(batch.failures for batch in said)
