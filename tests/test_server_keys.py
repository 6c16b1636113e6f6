"""Keys at a server that runs: a file that changes under it, and what each key may do."""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.client import connect as connect_client
from orpheus_ws.client import make_token
from orpheus_ws.config import AuthConfig
from orpheus_ws.errors import Disconnected, Refused, StartupError
from orpheus_ws.keys import read_keys
from orpheus_ws.server import Server
from orpheus_ws.server.admission import Holder
from orpheus_ws.server.parts import Parts, open_parts
from tests.certificates import Authority
from tests.harness import MSGPACK, peer, server, turns_until
from tests.http_peers import SHORT, ask, calling, every_surface, http_server
from tests.server_peers import SENTENCE, STEPPED, closed, metric

ALICE, BOB = {"X-API-Key": "alices"}, {"X-API-Key": "bobs"}


class KeyFile:
    """A file of keys, and the server that it is for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.setting = f"auth.file={path}"

    def write(self, *, limits: str = "", **keys: list[str]) -> None:
        """Put another in its place, with these keys, hashed."""
        lines = []
        for name, secrets in keys.items():
            hashes = [f"sha256:{hashlib.sha256(key.encode()).hexdigest()}" for key in secrets]
            lines.append(f"[{name}]\nkeys = {json.dumps(hashes)}\n{limits}\n")
        self.replace("\n".join(lines))

    def replace(self, text: str) -> None:
        """Put another in its place."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8", errors="surrogatepass")
        os.replace(fresh, self.path)  # noqa: PTH105 - the name of what it does


@pytest.fixture(autouse=True)
def _read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read again when a test asks for it, and not also because it has taken two seconds."""
    monkeypatch.setattr("orpheus_ws.server.reload.LOOK_SECONDS", 3600.0)


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    """A file with a key of Alice's and one of Bob's."""
    made = KeyFile(tmp_path / "keys.toml")
    made.write(alice=["alices"], bob=["bobs"])
    return made


async def reread(started: Server, outcome: str = "done") -> None:
    """Have the server read its files again, and wait until it has."""
    count = started.metrics.reloads.labels("keys", outcome)._value
    before = count.get()
    started.reloading.ask()
    await turns_until(lambda: count.get() == before + 1)


async def gets_in(started: Server, headers: dict[str, str]) -> bool:
    """Whether a socket opens."""
    try:
        async with peer(started.address.url, headers=headers):
            return True
    except InvalidStatus as refusal:
        if refusal.response.status_code != 401:
            raise
        return False


# A file that changes ------------------------------------------------------------------------------


async def test_rotation(file: KeyFile) -> None:
    """A new key beside the old, then without the old: nobody who changes in time notices anything."""
    async with server(file.setting) as started:
        new = {"X-API-Key": "alices-new"}
        assert [await gets_in(started, key) for key in (ALICE, BOB, new)] == [True, True, False]
        file.write(alice=["alices", "alices-new"], bob=["bobs"])
        await reread(started)
        assert [await gets_in(started, key) for key in (ALICE, BOB, new)] == [True, True, True]
        async with peer(started.address.url, headers=new) as kept:
            file.write(alice=["alices-new"], bob=["bobs"])
            await reread(started)
            assert [await gets_in(started, key) for key in (ALICE, BOB, new)] == [False, True, True]
            await kept.say("a", SHORT)
            assert isinstance((await kept.utterance("a"))[-1], m.Done)


async def test_a_change_is_seen(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody need say that the file has changed, also when it is a link that leads elsewhere."""
    monkeypatch.setattr("orpheus_ws.server.reload.LOOK_SECONDS", 0.01)
    link = file.path.with_name("link.toml")
    link.symlink_to(file.path)
    async with server(f"auth.file={link}") as started:
        done = started.metrics.reloads.labels("keys", "done")._value
        file.write(alice=["other"])
        await turns_until(lambda: done.get() >= 1)
        assert not await gets_in(started, ALICE)
        other = KeyFile(file.path.with_name("other.toml"))
        other.write(alice=["alices"])
        fresh = link.with_name("fresh")
        fresh.symlink_to(other.path)
        before = done.get()
        os.replace(fresh, link)  # noqa: PTH105 - the name of what it does
        await turns_until(lambda: done.get() > before)
        assert await gets_in(started, ALICE)


