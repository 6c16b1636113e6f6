"""Who is taken for somebody that does not read, with time and network as arguments."""

from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws.audio import LARGEST_PORTION, Player
from orpheus_ws.server.receipts import (
    LONGEST_ROUND_TRIP,
    RECEIPT_SECONDS,
    TRIAL_SECONDS,
    ReceiptWindow,
    most_unread,
    receipt_every,
    unread_when_held,
)
from orpheus_ws.tokens import FRAME_SECONDS

NEGLIGIBLE = 1e-6
messages = st.floats(FRAME_SECONDS / 2, LARGEST_PORTION)
leads = st.floats(0.2, 10.0)


def utter(window: ReceiptWindow, seconds: float, lead: float) -> float | None:
    """Send a message to somebody with this lead; what a receipt is then asked for."""
    return window.ask() if window.sent(seconds, receipt_every(lead)) else None


@given(st.lists(messages, max_size=200), leads)
def test_who_never_answers_is_sent_everything(sizes: list[float], lead: float) -> None:
    """A socket without receipts is asked for few, never held back, and nothing of it is lost."""
    window = ReceiptWindow()
    asked = [utter(window, size, lead) for size in sizes]
    assert sum(each is not None for each in asked) <= 1 + TRIAL_SECONDS / RECEIPT_SECONDS
    assert not window.behind(most_unread(lead))
    assert not window.behind(0.0)
    assert window.lose() == 0.0


@given(st.lists(st.tuples(messages, st.integers(0, 8), st.booleans()), max_size=300), leads)
def test_what_who_is_held_back_has_unread(
    steps: list[tuple[float, int, bool]], lead: float
) -> None:
    """However a client reads and its answers straggle, what stops is only what it need not have yet.

    It has its lead but a second before it then, unless an answer is under way; and reading on is enough to
    be sent more.
    """
    window, most = ReceiptWindow(), most_unread(lead)
    sent = heard = 0.0
    stream: deque[tuple[float, float | None]] = deque()  # up to where, and the receipt that is due
    answers: deque[float] = deque()

    def pongs() -> None:
        while answers:
            window.read(answers.popleft())

    for size, reads, delivered in steps:
        if window.behind(most):
            assert answers or sent - heard >= unread_when_held(lead) - NEGLIGIBLE
            ask = window.ask() if window.owes else None
        else:
            ask = utter(window, size, lead)
            sent += size
        stream.append((sent, ask))
        for _ in range(min(reads, len(stream))):
            heard, receipt = stream.popleft()
            if receipt is not None:
                answers.append(receipt)
        if delivered:
            pongs()
    answers += [receipt for _, receipt in stream if receipt is not None]
    pongs()
    assert not window.behind(most)
    if window.owes:
        window.read(window.ask())
    assert window.lose() == 0.0


@given(st.integers(0, 40), st.lists(messages, min_size=300, max_size=300), leads)
def test_who_turns_slow_at_the_worst_moment_has_as_much_unread(
    prompt: int, sizes: list[float], lead: float
) -> None:
    """Somebody who reads everything at once, and stops just before a question, is held back no earlier."""
    window, most = ReceiptWindow(), most_unread(lead)
    sent = heard = 0.0
    stopped = False
    for number, size in enumerate(sizes):
        if window.behind(most):
            break
        position = utter(window, size, lead)
        stopped = stopped or (position is not None and number > prompt)
        sent += size
        if not stopped:
            heard = sent
            if position is not None:
                window.read(position)
    assert stopped
    assert sent - heard >= unread_when_held(lead) - NEGLIGIBLE


@given(st.lists(messages, max_size=200), leads, leads)
def test_who_reads_at_once_is_asked_seldom_and_never_held_back(
    sizes: list[float], lead: float, other: float
) -> None:
    """A receipt for a second of audio at most, and for two at long leads; another lead may follow."""
    window = ReceiptWindow()
    asked = 0
    for size in sizes:
        if (position := utter(window, size, lead)) is not None:
            asked += 1
            window.read(position)
        assert not window.behind(most_unread(other))
    assert asked <= 1 + sum(sizes) / receipt_every(lead)
    assert receipt_every(lead) == pytest.approx(min(2.0, max(1.0, lead)))


