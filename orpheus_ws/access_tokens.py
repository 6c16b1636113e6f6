"""Short-lived tokens for browsers, which can set no headers: made from a key, checked with it.

Rule: a token is `name.expiry.scope.signature`, signed with the key of that name, so that nothing has
to be stored and a changed key revokes its tokens. The client and the server import this, so it
imports nothing of either. Tokens are secrets: nothing here logs.
"""

import base64
import hmac
import re
from collections.abc import Mapping
from typing import Final

SCOPE: Final = "tts"
# More digits than any time has: Python refuses to read a number of thousands of them.
_EXPIRES: Final = re.compile(r"[0-9]{1,20}")


def make_token(name: str, secret: str, *, expires: int) -> str:
    """A token that lets its bearer connect as the key `name` until the Unix time `expires`.

    It goes into the address, as in `wss://host/v1/tts?token=...`, and is checked when a socket is
    opened: an open one outlives it.
    """
    payload = f"{_encode(name.encode())}.{expires}.{SCOPE}"
    return f"{payload}.{_sign(payload, secret)}"


def verify_token(keys: Mapping[str, str], token: str, now: float) -> str | None:
    """The name of the key that made the token, or None when it is not valid at the Unix time `now`."""
    payload, _, signature = token.rpartition(".")
    parts = payload.split(".")
    if len(parts) != 3 or not _EXPIRES.fullmatch(parts[1]):
        return None
    try:
        name = base64.urlsafe_b64decode(parts[0] + "=" * (-len(parts[0]) % 4)).decode()
    except ValueError:
        return None
    secret = keys.get(name)
    expected = _sign(payload, secret or "")
    genuine = hmac.compare_digest(expected.encode(), signature.encode())
    if not genuine or not secret or int(parts[1]) < now or parts[2] != SCOPE:
        return None
    return name


def _sign(payload: str, secret: str) -> str:
    return _encode(hmac.digest(secret.encode(), payload.encode(), "sha256"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
