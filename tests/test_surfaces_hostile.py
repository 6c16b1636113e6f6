"""Every surface on a socket, and clients that mean it ill: each is told as its protocol does, if at all.

Rule: what comes back is read by the protocol's own grammar, which refuses what repeats the user's words.
One server is for many attacks, somebody else is spoken to meanwhile, and at the end nothing is held.
"""

import json
import logging
from collections.abc import Iterator
from typing import Any, Final

import pytest

from orpheus_ws.server import Server
from tests.besieging import SHORT, TURNS, Socket, besieged, every_surface, hostile, say
from tests.conformance.speakers import speaking
from tests.harness import turns_until
from tests.server_peers import STEPPED
from tests.surface_grammars import SECRET

FITS: Final[dict[str, dict[str, Any]]] = {
    "baseten": {
        "voice": "tara",
        "temperature": 0.6,
        "top_p": 0.8,
        "repetition_penalty": 1.3,
        "max_tokens": 2000,
        "buffer_size": 10,
    },
    "vllm_omni": {
        "type": "session.config",
        "voice": "tara",
        "speaker": "tara",
        "response_format": "pcm",
        "stream_audio": True,
        "speed": 1.0,
        "seed": 7,
        "split_granularity": "sentence",
        "timestamp_type": "word",
        "word_timestamps": False,
    },
    "cartesia": {
        "context_id": "h",
        "transcript": SECRET,
        "continue": False,
        "flush": False,
        "cancel": False,
        "voice": {"mode": "id", "id": SECRET},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
        "add_timestamps": True,
        "max_buffer_delay_ms": 0,
        "generation_config": {"speed": 1.0},
    },
    "deepgram": {"type": "Speak", "text": f"{SECRET}. "},
}
"""A message with every field that is heeded."""

WRONG: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 7, 2**31, 2**63, 10**40, -1.5, 1e308, float("nan"), float("inf"), "", "\0",
    SECRET, f"{SECRET} " * 4, [], [SECRET], {}, {"id": 7}, {"id": {"id": SECRET}}, {"encoding": SECRET},
    {"sample_rate": -1}, {"sample_rate": 44100}, {"sample_rate": 10**40}, {"container": SECRET},
    {"speed": 0}, {"speed": SECRET},
)  # fmt: skip
"""For a field that wants something else, or another one."""


def unfit(surface: str) -> Iterator[str | bytes]:
    """What does not fit, or might not."""
    fitting = FITS[surface]
    for name in fitting:
        yield json.dumps({key: value for key, value in fitting.items() if key != name})
        for value in WRONG:
            yield json.dumps(fitting | {name: value})
        yield json.dumps(fitting)[:-1] + f', "{name}": "{SECRET}"}}'
    yield json.dumps(fitting | {SECRET: SECRET})
    yield json.dumps(fitting | {"type": SECRET})
    whole = json.dumps(fitting)
    yield from ("", "[]", "null", "1", f'"{SECRET}"', whole[:-1], whole + whole, "\ufeff" + whole)
    yield from ("[" * 1900 + "]" * 1900, '{"x": ' + "[" * 1900 + "]" * 1900 + "}", "NaN", "\0")
    yield whole.replace(SECRET, "\\ud800").replace("tara", "\\ud800")
    yield from (b"", b"\0\1", whole.encode(), whole.encode("utf-16"), b"\xff" * 100)


