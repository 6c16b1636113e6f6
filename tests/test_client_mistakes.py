"""What somebody gets wrong who uses the client is told in a line that says what to do."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orpheus_ws.client import make_client
from orpheus_ws.client.connection import check_url
from orpheus_ws.errors import ClientError

URL = "ws://speech.example/v1/tts"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://speech.example/v1/tts",
        "ws:///v1/tts",
        "ws://speech.example:0/v1/tts",
        "ws://speech.example:port/v1/tts",
        "ws://speech.example/v1/tts#part",
        "ws://user@speech.example/v1/tts",
        "ws://[::1/v1/tts",
        # Names that cannot be written as DNS has them: a label that is empty, or of 64 characters.
        "ws://speech..example/v1/tts",
        "ws://sprächen..example/v1/tts",
        f"ws://{'a' * 64}.example/v1/tts",
    ],
)
def test_an_address_of_nothing(url: str) -> None:
    """Where no server can be is said before anything is asked."""
    with pytest.raises(ClientError, match=r"must be like ws://host:port/v1/tts"):
        check_url(url)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "[::1]", "müller.example", "user:word@host", "a.b."]
)
@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_an_address_of_something(scheme: str, host: str) -> None:
    """Whatever may be a server is asked."""
    check_url(f"{scheme}://{host}/v1/tts?token=t")


@given(st.text(), st.booleans())
@example("[", True)
@example("\ud800", True)
def test_any_address(text: str, has_scheme: bool) -> None:
    """Any text at all is an address or a mistake, never another error."""
    with contextlib.suppress(ClientError):
        check_url(f"ws://{text}" if has_scheme else text)


async def test_an_offer_before_any_server_was_asked() -> None:
    """A client that has no socket yet says so, and how to get one."""
    with pytest.raises(ClientError, match=r"await `connection\(\)` first"):
        _ = make_client(URL).ready
