"""Ports: whether they can be had, and the one of the metrics.

Rule: whatever the operating system says of a port becomes one line that names the key to change.
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Iterator

import prometheus_client

from orpheus_ws.config import ServerConfig
from orpheus_ws.errors import StartupError
from orpheus_ws.metrics import Metrics


@contextlib.contextmanager
def binding(host: str, port: int, key: str) -> Iterator[None]:
    """What the operating system says of a port, as a `StartupError`."""
    try:
        yield
    except OSError as error:
        raise StartupError(
            f"cannot listen on {host}:{port} ({os.strerror(error.errno or 0)}); change {key}, or use 0 for a free "
            "port"
        ) from error


async def try_ports(config: ServerConfig) -> None:
    """Raise `StartupError` if a port is taken: before anything is loaded, which may take minutes."""
    for host, port, key in (
        (config.metrics_host, config.metrics_port, "server.metrics_port"),
        (config.host, config.port, "server.port"),
        (config.host, config.http_port, "server.http_port"),
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


def _forget(_request: object, _address: object) -> None:
    """A scraper is gone; nobody has to know."""


def serve_metrics(config: ServerConfig, metrics: Metrics, stack: contextlib.AsyncExitStack) -> int:
    """Serve /metrics on a thread of its own, so that scrapes work while the event loop does not."""
    with binding(config.metrics_host, config.metrics_port, "server.metrics_port"):
        httpd, thread = prometheus_client.start_http_server(
            config.metrics_port, addr=config.metrics_host, registry=metrics.registry
        )
    # By default it writes a traceback for everybody who leaves before he is answered.
    httpd.handle_error = _forget  # type: ignore[assignment]

    def stop() -> None:
        httpd.shutdown()
        httpd.server_close()
        thread.join()

    stack.push_async_callback(asyncio.to_thread, stop)
    return int(httpd.server_port)
