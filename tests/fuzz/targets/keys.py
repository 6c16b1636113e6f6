"""What a handshake says, before anybody is let in: addresses, headers, keys and tokens.

An input is the address and then headers, a line each; bytes that are no ASCII come as HTTP has
them. A line that begins with `@` is a token's payload, which a key signs. Whoever is let in has shown a
key or a token of that name; nothing but one of our errors refuses an address; and what translators are
told has no secret.
"""

import base64
import hmac
from typing import Final
from urllib.parse import parse_qs, parse_qsl

from websockets.datastructures import Headers

from orpheus_ws.access_tokens import verify_token
from orpheus_ws.config import AuthConfig
from orpheus_ws.errors import OrpheusError
from orpheus_ws.keys import read_keys
from orpheus_ws.server import auth
from orpheus_ws.surfaces import Opening, Routes, surfaces
from tests.fuzz.oracles import check_error

KEYS: Final = {"web": "secret-of-web", "ünïcode": "another-secret", "off": ""}
NOW: Final = 1_800_000_000.0
WORDS = (
    *KEYS, "secret-of-web", "another-secret", "token=", "Authorization: Bearer ", "X-API-Key: ", "xi-api-key: ",
    "Origin: ", ".2000000000.tts.", "d2Vi", "/v1/tts?", "/v1/speak?", "encoding=", "sample_rate=", "%80", "@d2Vi.",
    *(path for surface in surfaces() for path in surface.paths),
)  # fmt: skip

_ACCESS: Final = AuthConfig(keys=KEYS)
_RING: Final = read_keys(_ACCESS)
_SPOKEN: Final = surfaces()
_ROUTES: Final = Routes(_SPOKEN)


def one(data: bytes) -> None:
    """See `Target`."""
    target, *lines = data.decode("latin-1").split("\n")
    headers = Headers()
    for line in lines:
        if line.startswith("@"):
            _check_signed(line[1:])
        else:
            name, _, value = line.partition(":")
            headers.set_insecure(name, value.strip())
    known = auth.identify(_RING, headers, target, NOW)
    assert known is None or known.tenant in _shown(headers, target), "let in without a key"
    auth.allows_origin(_ACCESS, headers)
    auth.allows_origin(AuthConfig(), headers)
    _check_openings(target, headers)


def _shown(headers: Headers, target: str) -> set[str]:
    """Names of the keys that a request shows one way or another, looked for generously."""
    everything = "\n".join(f"{value}" for _, value in headers.raw_items())
    shown = {name for name, secret in KEYS.items() if secret and secret in everything}
    for token in parse_qs(target.partition("?")[2]).get("token", ()):
        payload, _, signature = token.rpartition(".")
        shown |= {name for name, secret in KEYS.items() if _sign(payload, secret) == signature}
    return shown


def _check_signed(payload: str) -> None:
    """A payload that a key has signed is valid if it says what it must; for others it never is."""
    for name, secret in KEYS.items():
        if not secret:
            continue
        token = f"{payload}.{_sign(payload, secret)}"
        found = verify_token(KEYS, token, NOW)
        assert found in (None, name)
        if found is not None:
            _, expires, scope = payload.split(".")
            assert scope == "tts"
            assert int(expires) >= NOW
            assert verify_token(KEYS, token, 1e300) is None
            assert verify_token({name: secret + "x"}, token, NOW) is None
            assert verify_token(KEYS, token[:-1], NOW) is None
        canonical = f"{base64.urlsafe_b64encode(name.encode()).decode().rstrip('=')}.2000000000.tts"
        assert (found is not None) or payload != canonical


def _sign(payload: str, secret: str) -> str:
    digest = hmac.digest(secret.encode(), payload.encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _check_openings(target: str, headers: Headers) -> None:
    path, _, query = target.partition("?")
    found = _ROUTES.find(path)
    opening = Opening(
        parameters={} if found is None else found[1],
        query=auth.without_secrets(parse_qsl(query, keep_blank_values=True)),
        headers=auth.without_secrets(headers.raw_items()),
        subprotocol=None,
        voices=("tara", "leo"),
    )
    assert "token" not in opening.query
    assert not {"authorization", "x-api-key", "xi-api-key", "cookie"} & opening.headers.keys()
    for surface in _SPOKEN if found is None else (found[0],):
        try:
            surface.open(opening)
        except OrpheusError as error:
            check_error(error)
            assert surface.refusal(400, "request", str(error))
