"""Session: any messages at any time, and what a peer sees is always legal."""

from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from orpheus_ws import messages as m
from orpheus_ws.context import TERMINAL, TRANSITIONS, Context, State
from orpheus_ws.errors import EngineFailed
from orpheus_ws.session import (
    Action,
    Goodbye,
    Wait,
)
from tests.session_driver import CHUNK, RATE, Driver, codes, warned
from tests.test_session_heard import letters

# Everything at once -------------------------------------------------------------------------------


class Life:
    """What a peer must see of one context, kept without looking into the session."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.state = State.OPEN
        self.terminals = 0
        self.audio: list[m.Audio] = []
        self.ended = False
        self.fed = ""
        self.spoken = ""
        self.flushes: deque[tuple[int, str]] = deque()
        """Flushes to be answered, with the letters that were fed before each."""


EDGES = {(old, new) for old, events in TRANSITIONS.items() for new in events.values() if old != new}
REFUSALS = ("context_limit", "unknown_voice", "unsupported_format", "bad_message")
LIMIT = 3
IDS = st.sampled_from(["a", "b", "c", "d", "e"])
TEXTS = st.sampled_from(
    [
        "Hello there. ", "It works! And", " so", "one two three ", "...", " ", "", "\n\n", "<laugh> ",
        "<lau", "friend.", "How are you? ", "Well, as far as I know, it is. ", "x" * 90,
    ]
)  # fmt: skip
OPTIONS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    voice=st.sampled_from(["tara", "tara", "tara", "leo", "nobody"]),
    words=st.booleans(),
    segment=st.builds(
        m.Segmentation,
        mode=st.sampled_from(["sentence", "clause", "flush"]),
        max_delay_ms=st.sampled_from([0, 400, 5000]),
    ),
)


class SessionMachine(RuleBasedStateMachine):
    """Any messages at any time while the speaker is anywhere: what a peer sees is always legal."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(contexts=LIMIT, text_chars=120, chunks=2)
        self.lives: list[Life] = []
        self.by_id: dict[str, Life | None] = {}
        """The latest life of an id; None when its latest `open` was refused."""
        self.warned_ids: set[str] = set()
        self.closing = False
        self.flush_id = 0
        self.heard_moves = self.heard_messages = 0

    # What the peer sends

    @precondition(lambda self: not self.closing)
    @rule(context_id=IDS, options=OPTIONS)
    def open(self, context_id: str, options: dict[str, Any]) -> None:
        known = self.live(context_id)
        replies = self.receive(m.Open(context=context_id, **options))
        if known is not None:
            assert codes(replies) == [("already_open", context_id)]

    @precondition(lambda self: not self.closing)
    @rule(options=OPTIONS)
    def config(self, options: dict[str, Any]) -> None:
        replies = self.receive(m.Config(**options))
        assert codes(replies) == ([("unknown_voice", None)] * (options["voice"] == "nobody"))

    @precondition(lambda self: not self.closing)
    @rule(context_id=IDS, text=TEXTS)
    def text(self, context_id: str, text: str) -> None:
        before = self.live(context_id)
        expected = self.dropped(context_id)
        replies = self.receive(m.Text(context=context_id, text=text))
        if expected is not None:
            assert codes(replies) == expected
        elif (life := self.live(context_id)) is not None:
            assert before in (life, None)
            life.fed += letters(text)

    @precondition(lambda self: not self.closing)
    @rule(context_id=IDS)
    def flush(self, context_id: str) -> None:
        self.flush_id += 1
        life = self.live(context_id)
        expected = self.dropped(context_id)
        if expected is None and life is not None:
            life.flushes.append((self.flush_id, life.fed))
        replies = self.receive(m.Flush(context=context_id, id=self.flush_id))
        if expected is not None:
            assert codes(replies) == expected
        elif life is None:
            assert replies == [m.Flushed(context=context_id, id=self.flush_id)]

    @precondition(lambda self: not self.closing)
    @rule(context_id=IDS)
    def end(self, context_id: str) -> None:
        life = self.live(context_id)
        expected = None if life is not None else self.dropped(context_id)
        replies = self.receive(m.End(context=context_id))
        if expected is not None:
            assert codes(replies) == expected
        elif (life := self.live(context_id)) is not None:
            life.ended = True

    @precondition(lambda self: self.closing)
    @rule(context_id=IDS, text=TEXTS)
    def too_late(self, context_id: str, text: str) -> None:
        """After `close` nothing opens or feeds a context any more."""
        assert self.receive(m.Open(context=context_id)) == []
        assert self.receive(m.Text(context=context_id, text=text)) == []
        assert self.receive(m.Flush(context=context_id)) == []
        assert self.receive(m.End(context=context_id)) == []

    @rule(
        context_id=st.one_of(IDS, st.just("*")),
        played_ms=st.one_of(st.none(), st.floats(0, 5000)),
    )
    def cancel(self, context_id: str, played_ms: float | None) -> None:
        live = [life for life in self.lives if life.state not in TERMINAL]
        due = [life for life in live if context_id in ("*", life.context.id)]
        replies = self.receive(m.Cancel(context=context_id, played_ms=played_ms))
        assert [reply.context for reply in replies if isinstance(reply, m.Cancelled)] == [
            life.context.id for life in due
        ]
        assert len(replies) == len(due)

    @rule(ping_id=st.integers())
    def ping(self, ping_id: int) -> None:
        assert self.receive(m.Ping(id=ping_id)) == [m.Pong(id=ping_id)]

    @precondition(lambda self: len(self.lives) > 6)
    @rule()
    def close(self) -> None:
        self.closing = True
        for life in self.lives:
            life.ended = True
        self.receive(m.Close())

    # What the speaker does

    @rule(steps=st.integers(1, 12))
    def speak(self, steps: int) -> None:
        for _ in range(steps):
            self.check_rest(self.driver.step())
            self.listen()

    @rule(seconds=st.sampled_from([0.05, 0.4, 6.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.driver.now += seconds

    @precondition(lambda self: self.driver.speaking is not None and self.driver.speaking.live)
    @rule()
    def fail(self) -> None:
        self.driver.fail(EngineFailed("the engine failed; try again"))
        self.listen()

    def teardown(self) -> None:
        """However it stands, `close` brings it to an end at which every context has had its own."""
        self.close()
        assert self.driver.settle() == Goodbye()
        self.listen()
        assert all(life.terminals == 1 for life in self.lives)

    # What must hold

    @invariant()
    def live_contexts(self) -> None:
        live = [life.context for life in self.lives if life.state not in TERMINAL]
        assert list(self.driver.session.contexts) == live
        assert len(live) <= LIMIT
        assert len({context.handle for context in live}) == len(live)

    @invariant()
    def one_terminal_message_each(self) -> None:
        assert all(life.terminals == (life.state in TERMINAL) for life in self.lives)

    def check_rest(self, action: Action | None) -> None:
        """A wait is for the future, and asking again is no news."""
        if isinstance(action, Wait):
            assert action.until is None or action.until > self.driver.now
            assert self.driver.session.next(self.driver.now) == action
        elif isinstance(action, Goodbye):
            assert self.closing
            assert all(life.state in TERMINAL for life in self.lives)

    def live(self, context_id: str) -> Life | None:
        life = self.by_id.get(context_id)
        return life if life is not None and life.state not in TERMINAL else None

    def dropped(self, context_id: str) -> list[tuple[str, str | None]] | None:
        """What answers text for a context that takes none any more; None for one that does."""
        life = self.live(context_id)
        if life is None:
            if context_id not in self.by_id:
                return None
        elif not life.ended:
            return None
        first = context_id not in self.warned_ids
        self.warned_ids.add(context_id)
        return warned(context_id) if first else []

    def receive(self, message: m.ClientMessage) -> list[m.ServerMessage]:
        replies = self.driver.receive(message)
        self.listen()
        return replies

    def listen(self) -> None:
        """Take note of what has happened since the last time."""
        driver = self.driver
        for context, old, new in driver.moves[self.heard_moves :]:
            self.moved(context, old, new)
        for message in driver.sent[self.heard_messages :]:
            self.hear(message)
        self.heard_moves, self.heard_messages = len(driver.moves), len(driver.sent)

    def moved(self, context: Context, old: State | None, new: State) -> None:
        if old is None:
            assert new is State.OPEN
            assert self.live(context.id) is None
            life = Life(context)
            self.lives.append(life)
            self.by_id[context.id] = life
            self.warned_ids.discard(context.id)
            return
        life = next(life for life in self.lives if life.context is context)
        assert life.state is old
        assert (old, new) in EDGES
        life.state = new

    def hear(self, message: m.ServerMessage) -> None:
        """Check one message against everything before it."""
        context_id = getattr(message, "context", None)
        if context_id is None or isinstance(message, m.Warn):
            if isinstance(message, m.Warn) and message.code == "context_idle":
                self.idle(context_id)
            return
        if isinstance(message, m.Error) and message.code in REFUSALS:
            assert self.live(context_id) is None
            self.by_id[context_id] = None
            self.warned_ids.discard(context_id)
            return
        life = self.by_id.get(context_id)
        if isinstance(message, m.Flushed) and (life is None or not life.flushes):
            assert context_id not in self.by_id
            return
        assert life is not None
        assert life.terminals == 0, f"{type(message).__name__} after the terminal message"
        match message:
            case m.Audio():
                self.hear_audio(life, message)
            case m.Segment():
                assert message.offset == CHUNK * len(life.audio)
                life.spoken += letters(message.text)
            case m.Flushed():
                assert (message.id, life.spoken) == life.flushes.popleft()
            case m.Done() | m.Cancelled() | m.Error():
                self.hear_terminal(life, message)
            case _:
                pass

    def idle(self, context_id: str | None) -> None:
        """A context was ended by the session, which it may do only while another waits."""
        life, *others = [one for one in self.lives if not one.terminals]
        assert life.context.id == context_id
        assert not life.ended
        assert others
        life.ended = True

    def hear_audio(self, life: Life, message: m.Audio) -> None:
        waiting = [one for one in self.lives if not one.terminals]
        assert waiting[0] is life, "spoken out of turn"
        assert message.handle == life.context.handle
        assert (message.seq, message.offset) == (len(life.audio), CHUNK * len(life.audio))
        life.audio.append(message)

    def hear_terminal(self, life: Life, message: m.Done | m.Cancelled | m.Error) -> None:
        life.terminals += 1
        ms = CHUNK * len(life.audio) * 1000 / RATE
        if isinstance(message, m.Done):
            assert life.spoken == life.fed
            assert not life.flushes
            assert message.audio_ms == ms
            assert (message.reason == "empty") == (not life.audio)
        elif isinstance(message, m.Cancelled):
            assert message.sent_ms == ms
            assert life.fed.startswith(letters(message.text_spoken or ""))


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
