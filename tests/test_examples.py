"""The programs in `docs/examples` do what they say, against a real server."""

import asyncio
import base64
import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.request
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as dial
from websockets.asyncio.server import ServerConnection, serve

from docs.examples import agent, book, telephone
from orpheus_ws.cli.exits import Exit
from orpheus_ws.client import connect
from tests import harness
from tests.test_cli import serving

PACED = ("engine.options.step_seconds=0.002",)
"""Slow enough that a long answer is not over before somebody interrupts it."""


async def test_the_agent_stops_for_its_user(capsys: pytest.CaptureFixture[str]) -> None:
    """It speaks what its model writes, is interrupted twice, and knows what was not heard."""
    async with harness.server() as started:
        await agent.main(started.address.url)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("not heard: ")
        assert line.endswith("Shall I?")
        assert "You said" not in line


def test_the_agent_is_short() -> None:
    """The loop is twenty lines, so that it can be read at once."""
    source = Path(agent.__file__).read_text(encoding="utf-8")
    loop = source[source.index("async def answer") : source.index("async def main")]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 23


class Caller:
    """A telephone company's end of the line, as Twilio's Media Streams describe it.

    It plays what it is sent as soon as `play` is called, and answers a mark when all that came before
    was played, or was dropped by `clear`.
    """

    STREAM = "MZ0001"
    LOUD = bytes([0x80]) * 160
    QUIET = b"\xff" * 160

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.received: list[dict[str, Any]] = []

    async def send(self, event: str, **fields: Any) -> None:
        """Send a message with its number."""
        self._number += 1
        message = {"event": event, "sequenceNumber": str(self._number), **fields}
        await self._socket.send(json.dumps(message))

    async def start(self) -> None:
        """What every call begins with."""
        await self._socket.send(
            json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        )
        form = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
        start = {"streamSid": self.STREAM, "tracks": ["inbound"], "mediaFormat": form}
        await self.send("start", streamSid=self.STREAM, start=start)

    async def speak(self, frame: bytes, times: int = 1) -> None:
        """Say frames of 20 ms."""
        for _ in range(times):
            payload = base64.b64encode(frame).decode()
            await self.send("media", streamSid=self.STREAM, media={"payload": payload})

    async def receive(self) -> dict[str, Any]:
        """The next message; a mark is answered at once, as by somebody who plays very fast."""
        message: dict[str, Any] = json.loads(await self._socket.recv())
        assert message["streamSid"] == self.STREAM
        self.received.append(message)
        if message["event"] == "mark":
            await self.send("mark", streamSid=self.STREAM, mark=message["mark"])
        return message

    async def wait_for(self, event: str) -> dict[str, Any]:
        """Skip to the next message of a kind."""
        while (message := await self.receive())["event"] != event:
            pass
        return message

    def audio(self) -> bytes:
        """All that was to be played so far."""
        payloads = [m["media"]["payload"] for m in self.received if m["event"] == "media"]
        return b"".join(map(base64.b64decode, payloads))


@contextlib.asynccontextmanager
async def calling(
    *settings: str, answer: telephone.Answer = telephone.small_talk
) -> AsyncIterator[tuple[Caller, list[telephone.Call]]]:
    """A call through the bridge to a server, and the bridge's side of it."""
    calls: list[telephone.Call] = []
    async with harness.server(*settings) as started:

        async def take(socket: ServerConnection) -> None:
            async with connect(started.address.url) as client:
                calls.append(telephone.Call(socket, client, answer))
                await calls[-1].run()

        async with serve(take, "127.0.0.1", 0) as bridge:
            port = next(iter(bridge.sockets)).getsockname()[1]
            async with dial(f"ws://127.0.0.1:{port}") as socket:
                yield Caller(socket), calls


