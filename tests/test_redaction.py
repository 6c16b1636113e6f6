"""What is said and who may say it stays between a client and its server: marked text, and marked keys.

A real server process at log level debug, in asyncio's debug mode, with a collector of traces and Python's
fault handler, is spoken to on every surface in every way that goes wrong, and ends in every way. Then the
mark is looked for in everything that anybody else can see.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.access_tokens import make_token
from orpheus_ws.surfaces import http_surfaces
from orpheus_ws.surfaces.native import PATH
from orpheus_ws.wire import wires
from tests.conformance.speakers import client_of
from tests.harness import JSON, MSGPACK, Peer
from tests.http_peers import body
from tests.spans import Collector, collecting
from tests.telling_codec import MARK
from tests.telling_engine import WAYS
from tests.translators import BY_NAME

KEY = f"{MARK}-key-of-a-tenant"
HASHED = f"{MARK}-key-that-is-hashed"
OTHER = "another-tenants-key"
FINE = f"The {MARK} is spoken."


def spoiled(way: str) -> str:
    """A text that goes wrong in this way, in one segment with the mark."""
    return f"The {MARK} will {way}."


class Process:
    """A server in a process of its own, and everything that it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.announced: dict[str, str] = {}
        self.replies: list[bytes] = []
        """What others than the speaker were told, and every refusal and close reason."""
        self.code: int | None = None

    @property
    def said(self) -> bytes:
        """On standard output and standard error."""
        return b"".join((self.folder / name).read_bytes() for name in ("out", "err"))

    def at(self, path: str) -> str:
        """A path on the port of sockets."""
        return self.announced["url"].removesuffix(PATH) + path


@contextlib.asynccontextmanager
async def serving(
    folder: Path, collector: Collector, *settings: str, ending: signal.Signals | None
) -> AsyncIterator[Process]:
    """A server with marked keys. It is told to end by a signal, or ends by itself."""
    keys = folder / "keys.toml"
    digest = hashlib.sha256(HASHED.encode()).hexdigest()
    keys.write_text(f'[marked]\nkeys = ["sha256:{digest}", "{KEY}"]\n[other]\nkeys = ["{OTHER}"]\n')
    every = ("log.level=debug", "server.http_port=0", "server.port=0", "server.metrics_port=0",
             "server.drain_seconds=2", f"auth.file={keys}", f"tracing.endpoint={collector.endpoint}",
             "engine.name=tests.telling_engine", "codec.name=simulated", *settings)  # fmt: skip
    running = Process(folder)
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-X", "faulthandler", "-X", "dev", "-m", "orpheus_ws", "serve"),
            *(part for setting in every for part in ("--set", setting)),
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONASYNCIODEBUG": "1", "OTEL_BSP_SCHEDULE_DELAY": "50"},
        )
    try:
        while not (line := (folder / "out").read_bytes()).endswith(b"\n"):
            assert process.returncode is None, running.said
            await asyncio.sleep(0.05)
        running.announced = json.loads(line)
        yield running
        if ending is not None:
            process.send_signal(ending)
        running.code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# What clients do ----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def native(
    running: Process, key: str = KEY, subprotocol: str = MSGPACK
) -> AsyncIterator[Peer]:
    """A socket of the native protocol."""
    async with connect(
        running.announced["url"],
        additional_headers={"Authorization": f"Bearer {key}"},
        subprotocols=[Subprotocol(subprotocol)],
        compression=None,
    ) as socket:
        yield Peer(socket, wires()[subprotocol])


async def told(socket: ClientConnection) -> bytes:
    """All that comes until the socket ends, and why it ended."""
    heard = b""
    with contextlib.suppress(ConnectionClosed):
        while True:
            heard += await socket.recv(decode=False)
    return heard


