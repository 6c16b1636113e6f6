"""Every protocol over a socket, with a session behind it that speaks.

An input is a script: the name of a surface, with `?` and a query if it has one, and then a line for what
happens. `t…` is a text frame, `b…` a binary one, `s` and a digit so many steps of the speaker, `w` half a
minute, `f` an engine that fails, and every other line a text frame as it is. Whatever is sent, the
answers are frames of that protocol; refusals are ours; every context has one end; and `close` comes to one.
"""

import base64
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from orpheus_ws import messages as m
from orpheus_ws.errors import BadMessage, EngineFailed, OrpheusError
from orpheus_ws.session import Goodbye
from orpheus_ws.surfaces import HangUp, Opening, Translator, surfaces
from orpheus_ws.wire import wires
from tests.fuzz.oracles import Ledger, check_error
from tests.session_driver import Driver

_KINDS: Final = {
    "baseten": set[str](),
    "cartesia": {"chunk", "timestamps", "flush_done", "done", "error"},
    "deepgram": {"Metadata", "Flushed", "Cleared", "Warning", "Error"},
    "vllm_omni": {
        "audio.start",
        "audio.chunk",
        "audio.done",
        "session.done",
        "error",
        "voice.list",
    },
}
_BINARY: Final = {"baseten", "deepgram", "vllm_omni"}
_SPOKEN: Final = {surface.name: surface for surface in surfaces()}
WORDS = (
    *_SPOKEN, *(kind for kinds in _KINDS.values() for kind in kinds), "__END__", "context_id", "transcript",
    "continue", "cancel", "flush", "max_buffer_delay_ms", "output_format", "add_timestamps", "voice", "Speak",
    "Flush", "Clear", "Close", "session.config", "input.text", "input.done", "session.close", "word_timestamps",
    "timestamp_type", "stream_audio", "response_format", "split_granularity", "\ns4\n", "\nf\n", "\nw\n", '"type"',
)  # fmt: skip


def one(data: bytes) -> None:
    """See `Target`."""
    first, *lines = data.split(b"\n")
    name, _, query = first.decode(errors="replace").partition("?")
    surface = _SPOKEN.get(name)
    if surface is None:
        return
    opening = Opening(
        parameters={},
        query=dict(parse_qsl(query)),
        headers={},
        subprotocol=None,
        voices=("tara", "leo"),
    )
    try:
        conversation = _Conversation(name, surface.open(opening))
    except OrpheusError as error:
        check_error(error)
        return
    for line in lines:
        if not conversation.over:
            conversation.follow(line)
    conversation.finish()


class _Conversation:
    """What `server/connection.py` does, by hand."""

    def __init__(self, name: str, translator: Translator) -> None:
        self.over = False
        self._name = name
        self._translator = translator
        self._driver = Driver(contexts=3, text_chars=300, chunks=2)
        self._ledger = Ledger()
        self._told = 0
        self._say(
            m.Ready(
                session="s",
                encodings=("pcm_s16le",),
                sample_rates=(24_000,),
                voices=("tara", "leo"),
                limits=m.Limits(
                    contexts=3,
                    text_chars=300,
                    message_bytes=1,
                    messages_per_second=1,
                    idle_seconds=1,
                    session_seconds=1,
                ),
            )
        )

    def follow(self, line: bytes) -> None:
        """Do what a line of the script says."""
        kind, rest = line[:1], line[1:]
        driver = self._driver
        if kind == b"s" and rest.isdigit():
            for _ in range(int(rest[:1])):
                driver.step()
                self._listen()
        elif line == b"w":
            driver.now += 31
        elif line == b"f":
            if driver.speaking is not None and driver.speaking.live:
                driver.fail(EngineFailed("the engine failed; try again"))
                self._listen()
        elif kind == b"b":
            self._receive(rest)
        else:
            self._receive((rest if kind == b"t" else line).decode(errors="replace"))

    def finish(self) -> None:
        """Whatever has happened, `close` comes to an end."""
        if self.over:
            self._driver.session.abandon()
            return
        self._driver.receive(m.Close())
        self._listen()
        assert self._driver.settle() == Goodbye()
        self._listen()
        assert not self._ledger.open
        opened = [context for context, old, _ in self._driver.moves if old is None]
        assert len([each for each in opened if not each.live]) == len(opened)

    def _receive(self, frame: str | bytes) -> None:
        try:
            meant = self._translator.receive(frame)
        except BadMessage as error:
            check_error(error)
            self._driver.sent += self._driver.session.refuse(error)
            self.over = error.close_code is not None
        else:
            for message in meant:
                _check_meant(message)
                self._driver.receive(message)
        self._listen()

    def _listen(self) -> None:
        for message in self._driver.sent[self._told :]:
            self._say(message)
        self._told = len(self._driver.sent)

    def _say(self, message: m.ServerMessage) -> None:
        self._ledger.hear(message)
        for frame in self._translator.send(message):
            if isinstance(frame, HangUp):
                assert frame.code in (1008, 1011)
                self.over = True
            else:
                self._check_frame(frame)

    def _check_frame(self, frame: str | bytes) -> None:
        if self._name == "native":
            _WIRE.decode_reply(frame)
        elif isinstance(frame, bytes):
            assert self._name in _BINARY
        else:
            frame.encode()
            event = msgspec.json.decode(frame, type=dict[str, Any])
            assert event["type"] in _KINDS[self._name]
            if "audio_b64" in event:
                base64.b64decode(event["audio_b64"], validate=True)


_WIRE: Final = wires()["tts.v1.json"]


def _check_meant(message: m.ClientMessage) -> None:
    """A translator says only what the native protocol could."""
    assert _WIRE.decode_request(_WIRE.encode_request(message)) == message
