"""Every protocol over HTTP, with a session behind it that speaks.

An input is the name of a surface, a line, and then the body of a request. It is refused with JSON of one
line in our words, or answered with a whole body of the kind that it says it is.
"""

import base64
import json
from typing import Final

from orpheus_ws import messages as m
from orpheus_ws.context import Silence
from orpheus_ws.errors import OrpheusError
from orpheus_ws.pcm import STREAMED_WAV_HEADER
from orpheus_ws.session import Goodbye
from orpheus_ws.surfaces import Opening, Reply, http_surfaces
from orpheus_ws.surfaces.openai import SSE_TYPE, VOICES, WAV_TYPE
from orpheus_ws.wire import wires
from tests.fuzz.oracles import Ledger, check_error
from tests.session_driver import Driver

_ASKED: Final = {surface.name: surface for surface in http_surfaces()}
_OPENING: Final = Opening(
    parameters={}, query={}, headers={}, subprotocol=None, voices=("tara", "leo")
)
_WIRE: Final = wires()["tts.v1.json"]
WORDS = (
    *_ASKED, *VOICES, "input", "voice", "response_format", "speed", "stream_format", "sse", "pcm", "wav", "mp3",
    "prompt", "temperature", "top_p", "repetition_penalty", "max_tokens", "buffer_size", '{"id":', "1e999",
)  # fmt: skip


def one(data: bytes) -> None:
    """See `Target`."""
    name, _, body = data.partition(b"\n")
    surface = _ASKED.get(name.decode(errors="replace"))
    if surface is None:
        return
    try:
        reply = surface.open(_OPENING, body)
    except OrpheusError as error:
        check_error(error)
        assert b"\n" not in surface.refusal(400, error.code, str(error)).rstrip(b"\n")
        json.loads(surface.refusal(400, error.code, str(error)))
        return
    opened, *_, closed = reply.messages
    assert isinstance(opened, m.Open)
    assert isinstance(closed, m.Close)
    driver, ledger = Driver(text_chars=500, silence=Silence.ALWAYS), Ledger()
    for message in reply.messages:
        assert _WIRE.decode_request(_WIRE.encode_request(message)) == message
        driver.receive(message)
    assert driver.settle() == Goodbye()
    answer = b""
    for said in driver.sent:
        ledger.hear(said)
        if isinstance(said, m.Error):
            assert not answer
            json.loads(surface.refusal(400, said.code, said.message))
            return
        answer += b"".join(reply.send(said))
    assert ledger.ended == [opened.context]
    _check_answer(reply, answer)


def _check_answer(reply: Reply, answer: bytes) -> None:
    if reply.media_type == SSE_TYPE:
        *events, last = [
            json.loads(each.removeprefix(b"data: ")) for each in answer.split(b"\n\n")[:-1]
        ]
        assert last["type"] == "speech.audio.done"
        answer = b"".join(base64.b64decode(event["audio"], validate=True) for event in events)
    if reply.media_type == WAV_TYPE or answer.startswith(b"RIFF"):
        assert answer.startswith(STREAMED_WAV_HEADER)
        answer = answer.removeprefix(STREAMED_WAV_HEADER)
        assert b"RIFF" not in answer
    assert answer, "no audio, which clients take for a failure"
    assert len(answer) % 2 == 0
