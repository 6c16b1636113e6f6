"""Slots: as many holders as there are slots, and who has to make room for whom."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from orpheus_ws.server.admission import Admission, abandoned_after

ABANDONED = 60.0


class Socket:
    """A holder whose silence is set by the test."""

    def __init__(self, silent_since: float | None = None, tenant: str = "alice") -> None:
        self.silent_since = silent_since
        self.tenant = tenant
        self.evictions = 0

    def evict(self) -> None:
        self.evictions += 1


def full(*sockets: Socket) -> Admission:
    """An admission all of whose slots these sockets have."""
    admission = Admission(len(sockets), ABANDONED)
    for socket in sockets:
        assert admission.reserve(socket, 0.0)
    return admission


def test_the_longest_silent_makes_room() -> None:
    """On a full server the newcomer gets the slot of the socket that has been silent for longest."""
    first, second, speaking = Socket(20.0), Socket(10.0), Socket(None)
    admission = full(first, second, speaking)
    assert admission.reserve(Socket(), 100.0)
    assert [socket.evictions for socket in (first, second, speaking)] == [0, 1, 0]
    assert admission.active == 3


def test_nobody_is_evicted_early() -> None:
    """A second before its time is over a socket keeps its slot; then it does not."""
    silent = Socket(10.0)
    admission = full(silent)
    assert not admission.reserve(Socket(), 10.0 + ABANDONED - 1)
    assert admission.reserve(Socket(), 10.0 + ABANDONED)
    assert silent.evictions == 1


def test_nobody_is_evicted_without_need() -> None:
    """While there is room, or when nobody is admitted anyway, everybody stays."""
    silent = Socket(0.0)
    admission = Admission(2, ABANDONED)
    assert admission.reserve(silent, 0.0)
    assert admission.reserve(Socket(None), 1000.0)
    admission.draining = True
    assert not admission.reserve(Socket(), 1000.0)
    assert silent.evictions == 0


def test_room_of_a_tenant_s_own() -> None:
    """Who has all he may have makes room by his own abandoned socket, and never by another's."""
    silent, speaking, others = Socket(50.0), Socket(None), Socket(0.0, tenant="bob")
    admission = full(silent, speaking, others)
    admission.capacity = 9
    assert admission.has_room_for("alice", None, 60.0)
    assert admission.has_room_for("alice", 3, 60.0)
    assert not admission.has_room_for("alice", 2, 60.0)
    assert admission.has_room_for("bob", 2, 60.0)
    assert (silent.evictions, others.evictions) == (0, 0)
    assert admission.has_room_for("alice", 2, 50.0 + ABANDONED)
    assert (silent.evictions, speaking.evictions, others.evictions) == (1, 0, 0)
    assert admission.has_room_for("alice", 2, 50.0 + ABANDONED)
    assert admission.active == 2


def test_an_evicted_socket_has_nothing_to_give_back() -> None:
    """When the TCP connection of an evicted socket ends at last, the newcomer keeps the slot."""
    silent, newcomer = Socket(0.0), Socket()
    admission = full(silent)
    assert admission.reserve(newcomer, 1000.0)
    admission.release(silent)
    admission.release(silent)
    assert admission.active == 1
    assert not admission.reserve(Socket(), 1000.0)
    admission.release(newcomer)
    assert admission.active == 0


def test_seldom_pings_take_longer() -> None:
    """Nobody who answers pings is evicted however seldom they are sent: three go unanswered first."""
    assert abandoned_after(1.0) == abandoned_after(20.0) == ABANDONED
    assert abandoned_after(30.0) == 90.0


class Sockets(RuleBasedStateMachine):
    """Sockets come, speak, fall silent, and go, in any order."""

    @initialize(capacity=st.integers(1, 4))
    def start(self, capacity: int) -> None:
        self.now = 0.0
        self.admission = Admission(capacity, ABANDONED)
        self.admitted: list[Socket] = []

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def come(self) -> None:
        room = len(self.admitted) < self.admission.capacity
        silent = [s.silent_since for s in self.admitted if s.silent_since is not None]
        abandoned = bool(silent) and self.now - min(silent) >= ABANDONED
        newcomer = Socket(self.now)
        assert self.admission.reserve(newcomer, self.now) == (room or abandoned)
        assert self.admission.reserve(newcomer, self.now) == (room or abandoned)
        evicted = [s for s in self.admitted if s.evictions]
        assert len(evicted) == (abandoned and not room)
        assert all(s.evictions == 1 and s.silent_since == min(silent) for s in evicted)
        self.admitted = [s for s in self.admitted if not s.evictions]
        if room or abandoned:
            self.admitted.append(newcomer)

    @rule(nth=st.integers(0, 3), speaks=st.booleans())
    def be_heard(self, nth: int, speaks: bool) -> None:
        if nth < len(self.admitted):
            self.admitted[nth].silent_since = None if speaks else self.now

    @rule(nth=st.integers(0, 3))
    def go(self, nth: int) -> None:
        if nth < len(self.admitted):
            self.admission.release(self.admitted.pop(nth))

    @invariant()
    def slots_are_kept(self) -> None:
        if hasattr(self, "admission"):
            assert self.admission.active == len(self.admitted) <= self.admission.capacity


TestSockets = Sockets.TestCase
TestSockets.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
