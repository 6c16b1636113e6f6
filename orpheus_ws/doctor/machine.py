"""The machine and the process: Python, processors, event loop, open files."""

import os
import platform
import resource
from importlib import metadata
from typing import Final

from orpheus_ws.doctor.check import Check, Status
from orpheus_ws.hardware import usable_processors
from orpheus_ws.server import handshake_queue, tls_queue

FILES_BESIDE_SOCKETS: Final = 64 + handshake_queue.MAX_SILENT + 2 * handshake_queue.MAX_WAITING
"""An idle server holds 17 to 20 open files; the others are for loading and probes, and for
connections that wait for their turn in a storm."""
FILES_BEFORE_TLS: Final = tls_queue.MAX_SILENT + tls_queue.MAX_WAITING + tls_queue.MAX_HANDSHAKES
"""And for those that wait for TLS, where there is TLS."""


def python() -> Check:
    """Which Python on which system."""
    return Check("python", Status.OK, f"{platform.python_version()} on {platform.platform()}")


def processors() -> Check:
    """How many processors there are, and how many of them this process may use."""
    usable = usable_processors()
    found = f"{os.cpu_count() or 1}, of which this process may use {usable}"
    if usable > 1:
        return Check("processors", Status.OK, found)
    return Check(
        "processors",
        Status.WARNING,
        found,
        "event loop, engine and codec share one processor: let the process use two or more",
    )


def event_loop() -> Check:
    """Which event loop `serve` would run on."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return Check(
            "event_loop", Status.WARNING, "asyncio's own", "uvloop is faster: pip install uvloop"
        )
    return Check("event_loop", Status.OK, f"{uvloop.__name__} {metadata.version('uvloop')}")


def open_files(sockets: int | None, *, tls: bool) -> Check:
    """Whether the limit on open files leaves room for all sockets that are admitted, in a storm as well."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    if sockets is None:
        return Check("open_files", Status.OK, f"at most {shown}; the engine's capacity is unknown")
    found = f"at most {shown}, for {sockets} sockets"
    needed = sockets + FILES_BESIDE_SOCKETS + (FILES_BEFORE_TLS if tls else 0)
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return Check("open_files", Status.OK, found)
    return Check(
        "open_files",
        Status.WARNING,
        found,
        f"allow at least {needed}: 'ulimit -n', LimitNOFILE= in systemd, or --ulimit nofile= in "
        "Docker; or lower engine.capacity",
    )
