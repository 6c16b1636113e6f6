"""The page for people at `/`: files that a browser gets, and the token with which it may speak.

Rule: what is served is what lies in `data/page`, read once. The page asks nobody but this server, runs
nothing that is not a file of its own, and needs no key to be looked at. A key that is typed into it
comes here in a header and is answered with a short-lived token, so it is in no address.
"""

import http
import time
from email.utils import formatdate
from importlib.resources import files
from typing import Final

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Response

from orpheus_ws.server import auth
from orpheus_ws.server.access_control import JSON_TYPE, AccessControl, Refusal

TOKEN_PATH: Final = "/page/token"
TOKEN_SECONDS: Final = 60
"""How long the token of a page lasts: it opens one socket, at once."""

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS: Final = {
    # 'self' is also a WebSocket to this host and port.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Page:
    """What is at `/` and below `/page/`. Making one reads files."""

    def __init__(self, access_control: AccessControl) -> None:
        self._access_control = access_control
        self._files: dict[str, tuple[str, bytes]] = {}
        for file in (files("orpheus_ws") / "data" / "page").iterdir():
            kind = _TYPES.get(file.name.rpartition(".")[2])
            if kind is not None:
                path = "/" if file.name == "index.html" else f"/page/{file.name}"
                self._files[path] = kind, file.read_bytes()

    def answer(self, path: str, headers: Headers) -> Response | Refusal | None:
        """Answer a request that is no upgrade; None: there is nothing of the page at this path."""
        if path == TOKEN_PATH:
            return self._token(headers)
        found = self._files.get(path)
        return None if found is None else _response(*found)

    def _token(self, headers: Headers) -> Response | Refusal:
        """A token for the key in the headers. A token is no key: nobody prolongs one with itself."""
        now = time.time()
        keys = self._access_control.keys
        key = auth.identify(keys, headers, "", now)
        if key is None:
            shown = auth.shows_any(headers, "")
            advice = "no key of this server; type another one" if shown else "type a key"
            return Refusal(401, "auth", advice)
        token = keys.token(key, int(now) + TOKEN_SECONDS) if keys.required else None
        return _response(JSON_TYPE, msgspec.json.encode({"token": token}) + b"\n")


def _response(kind: str, body: bytes) -> Response:
    headers = Headers(
        {
            "Date": formatdate(usegmt=True),
            "Connection": "close",
            "Content-Length": f"{len(body)}",
            "Content-Type": kind,
            **_HEADERS,
        }
    )
    return Response(200, http.HTTPStatus.OK.phrase, headers, body)