async def test_a_change_while_it_starts(
    file: KeyFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may take minutes to load: what is written meanwhile, keys or certificate, is not missed."""
    monkeypatch.setattr("orpheus_ws.server.reload.LOOK_SECONDS", 0.01)
    authority = Authority(tmp_path)
    authority.issue()

    async def meanwhile(*arguments: Any) -> Parts:
        await asyncio.to_thread(file.write, bob=["bobs"])
        await asyncio.to_thread(authority.issue)
        return await open_parts(*arguments)

    monkeypatch.setattr("orpheus_ws.server.open_parts", meanwhile)
    async with server(file.setting, *authority.settings) as started:
        for what in ("keys", "certificate"):
            done = started.metrics.reloads.labels(what, "done")._value
            await turns_until(lambda done=done: done.get() == 1)  # type: ignore[misc]
        assert started.access_control.keys.tenants == ("bob",)


@pytest.mark.parametrize(
    "broken",
    ["", "[alice]\n", '[alice]\nkeys = ["s3cret', "s3cret = " + "[" * 5000, "\ud800", None],
)
async def test_a_broken_file(
    file: KeyFile, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The keys stay as they were, and log and metric say so; the next good file is taken."""
    async with server(file.setting) as started:
        async with peer(started.address.url, headers=ALICE) as opened:
            if broken is None:
                file.path.unlink()
            else:
                file.replace(broken)
            caplog.set_level(logging.ERROR)
            await reread(started, "failed")
            (record,) = caplog.records
            assert record.getMessage() == "not read again; what was read before stays in use"
            assert "s3cret" not in str(vars(record))
            assert await gets_in(started, ALICE)
            assert await metric(started, "orpheus_reloads_total", outcome="failed") == 1
            await opened.say("a", SHORT)
            assert isinstance((await opened.utterance("a"))[-1], m.Done)
        file.write(alice=["new"])
        await reread(started)
        assert not await gets_in(started, ALICE)


async def test_the_last_key(file: KeyFile) -> None:
    """Without a key in the file nobody gets in, whatever a server without a file would do."""
    file.replace("[alice]\nkeys = []\n")
    async with server(file.setting) as started:
        assert not await gets_in(started, {})
        assert not await gets_in(started, ALICE)


async def test_no_file_no_server(file: KeyFile) -> None:
    """A file that cannot be read at the start is said, before anything is loaded."""
    file.path.unlink()
    with pytest.raises(StartupError, match="cannot read"):
        async with server(file.setting):
            pass


async def test_a_file_is_enough_for_a_network(file: KeyFile) -> None:
    """A server with a key file may listen on any address, as one with keys may."""
    async with server(file.setting, "server.host=0.0.0.0") as started:
        assert started.address.port


# Sockets of a key that is gone --------------------------------------------------------------------


async def test_a_socket_that_speaks(file: KeyFile) -> None:
    """It hears all that it has sent, has no more text taken, and is closed with 1008 `key_removed`."""
    async with (
        server(file.setting, STEPPED) as started,
        peer(started.address.url, headers=ALICE) as removed,
        peer(started.address.url, headers=BOB) as other,
    ):
        await removed.send(m.Text(context="a", text=SENTENCE))
        await removed.send(m.Flush(context="a", id="1"))
        await other.say("b", SENTENCE)
        await removed.wait_for(m.Audio)
        file.write(bob=["bobs"])
        await reread(started)
        await removed.send(m.Text(context="c", text="Too late."))
        ended = await removed.utterance("a")
        assert isinstance(ended[-1], m.Done)
        assert ended[-1].chars == len(SENTENCE)
        assert await closed(removed) == (1008, "key_removed")
        assert isinstance((await other.utterance("b"))[-1], m.Done)
        assert await other.fence() == []


async def test_a_socket_that_is_idle(file: KeyFile) -> None:
    """It is closed at once; one that was opened with a token of the key as well; others stay."""
    file.replace('[alice]\nkeys = ["alices"]\n[bob]\nkeys = ["bobs"]\n')
    token = make_token("alice", "alices", expires=int(time.time()) + 60)
    async with server(file.setting) as started:
        url = started.address.url
        async with (
            peer(url, headers=ALICE) as by_key,
            peer(f"{url}?token={token}") as by_token,
            peer(url, headers=BOB) as other,
        ):
            file.replace('[bob]\nkeys = ["bobs"]\n')
            await reread(started)
            assert await closed(by_key) == (1008, "key_removed")
            assert await closed(by_token) == (1008, "key_removed")
            assert await other.fence() == []
        await turns_until(lambda: started.admission.active == 0)
        await turns_until(lambda: not started._sockets)


async def test_hashing_a_key_removes_nobody(file: KeyFile) -> None:
    """A key that is now written as its hash is the same key."""
    file.replace('[alice]\nkeys = ["alices"]\n')
    async with server(file.setting) as started, peer(started.address.url, headers=ALICE) as kept:
        file.write(alice=["alices"])
        await reread(started)
        assert await kept.fence() == []


async def test_a_key_that_goes_during_the_handshake() -> None:
    """Whoever had shown his key before it went is closed before he has said anything."""
    async with server("auth.keys.alice=alices") as started:
        reserve = started.admission.reserve

        def meanwhile(holder: Holder, now: float) -> bool:
            started.rekey(read_keys(AuthConfig(keys={"bob": "bobs"})))
            return reserve(holder, now)

        started.admission.reserve = meanwhile  # type: ignore[method-assign]
        subprotocols = [Subprotocol(MSGPACK)]
        async with connect(
            started.address.url, additional_headers=ALICE, subprotocols=subprotocols
        ) as opened:
            await opened.wait_closed()
        assert (opened.close_code, opened.close_reason) == (1008, "key_removed")


@every_surface
async def test_a_request_that_is_answered(file: KeyFile, surface: str) -> None:
    """Over HTTP it is answered to its end; the next one is refused."""
    async with http_server(file.setting, STEPPED) as started, calling(started) as caller:
        assert await ask(caller, surface, SHORT, **ALICE) == 200
        file.write(bob=["bobs"])
        await reread(started)
        assert await caller.rest()
        assert await ask(caller, surface, SHORT, **ALICE) == 401


async def test_the_client_is_told(file: KeyFile) -> None:
    """The SDK's user hears that the socket was closed, and that the next one is refused for good."""
    async with (
        server(file.setting) as started,
        connect_client(started.address.url, api_key="alices") as client,
    ):
        utterance = client.speak(forever())
        chunks = aiter(utterance)
        await anext(chunks)
        file.write(bob=["bobs"])
        await reread(started)
        with contextlib.suppress(Disconnected):
            async for _ in chunks:
                pass
        with pytest.raises(Refused) as refused:
            await client.speak(SHORT).read()
        assert (refused.value.status, refused.value.retryable) == (401, False)


async def forever() -> AsyncIterator[str]:
    """Somebody who has one sentence and never says that it was the last."""
    yield f"{SENTENCE} "
    await asyncio.Event().wait()


# Limits of a key ----------------------------------------------------------------------------------


async def test_limits_change(file: KeyFile) -> None:
    """New limits hold from the next socket, context and text on; what is open stays."""
    async with (
        server(file.setting) as started,
        peer(started.address.url, headers=ALICE) as first,
        peer(started.address.url, headers=ALICE) as second,
    ):
        file.write(limits="sockets = 1\ntext_per_minute = 10", alice=["alices"])
        await reread(started)
        with pytest.raises(InvalidStatus) as refusal:
            await connect(started.address.url, additional_headers=ALICE)
        assert refusal.value.response.status_code == 429
        for connected in (first, second):
            assert await connected.fence() == []
        await first.say("a", SHORT)
        error = (await first.utterance("a"))[-1]
        assert isinstance(error, m.Error)
        assert error.code == "text_too_long"