async def test_a_call_is_greeted_and_answered() -> None:
    """The caller hears a greeting in frames of 20 ms, and an answer half a second after speaking."""
    async with calling() as (caller, _):
        await caller.start()
        await caller.wait_for("mark")
        greeting = caller.audio()
        assert len(greeting) >= telephone.FRAME
        assert any(telephone.is_loud(greeting[i : i + 160]) for i in range(0, len(greeting), 160))
        await caller.speak(Caller.LOUD, 3)
        await caller.wait_for("clear")
        before = len(caller.received)
        await caller.speak(Caller.QUIET, telephone.PAUSE)
        await caller.wait_for("mark")
        frames = [m for m in caller.received[before:] if m["event"] == "media"]
        assert all(len(base64.b64decode(m["media"]["payload"])) == 160 for m in frames)
        assert frames
        await caller.send("stop", streamSid=Caller.STREAM, stop={"callSid": "CA1"})


async def long_story(turn: int) -> AsyncIterator[str]:
    """An answer that nobody hears the end of."""
    for number in range(40):
        yield f"Sentence {number} of turn {turn} goes on for a while. "


async def test_a_caller_interrupts() -> None:
    """From `clear` on nothing of the old answer comes, and the bridge knows what was not heard."""
    async with calling(*PACED, answer=long_story) as (caller, calls):
        await caller.start()
        first = await caller.wait_for("mark")
        await caller.speak(Caller.LOUD)
        await caller.wait_for("clear")
        await caller.speak(Caller.QUIET, telephone.PAUSE)
        # All that comes after it is of the next answer, as its marks say.
        mark = await caller.wait_for("mark")
        events = [message["event"] for message in caller.received]
        since = caller.received[events.index("clear") + 1 :]
        assert mark["mark"]["name"].partition(":")[0] != first["mark"]["name"].partition(":")[0]
        sent = sum(1 for message in since if message["event"] == "media")
        assert mark["mark"]["name"].endswith(f":{20 * sent}")
        (unheard,) = calls[0].unheard
        assert "Sentence 5 of turn 0" in unheard


async def test_a_caller_hangs_up_in_the_middle() -> None:
    """A line that is cut, with or without `stop`, ends the call and leaves the server idle."""
    for polite in (True, False):
        async with calling(*PACED, answer=long_story) as (caller, calls):
            await caller.start()
            await caller.wait_for("media")
            if polite:
                await caller.send("stop", streamSid=Caller.STREAM, stop={"callSid": "CA1"})
            else:
                await caller._socket.close()
            with contextlib.suppress(Exception):
                await caller.wait_for("clear")
        assert calls[0].unheard == []


# How they end -------------------------------------------------------------------------------------


def run_example(name: str, *arguments: str) -> tuple[int, str, str]:
    """Run one as its page says: its code, its output and its errors."""
    line = [sys.executable, "-m", f"docs.examples.{name}", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["agent", "telephone", "book"])
@pytest.mark.parametrize("wrong", [("a", "b", "c", "d"), ("--nothing",)])
def test_a_wrong_command_line(name: str, wrong: tuple[str, ...]) -> None:
    """It is one line that says what may stand there, and exit code 2; `--help` is the same with 0."""
    code, output, errors = run_example(name, *wrong)
    assert (code, output) == (Exit.USAGE, "")
    assert re.fullmatch(rf"usage: python -m docs\.examples\.{name} .*\n", errors)
    assert run_example(name, "--help") == (Exit.DONE, errors, "")


@pytest.mark.parametrize("name", ["agent", "telephone", "book"])
def test_no_server(name: str, tmp_path: Path, closed_port: int) -> None:
    """Where nothing listens, that is the one line."""
    (tmp_path / "book.txt").write_text("A day. " * 500)
    files = (str(tmp_path / "book.txt"), str(tmp_path / "book.wav")) if name == "book" else ()
    code, output, errors = run_example(name, *files, f"ws://127.0.0.1:{closed_port}/v1/tts")
    assert (code, output) == (Exit.FAILED, "")
    said = f"{name}: nothing listens at 127.0.0.1:{closed_port}: is the server running?\n"
    assert errors == said


