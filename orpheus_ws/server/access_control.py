"""Who is let in: asked alike for a socket and for a request over HTTP.

Rule: everything that can refuse a client refuses it here, with an HTTP status, before anything has been
promised. Whoever is admitted holds a slot, and has to give it back.
"""

import logging
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from websockets.datastructures import Headers

from orpheus_ws.capacity import Capacity
from orpheus_ws.config import AuthConfig, ServerConfig
from orpheus_ws.keys import Key, KeyRing
from orpheus_ws.metrics import Metrics
from orpheus_ws.server import auth
from orpheus_ws.server.admission import Admission, Holder
from orpheus_ws.server.handshake_queue import response
from orpheus_ws.server.health import Health
from orpheus_ws.trace import clock

JSON_TYPE: Final = "application/json"

ALIVE_PATHS: Final = ("/healthz", "/health", "/v1/health/live")
READY_PATHS: Final = ("/readyz", "/v1/health/ready")
CAPACITY_PATH: Final = "/capacity"
"""What anybody may ask. Beside the names that Kubernetes' users know, those of NVIDIA's NIM and of
other speech servers."""

ALIVE: Final = response("200 OK", b'{"alive":true}\n')
_READY: Final = response("200 OK", b'{"ready":true}\n')

_ANY_KEY: Final = (
    "no key was sent: send one as 'Authorization: Bearer KEY', or a token in the address as ?token="
)
_OTHER_KEY: Final = (
    "the key or token that was sent is not one of this server's, or has expired: send another one"
)
"""Nothing tells which of them, or how near it was."""

_log = logging.getLogger("orpheus_ws.server")


def target(head: bytes) -> str:
    """What a request asks for: its path with the query."""
    return head.partition(b" ")[2].partition(b" ")[0].decode("latin-1")


def traceparent(headers: Headers) -> str | None:
    """The header of that name, in whatever form; several are none, as W3C has it."""
    found = headers.get_all("traceparent")
    return found[0] if len(found) == 1 else None


class Refusal(NamedTuple):
    """Why a client is not let in."""

    status: int
    reason: str
    """Our word for it, as the metric has it."""
    advice: str
    headers: Mapping[str, str] = {}
    code: str = ""
    """What the client is told instead of the reason, where that is more exact."""


class AccessControl:
    """The checks, in the order of its methods."""

    def __init__(
        self,
        *,
        server: ServerConfig,
        access: AuthConfig,
        keys: KeyRing,
        admission: Admission,
        health: Health,
        capacity: Capacity,
        metrics: Metrics,
    ) -> None:
        self.admission = admission
        self.keys = keys
        """Those that open now; others may take their place at any time."""
        self._server = server
        self._access = access
        self._health = health
        self._capacity = capacity
        self._metrics = metrics

    async def page(self, path: str) -> tuple[int, dict[str, object]] | None:
        """Status and JSON of a page that needs no key; None: there is none at this path."""
        if path in ALIVE_PATHS:
            return 200, {"alive": True}
        if path in READY_PATHS:
            ready = await self._health.ready()
            return 200 if ready else 503, {"ready": ready}
        if path == CAPACITY_PATH:
            return 200, self._room()
        return None

    # For the handshake queue ---------------------------------------------------------------------

    def immediate_response(self, head: bytes) -> bytes | None:
        """See `Screening`. Whether the process is alive, and whether it is ready if that is known."""
        path = target(head)
        if path in ALIVE_PATHS:
            return ALIVE
        return _READY if path in READY_PATHS and self._health.fresh else None

    def has_valid_key(self, head: bytes) -> bool:
        """See `Screening`. Where there are no keys, nobody has one."""
        if not self.keys.required or not auth.may_show_any(head):
            return False
        _, *lines = head.decode("latin-1").splitlines()
        pairs = [line.partition(":") for line in lines]
        headers = Headers([(name, value.strip()) for name, _, value in pairs])
        return not isinstance(self.identify(headers, target(head)), Refusal)

    def count_refused(self, reason: str) -> None:
        """See `Screening`. In a storm refusals are not logged one by one."""
        self._metrics.handshakes_refused.labels(reason).inc()

    # ---------------------------------------------------------------------------------------------

    def identify(self, headers: Headers, target: str) -> Key | Refusal:
        """The key that a request carries. `target` is its path with the query."""
        if not auth.allows_origin(self._access, headers):
            return Refusal(403, "origin", "pages of this origin are not listed in auth.origins")
        key = auth.identify(self.keys, headers, target, time.time())
        if key is None:
            shown = auth.shows_any(headers, target)
            advice = _OTHER_KEY if shown else _ANY_KEY
            return Refusal(401, "auth", advice, {"WWW-Authenticate": "Bearer"})
        return key

    def admit(self, holder: Holder) -> Refusal | None:
        """Reserve a slot for `holder`; a refusal when there is none."""
        now, wait = clock(), {"Retry-After": str(self._server.retry_after_seconds)}
        most = self.keys.limits(holder.tenant).sockets
        if self._health.alive and not self.admission.draining:
            if not self.admission.has_room_for(holder.tenant, most, now):
                self._metrics.key_limited.labels(holder.tenant, "sockets").inc()
                advice = f"this key may have {most} streams at once; close one first"
                return Refusal(429, "key_limit", advice, wait)
            if self.admission.reserve(holder, now):
                return None
        if not self._health.alive:
            reason, advice = "dead", "engine or codec has died; try another server"
        elif self.admission.draining:
            reason, advice = "draining", "the server is going away; try another one"
        else:
            reason, advice = "full", "all streams are in use; try again shortly"
        return Refusal(503, reason, advice, wait)

    def count(self, refusal: Refusal, key: str | None) -> None:
        """Somebody was refused; `key` is the name of the key, if it is known."""
        self._metrics.handshakes_refused.labels(refusal.reason).inc()
        told = {"reason": refusal.reason, "status": refusal.status, "key": key}
        _log.info("refused", extra=told)

    def _room(self) -> dict[str, object]:
        return {
            "max": self.admission.capacity,
            "active": self.admission.active,
            "draining": self.admission.draining,
            "streams": self._capacity.streams,
            "source": self._capacity.source,
        }
