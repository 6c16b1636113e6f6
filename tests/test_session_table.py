"""Session: every message in every state, as a table."""

import pytest

from orpheus_ws import messages as m
from orpheus_ws.context import State
from orpheus_ws.errors import BadMessage, EngineFailed
from tests.session_driver import Driver, say

OPENING = m.Open(context="a")
TEXT = m.Text(context="a", text="Hello there. And so ")
UNFIT = BadMessage("a field does not fit", context="a")
UNFIT_CANCEL = BadMessage("a field does not fit", context="a", cancels=True)


def bring(state: str) -> Driver:
    """A session whose context `a` is in this state."""
    driver = Driver()
    match state:
        case "unknown":
            pass
        case "refused":
            driver.receive(m.Open(context="a", voice="nobody"))
        case "open":
            driver.receive(OPENING)
        case "done" | "cancelled" | "failed":
            driver.receive(*say("a", "Hello there."))
            driver.step()
            if state == "failed":
                driver.fail(EngineFailed("it failed"))
            if state == "cancelled":
                driver.receive(m.Cancel(context="a"))
            driver.settle()
        case _:
            driver.receive(OPENING, TEXT)
            if state != "queued":
                driver.step()
            if state == "starved":
                driver.receive(m.Flush(context="a"))
                driver.run()
            if state in ("ended", "closing"):
                driver.receive(m.End(context="a") if state == "ended" else m.Close())
    return driver


STATES = {
    "open": State.OPEN,
    "queued": State.QUEUED,
    "speaking": State.SPEAKING,
    "starved": State.STARVED,
    "ended": State.SPEAKING,
    "closing": State.SPEAKING,
}
"""Of those in which the context is live."""
MESSAGES: dict[str, m.ClientMessage | BadMessage] = {
    "config": m.Config(voice="leo"),
    "open": OPENING,
    "text": TEXT,
    "flush": m.Flush(context="a", id=1),
    "end": m.End(context="a"),
    "cancel": m.Cancel(context="a", played_ms=10.0),
    "cancel all": m.Cancel(context="*"),
    "ping": m.Ping(id=1),
    "close": m.Close(),
    "unfit open": UNFIT,
    "unfit cancel": UNFIT_CANCEL,
    "no message": BadMessage("no message of ours"),
}
# A warning or an error is its code, and `!` marks an error of the context itself.
ALWAYS = {"config": "", "ping": "pong", "close": "", "no message": "bad_message"}
LIVE = ALWAYS | {
    "open": "already_open", "text": "", "flush": "", "end": "",
    "cancel": "cancelled", "cancel all": "cancelled",
    "unfit open": "bad_message", "unfit cancel": "bad_message cancelled",
}  # fmt: skip
OVER = ALWAYS | {
    "open": "", "text": "closed_context", "flush": "closed_context", "end": "closed_context",
    "cancel": "", "cancel all": "", "unfit open": "!bad_message", "unfit cancel": "bad_message",
}  # fmt: skip
TABLE = {
    "unknown": OVER | {"text": "", "flush": "flushed", "end": ""},
    "open": LIVE,
    "queued": LIVE,
    "speaking": LIVE,
    "starved": LIVE,
    "ended": LIVE | {"text": "closed_context", "flush": "closed_context"},
    "closing": LIVE | {"open": ""},
    "done": OVER,
    "cancelled": OVER,
    "failed": OVER,
    "refused": OVER,
}
OPENS = {("unknown", "open"), ("unknown", "text"), ("unknown", "end")} | {
    (state, "open") for state in ("done", "cancelled", "failed", "refused")
}
ENDS = {"cancel", "cancel all", "unfit cancel"}
CASES = [(state, message) for state in TABLE for message in MESSAGES]


def told(reply: m.ServerMessage) -> str:
    """A reply as the table has it."""
    if isinstance(reply, m.Error):
        return f"!{reply.code}" if reply.context else reply.code
    return reply.code if isinstance(reply, m.Warn) else type(reply).__name__.lower()


def test_the_table_is_whole() -> None:
    """It has every message of the protocol in every state of a context."""
    kinds = {type(each) for each in MESSAGES.values()} - {BadMessage}
    assert kinds == set(m.ClientMessage.__args__)
    assert all(answers.keys() == MESSAGES.keys() for answers in TABLE.values())
    assert set(STATES.values()) | {State.DONE, State.CANCELLED, State.FAILED} == set(State)


@pytest.mark.parametrize("state", STATES)
def test_states_are_reached(state: str) -> None:
    """The context is where the table says it is."""
    context = bring(state).context("a")
    assert context.state is STATES[state]
    assert context.ended == (state in ("ended", "closing"))


@pytest.mark.parametrize(("state", "message"), CASES, ids=[f"{a}-{b}" for a, b in CASES])
def test_every_message_in_every_state(state: str, message: str) -> None:
    """What is answered at once is in the table; so is whether there is a context afterwards."""
    driver, said = bring(state), MESSAGES[message]
    refuse, receive = driver.session.refuse, driver.receive
    replies = refuse(said) if isinstance(said, BadMessage) else receive(said)
    assert " ".join(map(told, replies)) == TABLE[state][message]
    live = [context.id for context in driver.session.contexts]
    assert live == ["a"] * ((state in STATES and message not in ENDS) or (state, message) in OPENS)
    if live:
        ended = state in ("ended", "closing") or message in ("end", "close")
        assert driver.context("a").ended == ended
