"""Who may connect: keys in headers, short-lived tokens in the address.

Rule: what may be logged of somebody is the name of the tenant whose key it is; what was presented never
leaves this module.
"""

import re
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from itertools import islice
from typing import Final
from urllib.parse import parse_qs

from websockets.datastructures import Headers

from orpheus_ws.config import AuthConfig
from orpheus_ws.errors import StartupError
from orpheus_ws.keys import ANONYMOUS, Key, KeyRing

_SCHEMES = ("bearer", "api-key", "token")
_HEADERS = ("X-API-Key", "xi-api-key")
_TOKEN = "token"
_SHOWN = re.compile(rf"(?i)\n({'|'.join(('authorization', *_HEADERS))}):|[?&]{_TOKEN}=".encode())
_SECRETS = frozenset(("authorization", "cookie", _TOKEN, *(name.lower() for name in _HEADERS)))
MOST_PRESENTED: Final = 4
"""Keys, and tokens, that are looked at in one request. A client shows one, perhaps in each header that it
knows; whoever shows more is trying them out, and would have the event loop to themselves meanwhile."""
MOST_FIELDS: Final = 64
"""Of a query that a token is looked for in."""
ANYBODY = Key(ANONYMOUS, b"", None)
"""Whose key it is where none is asked for."""


def check_exposure(auth: AuthConfig, host: str) -> None:
    """Raise `StartupError` when the server would be open to a network by oversight."""
    if auth.keys or auth.file or auth.anonymous or _is_loopback(host):
        return
    raise StartupError(
        f"listening on {host} without keys would let anybody in: set auth.keys.NAME=SECRET or "
        "auth.file, or auth.anonymous=true if that is meant"
    )


def identify(keys: KeyRing, headers: Headers, path: str, now: float) -> Key | None:
    """Return the key that the request carries, or that has signed its token; None: no valid one.

    `now` is Unix time.
    """
    if not keys.required:
        return ANYBODY
    for presented in islice(_presented(headers), MOST_PRESENTED):
        key = keys.find(presented)
        if key is not None:
            return key
    for token in islice(_tokens(path.partition("?")[2]), MOST_PRESENTED):
        key = keys.signer(token, now)
        if key is not None:
            return key
    return None


def shows_any(headers: Headers, path: str) -> bool:
    """Whether a request carries a key or a token at all, valid or not."""
    return any(_presented(headers)) or any(_tokens(path.partition("?")[2]))


def may_show_any(head: bytes) -> bool:
    """The same, at a glance, of a head that was not parsed: most of a storm has none of it."""
    return _SHOWN.search(head) is not None


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
    this very host, or else every page a developer visits could speak through that machine. There the
    host must have a name that no stranger can give to this machine's own address.
    """
    # No browser sends two of them; whoever does is let in only if each would be.
    origins = headers.get_all("Origin")
    if auth.origins or auth.keys or auth.file:
        return not auth.origins or all(origin in auth.origins for origin in origins)
    hosts = headers.get_all("Host")
    return all(
        [origin.partition("://")[2]] == hosts and (auth.anonymous or _is_ours(hosts[0]))
        for origin in origins
    )


def _presented(headers: Headers) -> Iterator[str]:
    for value in headers.get_all("Authorization"):
        scheme, _, credentials = value.strip().partition(" ")
        if scheme.lower() in _SCHEMES:
            yield credentials.strip()
    for header in _HEADERS:
        yield from headers.get_all(header)


def _tokens(query: str) -> list[str]:
    try:
        return parse_qs(query, max_num_fields=MOST_FIELDS).get(_TOKEN, [])
    except ValueError:
        return []


def _is_ours(host: str) -> bool:
    """Whether a Host, with its port or without, is a name of this machine's that needs no DNS."""
    name, separator, _ = host.rpartition(":")
    if not separator or host.endswith("]"):
        name = host
    return _is_loopback(name.strip("[]"))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
