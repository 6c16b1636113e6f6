"""A server over loopback, and peers that say anything at any time, cut anywhere.

Rule: `server_listeners` has what each peer expects; here is what is said, and how sockets end.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from orpheus_ws import messages as m
from tests.harness import JSON, MSGPACK, server, turns_until
from tests.raw_peer import Cuts, RawPeer
from tests.server_listeners import WIDTHS, Listener
from tests.server_peers import at_rest, held

LIMIT: Final = 3
PEERS: Final = 2
MESSAGE_BYTES: Final = 4096
SETTINGS: Final = (
    "engine.capacity=2",
    "engine.options.step_seconds=0.002",
    "engine.options.frames_per_char=0.2",
    f"limits.contexts={LIMIT}",
    f"limits.message_bytes={MESSAGE_BYTES}",
    "limits.text_chars=4000",
)

IDS = st.sampled_from(["a", "b", "ü", "\U0001f600"])
CUTS = st.lists(st.integers(0, 10_000), max_size=5)
WHICH = st.integers(0, PEERS - 1)
TEXTS = st.sampled_from(
    [
        "Hello there. ", "It works! And", " so", "one two three ", "...", "", "\n\n", "<laugh> ", "<lau",
        "Über. ", "\U0001f600", "x" * 90,
    ]
)  # fmt: skip
OPTIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "voice": st.sampled_from(["tara", "nobody"]),
        "encoding": st.sampled_from([*WIDTHS, "opus"]),
        "sample_rate": st.sampled_from([8000, 16_000, 24_000, 48_000, 1]),
        "words": st.booleans(),
        "segment": st.builds(
            m.Segmentation,
            mode=st.sampled_from(["sentence", "clause", "flush"]),
            max_delay_ms=st.sampled_from([0, 5000]),
        ),
    },
)
_T = TypeVar("_T")


class ServerMachine(RuleBasedStateMachine):
    """Peers that come, speak at the same time, and go, of one server."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = contextlib.AsyncExitStack()
        self.server = self.run(self.stack.enter_async_context(server(*SETTINGS)))
        self.baseline = self.run(at_rest(self.server))
        self.listeners: list[Listener] = []

    def run(self, act: Coroutine[Any, Any, _T]) -> _T:
        """Let server and peers live until this is done."""
        return self.runner.run(act)

    @initialize(subprotocols=st.permutations([MSGPACK, JSON]), cuts=CUTS)
    def connect(self, subprotocols: list[str], cuts: list[int]) -> None:
        for subprotocol in subprotocols[:PEERS]:
            self.listeners.append(self.run(self._listener(subprotocol, cuts)))

    async def _listener(self, subprotocol: str, cuts: Cuts) -> Listener:
        others = len(self.listeners)
        await turns_until(lambda: self.server.admission.active <= others)
        one = Listener(await RawPeer.connect(self.server.address.url, subprotocol, cuts))
        # Whoever speaks is heard to the end, and that should not take as long as to hear it.
        assert not await one.say(m.Config(lead_ms=10_000), (), ())
        return one

    def replace(self, which: int, cuts: Cuts) -> None:
        """Somebody is gone, and comes again."""
        gone = self.listeners.pop(which)
        again = self.run(self._listener(gone.peer.wire.subprotocol, cuts))
        self.listeners.insert(which, again)

    # What is said --------------------------------------------------------------------------------

    @rule(which=WHICH, id_=IDS, options=OPTIONS, cuts=CUTS, pieces=CUTS)
    def open(self, which: int, id_: str, options: dict[str, Any], cuts: Cuts, pieces: Cuts) -> None:
        one = self.listeners[which]
        known, alive = one.live(id_), len(one.alive)
        replies = self.run(one.say(m.Open(context=id_, **options), cuts, pieces))
        codes = [reply.code for reply in replies if isinstance(reply, m.Warn | m.Error)]
        if "already_open" in codes:
            assert known is not None
        elif not codes:
            assert known is None or known.over
            one.begin(id_, options)
            assert len(one.alive) <= LIMIT
        else:
            refused = {"voice": "nobody", "encoding": "opus", "sample_rate": 1}
            unfit = any(options.get(name) == value for name, value in refused.items())
            assert unfit or (codes == ["context_limit"] and alive >= LIMIT)

    @rule(which=WHICH, id_=IDS, cuts=CUTS)
    def open_unfit(self, which: int, id_: str, cuts: Cuts) -> None:
        """An `open` that does not fit opens nothing; it is an error of its context, if that is not open."""
        one = self.listeners[which]
        known = one.live(id_)
        replies = self.run(one.say({"type": "open", "context": id_, "lead_ms": 1}, cuts, ()))
        (error,) = (reply for reply in replies if isinstance(reply, m.Error))
        assert error.code == "bad_message"
        if known is None:
            assert error.context == id_
        elif not known.ended:
            assert error.context is None

    @rule(which=WHICH, options=OPTIONS)
    def config(self, which: int, options: dict[str, Any]) -> None:
        one = self.listeners[which]
        replies = self.run(one.say(m.Config(**options), (), ()))
        if not any(isinstance(reply, m.Error) for reply in replies):
            formats = {"encoding", "sample_rate"} & options.keys()
            one.defaults |= {name: options[name] for name in formats}

    @rule(which=WHICH, id_=IDS, text=TEXTS, cuts=CUTS, pieces=CUTS)
    def text(self, which: int, id_: str, text: str, cuts: Cuts, pieces: Cuts) -> None:
        self._feed(which, id_, m.Text(context=id_, text=text), cuts, pieces)

    @rule(which=WHICH, id_=IDS, cuts=CUTS, pieces=CUTS)
    def end(self, which: int, id_: str, cuts: Cuts, pieces: Cuts) -> None:
        self._feed(which, id_, m.End(context=id_), cuts, pieces)

    def _feed(
        self, which: int, id_: str, message: m.Text | m.End, cuts: Cuts, pieces: Cuts
    ) -> None:
        """Text, or that no more comes: opens what was never heard of, and is dropped after an end."""
        one = self.listeners[which]
        life, alive = one.live(id_), len(one.alive)
        new = id_ not in one.lives
        dropped = life is None if not new else False
        ended = life is not None and life.ended
        if new:
            life = one.begin(id_, {})
        if life is not None and isinstance(message, m.End):
            life.ended = True
        replies = self.run(one.say(message, cuts, pieces))
        if new and one.lives[id_] is None:
            assert alive >= LIMIT
            return
        # An `end` for a context that has ended, and not had its end, changes nothing.
        self._check_dropped(one, id_, replies, dropped or (ended and isinstance(message, m.Text)))

    @rule(which=WHICH, id_=IDS, cuts=CUTS)
    def flush(self, which: int, id_: str, cuts: Cuts) -> None:
        one = self.listeners[which]
        life, mark = one.live(id_), one.next_flush()
        known = id_ in one.lives
        if life is not None and not life.ended:
            life.flushes.append(mark)
        replies = self.run(one.say(m.Flush(context=id_, id=mark), cuts, ()))
        if not known:  # others may be spoken meanwhile
            assert replies.count(m.Flushed(context=id_, id=mark)) == 1
        self._check_dropped(one, id_, replies, known and (life is None or life.ended))

    def _check_dropped(
        self, one: Listener, id_: str, replies: list[m.ServerMessage], dropped: bool
    ) -> None:
        """What is dropped is warned of once, and nothing else is."""
        warned = [
            each for each in replies if isinstance(each, m.Warn) and each.code == "closed_context"
        ]
        if not dropped:
            # An `end` may have come after an end that was not heard of yet.
            assert not warned or one.live(id_) is None
        else:
            assert len(warned) == (id_ not in one.warned)
        if warned:
            assert [each.context for each in warned] == [id_]
            one.warned.add(id_)

    @rule(
        which=WHICH,
        id_=st.one_of(IDS, st.just("*")),
        played=st.one_of(st.none(), st.floats(0, 5000), st.just(-1.0)),
        cuts=CUTS,
    )
    def cancel(self, which: int, id_: str, played: float | None, cuts: Cuts) -> None:
        one = self.listeners[which]
        due = [life for each in one.alive if id_ in ("*", each) and (life := one.live(each))]
        message = {"type": "cancel", "context": id_} | (
            {} if played is None else {"played_ms": played}
        )
        replies = self.run(one.say(message, cuts, ()))
        assert all(life.over for life in due)
        cancelled = [reply.context for reply in replies if isinstance(reply, m.Cancelled)]
        assert len(cancelled) >= sum(not life.ended for life in due)
        unfit = [
            each for each in replies if isinstance(each, m.Warn) and each.code == "bad_message"
        ]
        assert len(unfit) == (played == -1.0)

    @rule(which=WHICH, kind=st.sampled_from(["nothing", "", "Text"]), cuts=CUTS)
    def no_message(self, which: int, kind: str, cuts: Cuts) -> None:
        """A message of no type that there is is an error, and the socket lives."""
        replies = self.run(self.listeners[which].say({"type": kind}, cuts, cuts))
        assert [each.code for each in replies if isinstance(each, m.Error)] == ["bad_message"]

    @rule()
    def time_passes(self) -> None:
        """Engine and codec work on; nobody reads."""
        self.run(asyncio.sleep(0.004))

    @rule(which=WHICH)
    def rest(self, which: int) -> None:
        self.run(self.listeners[which].rest())

    # How sockets end -----------------------------------------------------------------------------

    @rule(which=WHICH, ids=st.lists(IDS, max_size=2), cuts=CUTS, pieces=CUTS)
    def close(self, which: int, ids: list[str], cuts: Cuts, pieces: Cuts) -> None:
        """All that is open is spoken to its end; what comes later is nothing; the socket closes."""
        one = self.listeners[which]
        for id_ in one.alive:
            if life := one.live(id_):
                life.ended = True
        self.run(self._close(one, ids, cuts, pieces))
        self.replace(which, cuts)

    async def _close(self, one: Listener, ids: list[str], cuts: Cuts, pieces: Cuts) -> None:
        encode = one.peer.wire.encode_request
        await one.peer.send(encode(m.Close()), cuts, pieces)
        for id_ in ids:
            await one.peer.send(encode(m.Open(context=id_)), cuts, pieces)
            await one.peer.send(encode(m.Text(context=id_, text="Late. ")), pieces, cuts)
        assert await one.leave() == (1000, "closed")
        assert not one.alive

    @rule(
        which=WHICH,
        how=st.sampled_from(["no message", "wrong kind", "too long", "far too long", "no frame"]),
        cuts=CUTS,
    )
    def offend(self, which: int, how: str, cuts: Cuts) -> None:
        """What cannot be read closes the socket, with the code that the protocol's page has for it."""
        one = self.listeners[which]
        code = self.run(self._offend(one, how, cuts))
        assert code == {"no message": 1007, "wrong kind": 1003, "no frame": 1002}.get(how, 1009)
        self.replace(which, cuts)

    async def _offend(self, one: Listener, how: str, cuts: Cuts) -> int | None:
        peer, text = one.peer, one.peer.wire.subprotocol == JSON
        content: str | bytes = "{" if text else b"\xc1"
        match how:
            case "no frame":
                await peer.send_bytes(b"\xff" * 8, cuts)
            case "wrong kind":
                await peer.send(b"{}" if text else "{}", cuts)
            case "too long" | "far too long":
                size = MESSAGE_BYTES * (3 if how == "too long" else 5)
                await peer.send("x" * size if text else b"x" * size, cuts)
            case _:
                await peer.send(content, cuts)
        return (await one.leave())[0]

    @rule(which=WHICH, half=st.booleans(), cuts=CUTS)
    def vanish(self, which: int, half: bool, cuts: Cuts) -> None:
        """Gone, without a word or in the middle of one."""
        one = self.listeners[which]
        if half:
            self.run(one.peer.send_bytes(b"\x82\xfe\x01"))
        one.peer.abort()
        self.replace(which, cuts)

    # What must hold ------------------------------------------------------------------------------

    @invariant()
    def as_many_sockets_as_peers(self) -> None:
        assert self.server.admission.active == len(self.listeners)
        assert self.server.engine.statistics().active <= 2

    def teardown(self) -> None:
        """Everybody comes to an end, or leaves; and the server holds what it held at first."""
        try:
            for one in self.listeners:
                for id_ in one.alive:
                    if life := one.live(id_):
                        life.ended = True
                self.run(self._close(one, [], (), ()))
            self.run(turns_until(lambda: held(self.server) == self.baseline))
        finally:
            for one in self.listeners:
                one.peer.abort()
            self.run(self.stack.aclose())
            self.runner.close()
