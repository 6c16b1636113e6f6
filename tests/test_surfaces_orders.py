"""Every surface of others, with a session behind it: whatever is sent in whatever order, its grammar holds.

Rule: no sockets and no clock; the speaker makes a move where the example says so.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws import messages as m
from orpheus_ws.context import Silence
from orpheus_ws.errors import BadMessage, EngineFailed
from orpheus_ws.surfaces import HangUp, surfaces
from tests.session_driver import Driver
from tests.surface_grammars import GRAMMARS, SECRET
from tests.translators import translator

TEXTS = st.sampled_from(
    [
        "",
        " ",
        "🙂",
        "Hi. ",
        "It was cold. ",
        "and so on ",
        f"{SECRET} ",
        f"{SECRET} {SECRET}. " * 25,
    ]
)


def _json(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return st.fixed_dictionaries(fields).map(json.dumps)


def _any(optional: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[str]:
    return st.fixed_dictionaries({}, optional=optional).map(json.dumps)


BOOL = st.sampled_from([None, True, False])
IDS = st.sampled_from(["a", "b", "c", "d", "e"])
CONFIG = {
    "type": st.just("session.config"),
    "voice": st.sampled_from(["tara", "LEO", SECRET]),
    "response_format": st.sampled_from(["pcm", "wav"]),
    "stream_audio": st.booleans(),
    "split_granularity": st.sampled_from([None, "none", "clause", "sentence"]),
    "timestamp_type": st.sampled_from([None, "word"]),
    "word_timestamps": st.booleans(),
    "seed": st.sampled_from([None, 0, -1, 2**40]),
}
FRAMES: dict[str, st.SearchStrategy[str]] = {
    "baseten": st.one_of(
        TEXTS,
        TEXTS,
        st.just("__END__"),
        _any({"voice": IDS, "max_tokens": st.integers(-5, 9999), "buffer_size": st.just(2)}),
    ),
    "vllm_omni": st.one_of(
        _json(type=st.just("input.text"), text=TEXTS),
        _json(type=st.just("input.text"), text=TEXTS),
        _json(type=st.just("input.done")),
        _json(**CONFIG),
        _json(type=st.just("voice.list")),
    ),
    "cartesia": st.one_of(
        _any(
            {
                "context_id": IDS,
                "transcript": TEXTS,
                "continue": BOOL,
                "flush": BOOL,
                "add_timestamps": BOOL,
                "max_buffer_delay_ms": st.sampled_from([None, 0, 100, 5000]),
                "voice": st.sampled_from(["leo", SECRET, {"mode": "id", "id": "x"}, None]),
            }
        ),
        _json(context_id=IDS, transcript=TEXTS, **{"continue": BOOL}),
        _json(context_id=IDS, cancel=st.just(True)),
    ),
    "deepgram": st.one_of(
        _json(type=st.just("Speak"), text=TEXTS),
        _json(type=st.just("Speak"), text=TEXTS),
        _json(type=st.sampled_from(["Flush", "Clear"])),
    ),
}
"""What fits, in each protocol. What closes the socket is added by the tests."""

FIRST = {"vllm_omni": '{"type": "session.config", "voice": "tara"}', "baseten": "{}"}
MOVES = st.one_of(st.integers(1, 4), st.just("fails"), st.just("waits"), st.just("runs"))


class Talk:
    """A translator, a session and a speaker, and the grammar that watches them."""

    def __init__(self, name: str) -> None:
        self.driver = Driver(contexts=3, text_chars=400, chunks=2, silence=Silence.OF_TEXT)
        self.over = False
        """The client can say nothing more."""
        self._hung_up = False
        self._translator = translator(name)
        self._grammar = GRAMMARS[name]()
        self._said = 0
        limits = m.Limits(
            contexts=3,
            text_chars=400,
            message_bytes=1000,
            messages_per_second=500,
            idle_seconds=1,
            session_seconds=1,
        )
        ready = m.Ready(session="s", encodings=(), sample_rates=(), voices=(), limits=limits)
        self.driver.sent.append(ready)
        self._tell()

    def send(self, frame: str | bytes) -> None:
        """The client sends a frame."""
        if self.over:
            return
        try:
            messages = self._translator.receive(frame)
        except BadMessage as error:
            assert SECRET not in str(error)  # noqa: PT017 - it need not be raised
            self.driver.sent += self.driver.session.refuse(error)
            self.over = error.close_code is not None
        else:
            self._grammar.sent(frame)
            for message in messages:
                assert isinstance(message, m.ClientMessage)
                self.driver.receive(message)
                self.over |= isinstance(message, m.Close)
        self._tell()

    def move(self, what: int | str) -> None:
        """The speaker does something, or time passes. After a hang-up it only closes."""
        if self._hung_up:
            return
        if what == "waits":
            self.driver.now += 31.0
        elif what == "fails":
            if self.driver.speaking is not None and self.driver.speaking.live:
                self.driver.fail(EngineFailed("the engine failed; try again"))
        elif what == "runs":
            self.driver.run()
        else:
            assert isinstance(what, int)
            for _ in range(what):
                self.driver.step()
        self._tell()

    def rest(self) -> None:
        """Nothing more is sent."""
        if not self._hung_up:
            self.driver.settle()
            self._tell()
        if not self.over:
            self._grammar.at_rest()

    def _tell(self) -> None:
        for message in self.driver.sent[self._said :]:
            for frame in self._translator.send(message):
                self._grammar.got(frame)
                self._hung_up |= isinstance(frame, HangUp)
        self.over |= self._hung_up
        self._said = len(self.driver.sent)


def test_every_surface_of_others_has_a_grammar() -> None:
    """There is none for the native protocol, which is checked by its messages."""
    assert {surface.name for surface in surfaces()} == {"native", *GRAMMARS}


@pytest.mark.parametrize("name", GRAMMARS)
@given(data=st.data())
def test_any_order_of_what_fits(name: str, data: st.DataObject) -> None:
    """All that comes back is of the protocol, and each context has one end."""
    talk = Talk(name)
    if name in FIRST:
        talk.send(FIRST[name])
    moves: Sequence[Any] = data.draw(
        st.lists(st.one_of(st.tuples(FRAMES[name]), st.tuples(FRAMES[name]), MOVES), max_size=30)
    )
    for move in moves:
        if isinstance(move, tuple):
            talk.send(move[0])
        else:
            talk.move(move)
    talk.rest()


def test_no_room_while_another_is_heard() -> None:
    """An utterance that there is no room for is over at once, in the middle of a sentence of another."""
    talk = Talk("vllm_omni")
    talk.send(FIRST["vllm_omni"])
    talk.send('{"type": "input.text", "text": "Hi. "}')
    for _ in range(4):
        talk.send('{"type": "input.done"}')
        talk.move(1)
    talk.rest()


BYTES = st.one_of(st.text(max_size=30), st.binary(max_size=30))


@pytest.mark.parametrize("name", GRAMMARS)
@given(data=st.data())
def test_any_bytes_among_what_fits(name: str, data: st.DataObject) -> None:
    """So it is with what is no message at all."""
    talk = Talk(name)
    if name in FIRST and data.draw(st.booleans()):
        talk.send(FIRST[name])
    for frame in data.draw(st.lists(st.one_of(FRAMES[name], FRAMES[name], BYTES), max_size=20)):
        talk.send(frame)
        talk.move(1)
    talk.rest()
