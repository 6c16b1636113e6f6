"""Options of TCP connections.

Rule: buffers are small, so that audio waits here rather than in the kernel, where nobody can take it
back; and a peer that acknowledges nothing is found by TCP itself.
"""

import asyncio
import socket
from typing import Final

SEND_BUFFER_BYTES: Final = 65_536
"""The default on loopback swallows over a minute of audio before a write blocks."""
UNSENT_LOW_WATER_BYTES: Final = 16_384
USER_TIMEOUT_MS: Final = 60_000
"""A peer that acknowledges nothing for this long is dead. Missing pongs never close a socket."""


def tune(transport: asyncio.BaseTransport) -> None:
    """Set the options of a connection; what is no TCP connection is left as it is."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (
        ("TCP_NOTSENT_LOWAT", UNSENT_LOW_WATER_BYTES),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
    ):
        if hasattr(socket, option):  # Linux has both; elsewhere the defaults must do
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
