"""Who may connect: keys in headers, short-lived tokens in the address.

Rule: secrets are compared in constant time and never leave this module; what may be logged is the
name of a key.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from urllib.parse import parse_qs

from websockets.datastructures import Headers

from orpheus_ws.access_tokens import verify_token
from orpheus_ws.config import AuthConfig
from orpheus_ws.errors import StartupError

_SCHEMES = ("bearer", "api-key", "token")
_HEADERS = ("X-API-Key", "xi-api-key")
_TOKEN = "token"
_SECRETS = frozenset(("authorization", "cookie", _TOKEN, *(name.lower() for name in _HEADERS)))
ANONYMOUS = "anonymous"


def check_exposure(auth: AuthConfig, host: str) -> None:
    """Raise `StartupError` when the server would be open to a network by oversight."""
    if auth.keys or auth.anonymous or _is_loopback(host):
        return
    raise StartupError(
        f"listening on {host} without keys would let anybody in: set auth.keys.NAME=SECRET, or "
        "auth.anonymous=true if that is meant"
    )


def identify(auth: AuthConfig, headers: Headers, path: str, now: float) -> str | None:
    """Return the name of the key that the request carries, or None when it carries no valid one.

    `now` is Unix time.
    """
    if not auth.keys:
        return ANONYMOUS
    for presented in _presented(headers):
        name = _owner(auth.keys, presented)
        if name is not None:
            return name
    for token in parse_qs(path.partition("?")[2]).get(_TOKEN, ()):
        name = verify_token(auth.keys, token, now)
        if name is not None:
            return name
    return None


def without_secrets(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The first value of each header or of each name in a query, but for those that carry secrets.

    Names are in lower case.
    """
    found: dict[str, str] = {}
    for name, value in pairs:
        if name.lower() not in _SECRETS:
            found.setdefault(name.lower(), value)
    return found


def allows_origin(auth: AuthConfig, headers: Headers) -> bool:
    """Whether a browser's page may open a socket; programs send no Origin and always may.

    With `origins` only those. Without, any page that knows a key; and without keys, only pages from
    this very host, or else every page a developer visits could speak through his machine.
    """
    # No browser sends two of them; whoever does is let in only if each would be.
    origins = headers.get_all("Origin")
    if auth.origins or auth.keys:
        return not auth.origins or all(origin in auth.origins for origin in origins)
    return all([origin.partition("://")[2]] == headers.get_all("Host") for origin in origins)


def _presented(headers: Headers) -> list[str]:
    found: list[str] = []
    for value in headers.get_all("Authorization"):
        scheme, _, credentials = value.strip().partition(" ")
        if scheme.lower() in _SCHEMES:
            found.append(credentials.strip())
    for header in _HEADERS:
        found += headers.get_all(header)
    return found


def _owner(keys: Mapping[str, str], presented: str) -> str | None:
    # All keys are compared, so that time tells nothing about which one nearly matched.
    digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
    owner = None
    for name, secret in keys.items():
        if secret and hmac.compare_digest(digest, hashlib.sha256(secret.encode()).digest()):
            owner = name
    return owner


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
