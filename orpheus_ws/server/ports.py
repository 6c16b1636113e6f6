"""Ports: where they are, whether they can be had, and the one of the metrics.

Rule: whatever the operating system says of a port becomes one line that names the key to change.
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from orpheus_ws.config import ServerConfig
from orpheus_ws.errors import StartupError
from orpheus_ws.metrics import Metrics
from orpheus_ws.server.loop_monitor import LoopMonitor
from orpheus_ws.server.scrapes import Scrapes
from orpheus_ws.surfaces.native import PATH


class Address(NamedTuple):
    """Where a running server listens."""

    host: str
    port: int
    metrics_port: int
    http_port: int | None = None
    """None: there is no HTTP but the health checks."""
    tls: bool = False
    """Of all but the metrics."""

    @property
    def url(self) -> str:
        """What a client connects to."""
        return f"{'wss' if self.tls else 'ws'}://{self._host}:{self.port}{PATH}"

    @property
    def http_url(self) -> str | None:
        """Where requests go, without a path; None: nowhere."""
        if self.http_port is None:
            return None
        return f"{'https' if self.tls else 'http'}://{self._host}:{self.http_port}"

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


@contextlib.contextmanager
def binding(host: str, port: int, key: str) -> Iterator[None]:
    """What the operating system says of a port, as a `StartupError`. Each key is an option of `serve`, too."""
    try:
        yield
    except OSError as error:
        option = "--" + key.removeprefix("server.").replace("_", "-")
        raise StartupError(
            f"cannot listen on {host}:{port} ({os.strerror(error.errno or 0)}); change {key} ({option}), or use 0 "
            "for a free port"
        ) from error


async def try_ports(config: ServerConfig) -> None:
    """Raise `StartupError` if a port is taken: before anything is loaded, which may take minutes.

    The best known first: where a second server is started, it is the one that says so.
    """
    for host, port, key in (
        (config.host, config.port, "server.port"),
        (config.host, config.http_port, "server.http_port"),
        (config.metrics_host, config.metrics_port, "server.metrics_port"),
    ):
        if port is None:
            continue
        loop = asyncio.get_running_loop()
        with binding(host, port, key):
            try:
                listener = await loop.create_server(asyncio.Protocol, host, port)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
                # Whatever else it is, who opens the port in earnest says it.
                continue
        listener.close()
        await listener.wait_closed()


async def serve_metrics(
    config: ServerConfig, metrics: Metrics, monitor: LoopMonitor, stack: contextlib.AsyncExitStack
) -> int:
    """Serve /metrics on a thread of its own, so that scrapes work while the event loop does not."""
    with binding(config.metrics_host, config.metrics_port, "server.metrics_port"):
        scrapes = await asyncio.to_thread(
            Scrapes,
            config.metrics_host,
            config.metrics_port,
            metrics.registry,
            lambda: monitor.late,
        )
    stack.push_async_callback(asyncio.to_thread, scrapes.close)
    return scrapes.port
