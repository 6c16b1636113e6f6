"""Context: the table of states is whole, and what an ended context says is nothing."""

from collections import deque

import pytest

from orpheus_ws import messages as m
from orpheus_ws.context import TERMINAL, TRANSITIONS, Context, Event, FlushMark, State

Move = tuple[State | None, State]

ENDING = {Event.FINISH, Event.CANCEL, Event.FAIL}
EVERY_PAIR = [(state, event) for state in State for event in Event]
LEGAL = [(state, event) for state, event in EVERY_PAIR if event in TRANSITIONS[state]]
ILLEGAL = [(state, event) for state, event in EVERY_PAIR if event not in TRANSITIONS[state]]


def paths() -> dict[State, list[Event]]:
    """The shortest way from OPEN to every state that can be reached, by the table alone."""
    found: dict[State, list[Event]] = {State.OPEN: []}
    waiting = deque(found)
    while waiting:
        state = waiting.popleft()
        for event, new in TRANSITIONS[state].items():
            if new not in found:
                found[new] = [*found[state], event]
                waiting.append(new)
    return found


PATHS = paths()


def context(settings: m.Settings | None = None, moves: list[Move] | None = None) -> Context:
    """A new context; `moves` takes what its callback hears."""
    heard = [] if moves is None else moves
    return Context(
        "a",
        1,
        settings or m.Settings(voice="tara", seed=1),
        lambda _, old, new: heard.append((old, new)),
        100.0,
    )


def context_in(state: State, moves: list[Move] | None = None) -> Context:
    """A context that was moved to `state`; `moves` takes what its callback hears afterwards."""
    heard: list[Move] = [] if moves is None else moves
    found = context(moves=heard)
    for event in PATHS[state]:
        found.move(event)
    heard.clear()
    assert found.state is state
    return found


# The table ----------------------------------------------------------------------------------------


def test_table_is_whole() -> None:
    """Every state has a row and can be reached from OPEN, and every event does something."""
    assert set(TRANSITIONS) == set(State)
    assert set(PATHS) == set(State)
    assert {event for events in TRANSITIONS.values() for event in events} == set(Event)


def test_terminal_states() -> None:
    """Exactly DONE, CANCELLED and FAILED have no way out."""
    assert {State.DONE, State.CANCELLED, State.FAILED} == TERMINAL
    assert {state for state, events in TRANSITIONS.items() if not events} == TERMINAL


def test_table_is_that_of_the_protocol() -> None:
    """OPEN → QUEUED → SPEAKING ⇄ STARVED, and from each of them to each of the three ends."""
    between = {
        (old, new)
        for old, events in TRANSITIONS.items()
        for new in events.values()
        if old is not new and new not in TERMINAL
    }
    assert between == {
        (State.OPEN, State.QUEUED),
        (State.QUEUED, State.SPEAKING),
        (State.SPEAKING, State.STARVED),
        (State.STARVED, State.SPEAKING),
    }
    for state in set(State) - TERMINAL:
        ends = {event: TRANSITIONS[state][event] for event in ENDING}
        assert ends == {
            Event.FINISH: State.DONE,
            Event.CANCEL: State.CANCELLED,
            Event.FAIL: State.FAILED,
        }


@pytest.mark.parametrize(("state", "event"), LEGAL)
def test_legal_event(state: State, event: Event) -> None:
    """An event moves the context as the table says, and changes of state are told, once each."""
    moves: list[Move] = []
    found = context_in(state, moves)
    found.move(event)
    new = TRANSITIONS[state][event]
    assert found.state is new
    assert moves == ([] if new is state else [(state, new)])


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_illegal_event(state: State, event: Event) -> None:
    """An event the table does not know is a KeyError that changes nothing and tells nobody."""
    moves: list[Move] = []
    found = context_in(state, moves)
    with pytest.raises(KeyError):
        found.move(event)
    assert found.state is state
    assert moves == []


def test_birth_is_told() -> None:
    """The first thing heard of a context is that it is OPEN and was not there before."""
    moves: list[Move] = []
    context(moves=moves)
    assert moves == [(None, State.OPEN)]


# What it says -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_live_and_audio(state: State) -> None:
    """Before its terminal state a context makes audio messages; after it, never."""
    found = context_in(state)
    message = found.audio(b"\0\0", 1)
    assert found.live == (state not in TERMINAL)
    assert (message is not None) == found.live
    assert found.delivered == (1 if found.live else 0)


@pytest.mark.parametrize("state", State)
def test_started_only_once(state: State) -> None:
    """`started` is said when the turn of a queued context comes, and at no other time."""
    found = context_in(state)
    started = found.begin(105.0)
    assert (started is not None) == (state is State.QUEUED)
    assert found.trace.turn_at == (105.0 if started else None)
    assert found.begin(106.0) is None


def test_wait_is_counted_from_any_time() -> None:
    """`queue_ms` does not depend on where the clock's zero is."""
    found = context()
    found.feed("Hello there. And so on", 0.0)
    started = found.begin(0.5)
    assert started is not None
    assert started.queue_ms == 500.0


def test_first_segment_sets_t0() -> None:
    """t0 is when the first segment is complete, and later ones do not move it."""
    found = context()
    t0: list[float | None] = []
    for now, text in (
        (100.0, "Hello"),
        (101.0, " there. And"),
        (102.0, " so. And"),
        (103.0, " on"),
    ):
        found.feed(text, now)
        t0.append(found.trace.ready_at)
    assert t0 == [None, None, 102.0, 102.0]


def test_queue_keeps_the_order() -> None:
    """Segments and flushes come out as they went in; `unspoken_chars` is what did not come out."""
    found = context()
    found.feed("Hello there. And so on", 100.0)
    found.flush(FlushMark("x"), 100.0)
    found.feed("More", 100.0)
    assert found.unspoken_chars == len("Hello there." + "And so on" + "More")
    assert found.pop() == "Hello there."
    assert found.unspoken_chars == len("And so on" + "More")
    assert [found.pop(), found.pop(), found.pop()] == ["And so on", FlushMark("x"), None]
    assert found.unspoken_chars == len("More")
    found.end(100.0)
    found.end(100.0)
    assert [found.pop(), found.pop()] == ["More", None]
    assert found.unspoken_chars == 0
    assert found.done().chars == len("Hello there." + "And so on" + "More")


def test_offsets_are_at_the_negotiated_rate() -> None:
    """Samples and milliseconds are those of the rate that the client asked for."""
    found = context(m.Settings(voice="tara", sample_rate=8000))
    assert found.segment("Hello").offset == 0
    found.audio(bytes(1600), 800)
    assert found.segment("there").offset == 800
    assert found.done().audio_ms == 100.0
    assert found.cancelled(None).sent_ms == 100.0


def test_warn_once_is_by_code() -> None:
    """Each code has its own once."""
    found = context()
    assert found.warn_once("one", "text") == [m.Warn(context="a", code="one", message="text")]
    assert found.warn_once("two", "text") == [m.Warn(context="a", code="two", message="text")]
    assert found.warn_once("one", "text") == []


def test_stall_is_due_only_with_text_in_hand() -> None:
    """There is a time to wait for while text is held that came in pieces, and none otherwise."""
    found = context()
    assert found.stall_at is None
    found.feed("Hello", 100.0)
    assert found.stall_at == pytest.approx(100.4)
    found.flush(FlushMark(None), 100.1)
    assert found.stall_at is None