async def speak_natively(running: Process) -> None:
    """Speak, fail in each way, and send what does not fit, in both wires, by key and by token."""
    for subprotocol in (MSGPACK, JSON):
        async with native(running, HASHED, subprotocol) as caller:
            await caller.send(m.Config(lead_ms=10_000))
            for name in ("fine", *WAYS):
                await caller.say(f"{MARK}-{name}", FINE if name == "fine" else spoiled(name))
                await caller.utterance(f"{MARK}-{name}")
            await caller.send(m.Open(context=MARK, voice=MARK, encoding=MARK))
            for frame in (f'{{"type": "{MARK}"}}', f'{{"{MARK}', MARK, MARK.encode(), b"\xc1" * 9):
                with contextlib.suppress(ConnectionClosed):
                    await caller.socket.send(frame)
            await caller.socket.close()
            running.replies.append((caller.socket.close_reason or "").encode())
    token = make_token("marked", KEY, expires=int(time.time()) + 60)
    async with connect(
        f"{running.announced['url']}?token={token}", subprotocols=[Subprotocol(MSGPACK)]
    ):
        pass


async def be_refused(running: Process) -> None:
    """Come with wrong keys and tokens, to wrong paths, and with what is no handshake at all."""
    token = make_token("marked", KEY, expires=1)
    for path, key in (
        (f"{PATH}?token={token}", ""),
        (f"{PATH}?token={quote(MARK)}", ""),
        (PATH, f"{KEY}x"),
        (f"/{MARK}?token={token}&{MARK}={MARK}", KEY),
        (f"{PATH}?{MARK}={MARK}", KEY),
    ):
        with pytest.raises(InvalidStatus) as refusal:
            await connect(
                running.at(path),
                additional_headers={"X-API-Key": key, "Cookie": MARK, "User-Agent": MARK},
                subprotocols=[Subprotocol(MARK)],
            )
        running.replies.append(refusal.value.response.serialize())
    for scheme in ("url", "http"):
        port = running.announced[scheme].removesuffix(PATH).rpartition(":")[2]
        for raw in (
            f"{MARK}\r\n\r\n",
            f"GET /{MARK} HTTP/1.1\r\nX-API-Key: {KEY}\r\nBad {MARK}\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(raw.encode())
            writer.write_eof()
            running.replies.append(await reader.read())
            writer.close()


async def speak_elsewhere(running: Process) -> None:
    """Speak, fail and send nonsense on every surface with a socket."""
    for surface in BY_NAME:
        client = client_of(surface)
        for text in (FINE, spoiled("raise"), spoiled("task"), None):
            async with connect(
                running.at(client.path),
                additional_headers={"X-API-Key": KEY},
                subprotocols=[Subprotocol(name) for name in client.subprotocols] or None,
            ) as socket:
                speaker = client(socket)
                await speaker.greet()
                if text is None:
                    for frame in (f'{{"{MARK}": "{MARK}"', f'{{"type": "{MARK}"}}', b"qmarkq"):
                        with contextlib.suppress(ConnectionClosed):
                            await socket.send(frame)
                else:
                    await speaker.write(text, complete=True)
                    if text == FINE:
                        await speaker.rest()
                    else:
                        with contextlib.suppress(ConnectionClosed):
                            await socket.recv()
            running.replies.append((socket.close_reason or "").encode())


def ask_over_http(running: Process) -> None:
    """Ask for speech, for failures and with nonsense, over HTTP; metrics with a marked query too."""
    address = running.announced["http"]

    def ask(path: str, content: bytes | None, key: str = KEY) -> bytes:
        request = urllib.request.Request(f"{address}{path}", content, {"X-API-Key": key})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                running.replies.append(str(error.headers).encode() + error.read())
        return b""

    for surface in http_surfaces():
        path = surface.paths[0]
        assert ask(path, json.dumps(body(surface.name, FINE)).encode())
        for wrong in (
            json.dumps(body(surface.name, spoiled("raise"))).encode(),
            json.dumps(body(surface.name, spoiled("group"))).encode(),
            f'{{"{MARK}": "{MARK}"'.encode(),
            json.dumps({"input": {MARK: MARK}, "prompt": [MARK], "voice": MARK}).encode(),
        ):
            assert not ask(path, wrong)
        assert not ask(path, b"{}", f"{KEY}x")
        assert not ask(f"{path}?token={MARK}", b"{}", "")
    assert not ask(f"/{MARK}?token={KEY}", b"{}")


def metrics(running: Process) -> bytes:
    """As they are scraped, by somebody who puts a key where none belongs."""
    with urllib.request.urlopen(
        f"{running.announced['metrics']}?token={KEY}", timeout=20
    ) as answer:
        return bytes(answer.read())


async def overhear(running: Process) -> None:
    """Be another tenant meanwhile, and keep all that one is sent."""
    async with native(running, OTHER) as other:
        while True:
            running.replies.append(await other.socket.recv(decode=False))


# What is looked for -------------------------------------------------------------------------------


def traces_of(secret: bytes) -> list[bytes]:
    """A text in the forms in which it may turn up; the middle of it, where base64 has other letters."""
    encoded = [base64.b64encode(secret[start:])[4:-4] for start in range(3)]
    return [secret, secret.hex().encode(), quote(secret).encode(), *filter(None, encoded)]


def look(running: Process, collector: Collector, *others: bytes) -> None:
    """Fail if the mark, a key, a token or a hash of one is anywhere where others can see it."""
    token = make_token("marked", KEY, expires=1).rpartition(".")[2].encode()
    wanted = [MARK.encode(), *traces_of(KEY.encode()), *traces_of(HASHED.encode()), token]
    wanted += [hashlib.sha256(key.encode()).hexdigest().encode() for key in (KEY, HASHED)]
    places = {
        "output": running.said,
        "replies to others": b"\n".join(running.replies),
        "traces": b"\n".join(collector.bodies),
        **dict(zip(map(str, range(len(others))), others, strict=True)),
    }
    for place, content in places.items():
        for secret in wanted:
            at = content.find(secret)
            assert at < 0, f"{place}: {content[max(0, at - 400) : at + 200]!r}"


async def test_a_day_that_goes_wrong(tmp_path: Path) -> None:
    """Whatever is said and sent, wherever: nobody else sees it, nor any key, in log, metric or trace."""
    with collecting() as collector:
        async with serving(tmp_path, collector, ending=signal.SIGTERM) as running:
            overhearing = asyncio.create_task(overhear(running))
            await speak_natively(running)
            await be_refused(running)
            await speak_elsewhere(running)
            await asyncio.to_thread(ask_over_http, running)
            scraped = await asyncio.to_thread(metrics, running)
            overhearing.cancel()
            await asyncio.wait([overhearing])
        assert running.code == 0, running.said
    look(running, collector, scraped)
    # And yet there was something to see: the failures are in the log, by their types.
    for logged in (
        b'"uncaught"',
        b"ValueError",
        b"ExceptionGroup",
        b'"refused"',
        b'"context ended"',
    ):
        assert logged in running.said, logged
    assert b"marked" in running.said
    assert collector.spans("utterance")
    assert b'key="marked"' in scraped


@pytest.mark.parametrize(
    ("codec", "word", "code"),
    [
        ("simulated", "abort", -signal.SIGABRT),
        ("simulated", "die", 3),
        ("tests.telling_codec", "go on and on and on", 3),
    ],
)
async def test_a_bad_end(tmp_path: Path, codec: str, word: str, code: int) -> None:
    """The process is killed by a library, or its engine or codec dies of a text: the last words say none."""
    with collecting() as collector:
        async with (
            serving(tmp_path, collector, f"codec.name={codec}", ending=None) as running,
            native(running, OTHER) as other,
            native(running) as caller,
        ):
            await other.send(m.Open(context="waits"))
            await other.fence()
            for name in (f"{MARK}-1", f"{MARK}-2"):
                await caller.say(name, spoiled(word))
            for connected in (other, caller):
                heard = await told(connected.socket)
                running.replies.append((connected.socket.close_reason or "").encode())
                if connected is other:
                    running.replies.append(heard)
        assert running.code == code, running.said
    look(running, collector)
    assert (b"Fatal Python error" in running.said) == (word == "abort")