def test_files_that_are_none(tmp_path: Path) -> None:
    """A book that is not there, is no text or is empty, or cannot be written, is named in one line."""
    text, binary, empty = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"
    text.write_text("A day.")
    binary.write_bytes(b"\xff\xfe")
    empty.write_text(" \n")
    for source, target in (
        (tmp_path / "missing.txt", tmp_path / "a.wav"),
        (tmp_path, tmp_path / "a.wav"),
        (binary, tmp_path / "a.wav"),
        (empty, tmp_path / "a.wav"),
        (text, tmp_path / "missing" / "a.wav"),
    ):
        code, output, errors = run_example("book", str(source), str(target))
        assert (code, output, errors.count("\n")) == (Exit.FAILED, "", 1), errors
        assert errors.startswith("book: ")
        assert str(target if source == text else source) in errors


@pytest.mark.parametrize("name", ["agent", "telephone", "book"])
def test_an_interrupted_example(name: str, tmp_path: Path) -> None:
    """Ctrl-C ends each in one line, with the code of the commands."""
    # The first of what it says has no end, so that it is in the middle of it however late the signal is.
    slow = ("--set", "engine.options.fault=stalls", "--set", "engine.options.fault_requests=1")
    (tmp_path / "book.txt").write_text("A day. " * 500)
    files = [str(tmp_path / "book.txt"), str(tmp_path / "book.wav")] if name == "book" else []
    with serving(*slow) as (_, announced):
        host, port = urlsplit(announced["url"]).netloc.split(":")
        active = f"http://{host}:{port}/capacity"
        program = [sys.executable, "-u", "-m", f"docs.examples.{name}", *files, announced["url"]]
        with subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            if name == "telephone":
                assert "calls come in at" in running.stdout.readline()
            else:
                while json.loads(_fetched(active))["active"] == 0:
                    assert running.poll() is None
            running.send_signal(signal.SIGINT)
            _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (Exit.INTERRUPTED, f"{name}: interrupted\n")


def _fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:
        content: bytes = response.read()
        return content


@given(st.binary(min_size=160, max_size=160))
def test_loudness_is_that_of_the_samples(frame: bytes) -> None:
    """A frame is loud where a sample of it is beyond the fourth segment of µ-law: 988 of 32124."""
    loudest = max(_linear(byte) for byte in frame)
    assert telephone.is_loud(frame) == (loudest >= 988)


def _linear(byte: int) -> int:
    """Magnitude of a byte of µ-law, as G.711 has it, in 16 bits."""
    segment, step = (~byte & 0x70) >> 4, ~byte & 0x0F
    return ((step << 3) + 132 << segment) - 132


SENTENCE = st.text(alphabet="abc ", min_size=3, max_size=60).map(lambda s: f"A{s.strip()}z.")


@given(st.lists(SENTENCE, min_size=1, max_size=30), st.integers(20, 200))
def test_parts_have_every_word_once(sentences: list[str], most: int) -> None:
    """Parts put together are the text, each within its size unless it is a single sentence."""
    found = book.parts(" ".join(sentences), most)
    assert " ".join(found).split() == " ".join(sentences).split()
    for part in found:
        assert len(part.strip()) <= most + 1 or part.count(".") == 1


async def test_a_book(tmp_path: Path) -> None:
    """A text of several parts becomes one file, its parts in order whatever their length."""
    source, target = tmp_path / "book.txt", tmp_path / "book.wav"
    paragraphs = [f"Chapter {n}. " + "A day. " * (3 if n % 2 else 1) for n in range(4)]
    source.write_text("\n\n".join(paragraphs), encoding="utf-8")
    async with harness.server() as started:
        text = source.read_text(encoding="utf-8")
        spoken = await book.speak(started.address.url, text, streams=3, part_chars=25)
        await asyncio.to_thread(book.main, str(source), str(target), started.address.url)
    heard = " ".join(text for _, text in spoken.segments)
    assert heard.split() == text.split()
    begins = [begin for begin, _ in spoken.segments]
    assert begins == sorted(begins)
    with wave.open(str(target)) as file:
        assert (file.getframerate(), file.getsampwidth()) == (24_000, 2)
        assert file.getnframes() > 24_000
