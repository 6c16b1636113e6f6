"""The virtual player: what a listener with a small buffer hears."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws.audio import MOST_FRAMES, Player, portion
from orpheus_ws.tokens import FRAME_SECONDS


def test_player_prebuffers_80_ms() -> None:
    """The first chunk is played 80 ms after it came, so what comes before it is over is in time."""
    player = Player()
    player.receive(0.1, 50.0)
    player.receive(0.1, 50.179)
    assert (player.underruns, player.starved_seconds) == (0, 0.0)
    player.receive(0.1, 50.379)
    player.receive(0.1, 50.479)
    assert player.underruns == 1
    assert player.starved_seconds == pytest.approx(0.099)


def test_player_prebuffer_can_be_chosen() -> None:
    """With no prebuffer the same second chunk is an underrun."""
    player = Player(prebuffer=0.0)
    player.receive(0.1, 50.0)
    player.receive(0.1, 50.179)
    assert player.underruns == 1
    assert player.starved_seconds == pytest.approx(0.079)


@pytest.mark.parametrize(("late", "underruns"), [(-0.01, 0), (0.0099, 0), (0.0101, 1), (2.0, 1)])
def test_player_tolerates_10_ms(late: float, underruns: int) -> None:
    """Starvation of more than 10 ms is an underrun; of less it is not, nor are its seconds."""
    player = Player()
    player.receive(1.0, 0.0)
    player.receive(1.0, 1.08 + late)
    assert player.underruns == underruns
    assert player.starved_seconds == pytest.approx(late * underruns)


def test_player_starts_at_once_after_an_underrun() -> None:
    """Playing goes on with the chunk that ends a starvation; every further gap counts by itself."""
    player = Player()
    for now in (0.0, 1.0, 2.0, 3.0):
        player.receive(0.5, now)
    assert player.underruns == 3
    # Dry at 0.58, 1.5 and 2.5.
    assert player.starved_seconds == pytest.approx(0.42 + 0.5 + 0.5)


def test_player_forgives_what_came_early() -> None:
    """Audio that came ahead of time is played later: a long gap after it is no underrun."""
    player = Player()
    for _ in range(100):
        player.receive(0.1, 0.0)
    player.receive(0.1, 10.0)
    assert player.underruns == 0


@given(chunks=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1))
@settings(deadline=None)
def test_player_is_its_definition(chunks: list[tuple[int, int]]) -> None:
    """For any arrivals, underruns are the gaps over 10 ms of a player simulated step by step.

    Time is in units of 1/1024 s, in which all sums are exact.
    """
    unit = 1 / 1024
    player = Player(prebuffer=82 * unit)
    underruns = starved = clock = played_until = 0
    for index, (seconds, wait) in enumerate(chunks):
        clock += wait
        player.receive(seconds * unit, clock * unit)
        start = clock + 82 if index == 0 else max(played_until, clock)
        gap = start - played_until if index else 0
        if gap > 10.24:
            underruns += 1
            starved += gap
        played_until = start + seconds
    assert player.underruns == underruns
    assert player.starved_seconds == pytest.approx(starved * unit)


def test_player_in_hand() -> None:
    """In hand is what was received and not yet played: never more than was received."""
    player = Player()
    assert player.in_hand(0.0) == 0.0
    player.receive(1.0, 0.0)
    assert player.in_hand(0.58) == pytest.approx(0.5)
    assert player.in_hand(1.08) == pytest.approx(0.0)
    assert player.in_hand(9.0) == 0.0
    player.receive(1.0, 9.0)
    assert player.in_hand(9.25) == pytest.approx(0.75)


@pytest.mark.parametrize("now", [0.0, 0.04, 0.08])
def test_player_in_hand_while_it_waits(now: float) -> None:
    """Until the prebuffer is over nothing is played, so all that was received is in hand."""
    player = Player()
    player.receive(1.0, 0.0)
    assert player.in_hand(now) == pytest.approx(1.0)


@given(
    chunks=st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=20),
    lead=st.floats(0.2, 10),
)
def test_player_knows_when_there_is_room(chunks: list[tuple[float, float]], lead: float) -> None:
    """After waiting `seconds_until(lead)` no more than the lead is in hand, and not sooner."""
    player = Player()
    now = 0.0
    for wait, seconds in chunks:
        now += wait
        player.receive(seconds, now)
        surplus = player.seconds_until(lead, now)
        assert player.in_hand(now + surplus) <= lead + 1e-9
        if surplus > 0:
            assert player.in_hand(now + surplus * 0.9) > lead - 1e-9


# Portions -----------------------------------------------------------------------------------------

SECONDS = st.floats(0, 12)


@given(in_hand=SECONDS, lead=st.floats(0.2, 10), group_lead=SECONDS)
def test_portions_keep_their_bounds(in_hand: float, lead: float, group_lead: float) -> None:
    """A portion is 1…8 frames; what is waited for is at most a quarter of what is in hand."""
    asked = portion(in_hand, lead, group_lead)
    at_least, at_most, patience = asked.at_least, asked.at_most, asked.patience
    assert 1 <= at_least <= at_most <= MOST_FRAMES
    assert at_least == 1 or at_least * FRAME_SECONDS <= in_hand / 4
    assert patience <= in_hand / 2


def heard_at(arrivals: list[float], lead: float, group_lead: float) -> float:
    """When a listener has heard everything whose engine says its frames at these times."""
    player, now, sent = Player(), 0.0, 0
    while sent < len(arrivals):
        next_up = portion(player.in_hand(now), lead, group_lead).at_least
        now += player.seconds_until(lead - next_up * FRAME_SECONDS, now)
        wanted = portion(player.in_hand(now), lead, group_lead)
        last = min(sent + wanted.at_least, len(arrivals)) - 1
        # When all are there, or time is over and at least one is.
        now = max(now, min(arrivals[last], max(now + wanted.patience, arrivals[sent])))
        ready = sum(arrival <= now for arrival in arrivals[sent : sent + wanted.at_most])
        player.receive(ready * FRAME_SECONDS, now)
        sent += ready
    return now + player.in_hand(now)


@given(
    bursts=st.lists(st.tuples(st.integers(1, 40), st.floats(0, 6)), min_size=1, max_size=8),
    pace=st.floats(0.02, 0.2),
    lead=st.floats(0.2, 10),
    group_lead=st.floats(0.1, 2),
)
def test_grouping_starves_nobody(
    bursts: list[tuple[int, float]], pace: float, lead: float, group_lead: float
) -> None:
    """However an engine stalls, a listener hears the end no later than without grouping."""
    gaps = [gap for frames, stall in bursts for gap in (*[pace] * frames, stall)]
    arrivals = list(itertools.accumulate(gaps))
    alone = heard_at(arrivals, lead, 0.0)
    assert heard_at(arrivals, lead, group_lead) <= alone + 1e-6


@given(in_hand=SECONDS, lead=st.floats(0.2, 10), group_lead=SECONDS)
def test_without_a_lead_every_frame_is_due_at_once(
    in_hand: float, lead: float, group_lead: float
) -> None:
    """Below the group lead, or where grouping is off, no frame waits for another."""
    assert portion(in_hand, lead, 0.0).at_least == 1
    if in_hand < group_lead:
        assert portion(in_hand, lead, group_lead).at_least == 1


@given(in_hand=SECONDS, lead=st.floats(0.2, 10))
def test_portions_stay_within_the_lead(in_hand: float, lead: float) -> None:
    """No more than the lead is asked for, save the one frame without which nothing would move."""
    frames = portion(in_hand, lead, 0.0).at_most
    assert frames == 1 or in_hand + frames * FRAME_SECONDS <= lead + 1e-9


@pytest.mark.parametrize(
    ("in_hand", "frames"), [(0.0, 1), (0.99, 1), (1.0, 2), (1.5, 4), (2.0, 5), (9.0, 8)]
)
def test_portions_grow_with_the_lead(in_hand: float, frames: int) -> None:
    """With a second in hand two frames travel together, with two seconds five."""
    assert portion(in_hand, 10.0, 1.0).at_least == frames