@given(st.lists(messages, min_size=1, max_size=40), st.lists(messages, min_size=200), leads)
def test_what_leaves_after_the_last_reading(
    before: list[float], after: list[float], lead: float
) -> None:
    """Of what is sent to somebody who reads no more, all but a message fits the window; all is lost."""
    window, most = ReceiptWindow(), most_unread(lead)
    for size in before:
        if (position := utter(window, size, lead)) is not None:
            window.read(position)
    wasted = 0.0
    for size in after:
        if window.behind(most):
            break
        utter(window, size, lead)
        wasted += size
    assert wasted <= most + LARGEST_PORTION
    if window.owes:
        window.ask()
    lost = window.lose()
    assert lost >= wasted - NEGLIGIBLE
    assert lost <= most + LARGEST_PORTION + NEGLIGIBLE
    assert window.lose() == 0.0


class _Listening(NamedTuple):
    """A client that reads a message when it is time to play it, and a network."""

    lead: float
    prebuffer: float
    one_way: float
    drift: float
    """How much slower than the server's its clock is."""


def _starved(listening: _Listening, seconds: float, most: float) -> float:
    """Seconds for which it was silent. The time is virtual; a step is a frame."""
    window, player = ReceiptWindow(), Player()
    now = starved = 0.0
    wire: deque[tuple[float, float | None]] = deque()  # when a frame arrives, and its receipt
    questions: deque[tuple[float, int, float]] = (
        deque()
    )  # with no frame of their own, but after some
    pongs: deque[tuple[float, float]] = deque()
    played_until = 0.0
    frames, position, heard = int(seconds / FRAME_SECONDS), 0, 0
    while heard < frames:
        now += FRAME_SECONDS / 4
        while pongs and pongs[0][0] <= now:
            window.read(pongs.popleft()[1])
        # The server: a frame when there is room in the lead, and in the window.
        while (
            position < frames
            and player.in_hand(now) + FRAME_SECONDS <= listening.lead
            and not window.behind(most)
        ):
            player.receive(FRAME_SECONDS, now)
            wire.append((now + listening.one_way, utter(window, FRAME_SECONDS, listening.lead)))
            position += 1
        if window.behind(most) and window.owes:
            questions.append((now + listening.one_way, position, window.ask()))
        # The client: a frame when the one before has been played.
        while wire and wire[0][0] <= now and (heard == 0 or played_until <= now):
            arrived, receipt = wire.popleft()
            if heard == 0:
                played_until = arrived + listening.prebuffer
            late = max(0.0, arrived - played_until)
            starved += late
            played_until += late + FRAME_SECONDS * (1 + listening.drift)
            heard += 1
            if receipt is not None:
                pongs.append((now + listening.one_way, receipt))
        while questions and questions[0][0] <= now and questions[0][1] <= heard:
            pongs.append((now + listening.one_way, questions.popleft()[2]))
    return starved


listenings = st.builds(
    _Listening,
    lead=leads,
    prebuffer=st.floats(0.0, 0.5),
    one_way=st.floats(0.0, LONGEST_ROUND_TRIP / 2),
    drift=st.floats(-0.0005, 0.0005),
)


@given(listenings, st.floats(1.0, 20.0))
def test_who_reads_what_is_played_hears_no_gap_of_it(listening: _Listening, seconds: float) -> None:
    """With deep buffers, a long way and a slow or fast clock, it is as silent as without the window."""
    assert _starved(listening, seconds, most_unread(listening.lead)) == _starved(
        listening, seconds, float("inf")
    )


def test_the_model_of_a_listener_can_starve() -> None:
    """With a window that is too small, the same listener is silent now and then."""
    far = _Listening(lead=2.0, prebuffer=0.1, one_way=0.5, drift=0.0)
    assert _starved(far, 10.0, 0.5) > 1.0
