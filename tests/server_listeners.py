"""Peers of a server, and what each expects of it from what it has sent and what it was told.

Rule: a peer asks for a `pong` after everything that it says, so it knows all that was decided before. A
context that takes no more text may end at any moment; nothing else happens by itself.
"""

import itertools
import json
from collections import deque
from typing import Any, Final

import msgpack

from orpheus_ws import messages as m
from tests.harness import JSON
from tests.raw_peer import Closed, Cuts, RawPeer

WIDTHS: Final = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}
FRAME: Final = 2048
PAUSE: Final = range(2300, 2401)
"""Samples of silence before a segment that is not the first, by where the tones of two meet."""
REFUSALS: Final = {"context_limit", "unknown_voice", "unsupported_format", "bad_message"}
WARNINGS: Final = {"bad_message", "closed_context", "already_open", "unknown_tag"}


class Life:
    """A context as its peer sees it."""

    def __init__(self, encoding: str, rate: int) -> None:
        self.encoding = encoding
        self.rate = rate
        self.ended = False
        """No more text comes."""
        self.over = False
        """It has had its end."""
        self.handle: int | None = None
        self.flushes: deque[int] = deque()
        self.seq = self.samples = 0
        self._segments = self._segment_at = 0
        self._speaking = False

    def segment(self, message: m.Segment) -> None:
        """Another begins."""
        self.check_length()
        assert (message.index, message.offset) == (self._segments, self.samples)
        self._segments += 1
        self._segment_at = self.samples
        self._speaking = True

    def audio(self, message: m.Audio) -> None:
        """More is heard."""
        assert self.handle is not None
        assert (message.seq, message.offset) == (self.seq, self.samples), "a gap"
        samples, rest = divmod(len(message.pcm), WIDTHS[self.encoding])
        assert samples
        assert not rest
        self.seq += 1
        self.samples += samples

    def check_length(self) -> None:
        """A segment was heard to its end: it is N frames and, after another, a pause."""
        if not self._speaking or self.rate != 24_000:
            return
        self._speaking = False
        length = self.samples - self._segment_at
        pauses = PAUSE if self._segments > 1 else (0,)
        assert any((length - pause) % FRAME == 0 for pause in pauses), length


class Listener:
    """One peer and all that it knows."""

    def __init__(self, peer: RawPeer) -> None:
        self.peer = peer
        self.lives: dict[str, Life | None] = {}
        """The latest of each id; None: it was refused."""
        self.warned: set[str] = set()
        self.defaults: dict[str, Any] = {"encoding": "pcm_s16le", "sample_rate": 24_000}
        self._pings = itertools.count()
        self._flushes = itertools.count()

    def live(self, id_: str) -> Life | None:
        """The context of that id, if it has not had its end."""
        life = self.lives.get(id_)
        return None if life is None or life.over else life

    @property
    def alive(self) -> list[str]:
        """Ids of those that have not had their end."""
        return [id_ for id_ in self.lives if self.live(id_)]

    def begin(self, id_: str, options: dict[str, Any]) -> Life:
        """A context is opened, as far as is known."""
        formats = self.defaults | options
        life = Life(formats["encoding"], formats["sample_rate"])
        self.lives.pop(id_, None)  # it is spoken after those that were opened before
        self.lives[id_] = life
        self.warned.discard(id_)
        return life

    async def say(
        self, message: m.ClientMessage | dict[str, Any], fragments: Cuts, pieces: Cuts
    ) -> list[m.ServerMessage]:
        """Say one thing, and return what was said until its pong, all of it checked."""
        await self.peer.send(self._encoded(message), fragments, pieces)
        ping = next(self._pings)
        await self.peer.send(self.peer.wire.encode_request(m.Ping(id=ping)), pieces, fragments)
        heard: list[m.ServerMessage] = []
        while (reply := await self.peer.receive()) != m.Pong(id=ping):
            self.hear(reply)
            heard.append(reply)
        return heard

    def _encoded(self, message: m.ClientMessage | dict[str, Any]) -> str | bytes:
        if not isinstance(message, dict):
            return self.peer.wire.encode_request(message)
        if self.peer.wire.subprotocol == JSON:
            return json.dumps(message)
        packed: bytes = msgpack.packb(message)
        return packed

    async def rest(self) -> None:
        """Hear everything that comes by itself: the ends of all that wait for no text but their own."""
        alive = [life for id_ in self.alive if (life := self.live(id_))]
        due = list(itertools.takewhile(lambda life: life.ended, alive))
        while not all(life.over for life in due):
            self.hear(await self.peer.receive())

    async def leave(self) -> tuple[int | None, str]:
        """Hear the rest until the server closes; return how it does."""
        while True:
            try:
                self.hear(await self.peer.receive())
            except Closed as closed:
                return closed.code, closed.reason

    def next_flush(self) -> int:
        """The id of a flush."""
        return next(self._flushes)

    # What is heard -------------------------------------------------------------------------------

    def hear(self, message: m.ServerMessage) -> None:
        """Check one message against all before it."""
        match message:
            case m.Warn(code=code):
                assert code in WARNINGS
            case m.Error(context=None, code=code):
                assert code in REFUSALS
            case m.Error(context=str(id_), code=code) if code in REFUSALS:
                assert (life := self.live(id_)) is None or life.handle is None
                self.lives[id_] = None
                self.warned.discard(id_)
            case m.Flushed(context=id_) if id_ not in self.lives:
                pass
            case m.Audio():
                self._life(message).audio(message)
            case m.Started(context=id_) | m.Segment(context=id_) | m.Flushed(context=id_):
                self._hear_of(self._named(id_), message)
            case m.Words(context=id_):
                self._named(id_).check_length()
            case m.Done(context=id_) | m.Cancelled(context=id_) | m.Error(context=str(id_)):
                self._hear_end(self._named(id_), message)
            case _:
                raise AssertionError(f"{type(message).__name__} out of place")

    def _named(self, id_: str) -> Life:
        life = self.live(id_)
        assert life is not None, "of a context that is over"
        return life

    def _life(self, message: m.Audio) -> Life:
        if message.context:
            return self._named(message.context)
        (life,) = (
            life for life in map(self.live, self.lives) if life and life.handle == message.handle
        )
        return life

    def _hear_of(self, life: Life, message: m.Started | m.Segment | m.Flushed) -> None:
        match message:
            case m.Started():
                assert life.handle is None
                assert message.handle not in [
                    each.handle for each in map(self.live, self.lives) if each
                ]
                life.handle = message.handle
            case m.Segment():
                life.segment(message)
            case m.Flushed():
                life.check_length()
                assert message.id == life.flushes.popleft()

    def _hear_end(self, life: Life, message: m.Done | m.Cancelled | m.Error) -> None:
        assert not isinstance(message, m.Error), message.code
        life.over = True
        ms = round(life.samples * 1000 / life.rate, 3)
        if isinstance(message, m.Cancelled):
            assert message.sent_ms == ms
            return
        life.check_length()
        assert life.ended
        assert not life.flushes
        assert message.audio_ms == ms
        assert (message.reason == "empty") == (not life.samples)
