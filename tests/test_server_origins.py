"""Origins wherever they are checked: sockets of each surface, requests over HTTP, and what browsers ask beforehand."""

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from orpheus_ws.server import Server
from tests.conformance.speakers import client_of
from tests.harness import server, turns_until
from tests.http_peers import PATHS, SHORT, Caller, ask, every_surface, one_call
from tests.translators import BY_NAME

APP, EVIL = "https://app.example", "https://evil.example"
LISTED = ("auth.origins=https://app.example,https://other.example",)
KEY = {"X-API-Key": "secret"}
KEYED = ("auth.keys.alice=secret",)


async def status(started: Server, surface: str, *headers: tuple[str, str]) -> int:
    """What a socket's handshake with these headers is answered."""
    client = client_of(surface)
    try:
        async with connect(
            f"ws://127.0.0.1:{started.address.port}{client.path}",
            additional_headers=list(headers),
            subprotocols=[Subprotocol(name) for name in client.subprotocols] or None,
        ):
            return 101
    except InvalidStatus as refusal:
        return refusal.response.status_code


@pytest.mark.parametrize("surface", BY_NAME)
async def test_listed_on_sockets(surface: str) -> None:
    """Pages that are listed may open a socket, programs may, and no other page; nor with two origins."""
    async with server(*LISTED) as started:
        for origins, expected in (
            ((), 101),
            ((APP,), 101),
            (("https://other.example",), 101),
            ((EVIL,), 403),
            (("null",), 403),
            ((f"{APP}.evil",), 403),
            ((APP, EVIL), 403),
            ((EVIL, APP), 403),
        ):
            headers = [("Origin", origin) for origin in origins]
            assert await status(started, surface, *headers) == expected, origins
        await turns_until(lambda: started.admission.active == 0)


@pytest.mark.parametrize("surface", BY_NAME)
async def test_a_list_is_no_key(surface: str) -> None:
    """With keys and a list both are needed of a page."""
    key = ("X-API-Key", "secret")
    async with server(*KEYED, *LISTED) as started:
        assert await status(started, surface, ("Origin", APP)) == 401
        assert await status(started, surface, ("Origin", EVIL), key) == 403
        assert await status(started, surface, ("Origin", APP), key) == 101
        assert await status(started, surface, key) == 101


@pytest.mark.parametrize("surface", BY_NAME)
async def test_a_name_that_leads_here(surface: str) -> None:
    """Without keys a page is refused that calls this machine by a name of its own (DNS rebinding)."""
    async with server() as started:
        host = f"evil.example:{started.address.port}"
        client = client_of(surface)
        with pytest.raises(InvalidStatus) as refusal:
            await connect(
                f"ws://{host}{client.path}",
                host="127.0.0.1",
                origin=f"http://{host}",  # type: ignore[arg-type]
                subprotocols=[Subprotocol(name) for name in client.subprotocols] or None,
            )
        assert refusal.value.response.status_code == 403
        own = f"127.0.0.1:{started.address.port}"
        assert await status(started, surface, ("Origin", f"http://{own}")) == 101


@every_surface
async def test_over_http(surface: str) -> None:
    """The same pages, and what others are answered names no origin."""
    async with one_call(*LISTED) as (_, caller):
        for origin, expected in ((APP, 200), (EVIL, 403), ("null", 403), (f"{APP}.evil", 403)):
            assert await ask(caller, surface, SHORT, Origin=origin) == expected
            allowed = caller.headers.get("access-control-allow-origin")
            assert allowed == (origin if expected == 200 else None)
            assert await caller.rest()


@every_surface
async def test_a_name_that_leads_here_over_http(surface: str) -> None:
    """As with sockets."""
    async with one_call() as (started, caller):
        port = started.address.http_port
        evil = {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}
        assert await ask(caller, surface, SHORT, **evil) == 403
        await caller.rest()
        own = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
        assert await ask(caller, surface, SHORT, **own) == 200


async def preflight(caller: Caller, path: str, origin: str) -> tuple[int, str | None]:
    """What a browser hears that asks whether a page may POST with a key."""
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-api-key, content-type",
    }
    answer = await caller.ask("OPTIONS", path, headers=headers)
    await caller.rest()
    return answer, caller.headers.get("access-control-allow-origin")


@every_surface
async def test_preflights(surface: str) -> None:
    """They are answered for pages that would be let in, and name no origin for others."""
    path = PATHS[surface]
    async with one_call(*LISTED) as (_, caller):
        assert await preflight(caller, path, APP) == (200, APP)
        assert "x-api-key" in caller.headers["access-control-allow-headers"].lower()
        assert await preflight(caller, path, EVIL) == (400, None)
        assert await preflight(caller, path, "null") == (400, None)
    async with one_call(*KEYED) as (_, caller):
        assert await preflight(caller, path, EVIL) == (200, "*")
        assert "access-control-allow-credentials" not in caller.headers
    async with one_call() as (_, caller):
        assert await preflight(caller, path, EVIL) == (405, None)
