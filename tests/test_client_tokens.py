"""Tokens that an application makes for its browsers, shown to a real server."""

import subprocess
import sys
import time

import pytest

from orpheus_ws.client import connect, make_token
from orpheus_ws.errors import Refused
from tests.harness import server


async def opens(url: str, token: str) -> bool:
    """Whether a socket opens with this token."""
    try:
        async with connect(f"{url}?token={token}") as client:
            return bool(await client.speak("Hi.").read())
    except Refused as refused:
        if refused.status != 401 or token in str(refused):
            raise
        return False


async def test_a_token_opens_a_socket() -> None:
    """A token made with the SDK is good until it expires, at the server that has its key."""
    now = int(time.time())
    token = make_token("web", "secret", expires=now + 600)
    async with server("auth.keys.web=secret") as started:
        assert await opens(started.address.url, token)
        assert not await opens(started.address.url, make_token("web", "secret", expires=now - 1))
        assert not await opens(started.address.url, token[:-1])
    for keys in ("auth.keys.web=changed", "auth.keys.mobile=secret"):
        async with server(keys) as started:
            assert not await opens(started.address.url, token)


@pytest.mark.parametrize(
    "statement", ["import orpheus_ws.access_tokens", "import orpheus_ws.client"]
)
def test_making_tokens_needs_no_server(statement: str) -> None:
    """An application server makes tokens without anything that only a speech server needs."""
    program = (
        f"{statement}\nimport sys\n"
        "print([n for n in sys.modules if n.split('.')[0] in "
        "('torch','numpy','prometheus_client','uvloop','sentencex') or '.server' in n and "
        "n.startswith('orpheus')])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == "[]"