@pytest.fixture(autouse=True)
def _no_surprises(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The server logs neither failures of its own nor words of its users."""
    caplog.set_level(logging.INFO)
    yield
    records = [each for each in caplog.get_records("call") if each.name.startswith("orpheus")]
    assert not [each for each in records if each.levelno >= logging.WARNING]
    assert not [each for each in records if SECRET in str(vars(each))]


# Messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("surface", "greet", "fatal"),
    [
        ("baseten", False, True),
        ("vllm_omni", False, True),
        ("vllm_omni", True, False),
        ("cartesia", True, False),
        ("deepgram", True, False),
    ],
)
async def test_what_does_not_fit(surface: str, greet: bool, fatal: bool) -> None:
    """Errors are the protocol's; only where nothing can follow them does the socket close, with 1008."""
    async with besieged(surface) as started:
        closes = 0
        for frame in unfit(surface):
            async with hostile(started, surface, greet=greet) as client:
                await client.send(frame)
                code = await client.rest()
                assert code in (None, 1000, 1008), (frame, code)
                closes += code == 1008
        assert (closes > 0) == fatal


@every_surface
async def test_what_does_not_fit_in_the_middle(surface: str) -> None:
    """A binary frame while somebody is spoken to ends no more than it does before."""
    async with besieged(surface, STEPPED) as started, speaking(started, surface) as speaker:
        await speaker.write(f"{SHORT} {SHORT}", complete=False)
        assert await speaker.hear()
        client = Socket(surface, speaker.socket)
        await client.send(b"\0\1")
        assert await client.rest() == (1008 if surface == "baseten" else None)


def waiting(started: Server) -> int:
    """The most text of a context that waits to be spoken."""
    sessions = [connection._session for connection in started._connections]
    return max(context.unspoken_chars for session in sessions for context in session.contexts)


@every_surface
@pytest.mark.parametrize(("chars", "fits"), [(1000, True), (1001, False)])
async def test_the_limit_of_text(surface: str, chars: int, fits: bool) -> None:
    """So many characters may wait to be spoken; one more is an error of the turn, or its end."""
    text, end = TURNS[surface]
    async with besieged(surface) as started, hostile(started, surface, greet=True) as client:
        # Without the end of a sentence nothing is spoken, and all of it waits.
        await client.send(say(text, "a " * (chars // 2) + "a" * (chars % 2)))
        if surface != "baseten":
            assert await client.rest() is None
        elif fits:
            await turns_until(lambda: waiting(started) > chars // 2)
        else:
            assert await client.rest() == 1008
        failed = started.metrics.registry.get_sample_value(
            "orpheus_contexts_total", {"outcome": "failed", "surface": surface}
        )
        assert bool(failed) != fits
        await client.send(end)


@every_surface
async def test_the_limit_of_a_message(surface: str) -> None:
    """A message of just so many bytes is taken; one more closes the socket with 1009."""
    async with besieged(surface) as started:
        for size, code in ((4000, None), (4001, 1009), (100_000, 1009)):
            async with hostile(started, surface, greet=False) as client:
                await client.send(json.dumps(FITS[surface]).ljust(size))
                assert await client.rest() in ({code, 1000} if code is None else {code})


@every_surface
async def test_a_thousand_turns_at_once(surface: str) -> None:
    """Of more than there may be each has one end all the same, and the socket lives."""
    text, end = TURNS[surface]
    turn = (text.replace("true", "false"),) if surface == "cartesia" else (text, end)
    async with besieged(surface) as started, hostile(started, surface, greet=True) as client:
        for number in range(1000):
            frames = (frame.replace('"t"', f'"{number}"') for frame in turn)
            await client.send(*(frame.replace("{text}", "…") for frame in frames))
            if number % 50 == 0:
                await client.rest()
        assert await client.rest() == (1000 if surface == "baseten" else None)


@every_surface
async def test_after_the_end(surface: str) -> None:
    """Whatever is sent behind the end of a turn or of a socket ends nothing twice."""
    text, end = TURNS[surface]
    ends = {"vllm_omni": '{"type": "session.close"}', "deepgram": '{"type": "Close"}'}
    async with besieged(surface) as started, hostile(started, surface, greet=True) as client:
        more = say(text, "Hi. ")
        for frame in (more, end, end, more, end, ends.get(surface, end), more, end, end):
            await client.send(frame)
            if surface == "cartesia":  # what comes for a name may be of its last life
                await client.rest()
        await client.rest()


NOTHING: Final[dict[str, tuple[str, ...]]] = {
    "baseten": ("", ""),
    "vllm_omni": ('{"type": "input.text", "text": ""}', '{"type": "input.done"}'),
    "cartesia": (
        '{"context_id": "nobody", "cancel": true}',
        '{"context_id": "*", "cancel": true}',
        '{"context_id": "e", "transcript": "", "flush": true, "continue": true}',
        json.dumps({"context_id": "x" * 128, "transcript": "", "continue": True}),
        json.dumps({"context_id": "x" * 129, "transcript": "", "continue": True}),
        json.dumps({"context_id": "x" * 3000, "transcript": ""}),
        '{"context_id": "\\u0000\\n\\"", "transcript": "Hi."}',
    ),
    "deepgram": ('{"type": "Flush"}', '{"type": "Clear"}', '{"type": "Speak", "text": ""}'),
}


@every_surface
async def test_much_ado_about_nothing(surface: str) -> None:
    """Flushes of nothing, cancels of nobody: the socket lives, and the next turn is heard."""
    async with besieged(surface) as started, hostile(started, surface, greet=True) as client:
        for _ in range(100):
            await client.send(*NOTHING[surface])
            if surface != "baseten":
                assert await client.rest() is None
        assert await client.rest() in (None, 1000)
