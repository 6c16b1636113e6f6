"""Options of TCP connections, and what the kernel tells of them.

Rule: buffers are small, so that audio waits here rather than in the kernel, where nobody can take it
back; and a peer that acknowledges nothing is found by TCP itself. The layout of Linux's `tcp_info` is
known here alone; other systems tell nothing.
"""

import asyncio
import socket
import struct
from typing import Final

SEND_BUFFER_BYTES: Final = 65_536
"""The default on loopback swallows over a minute of audio before a write blocks."""
UNSENT_LOW_WATER_BYTES: Final = 16_384
USER_TIMEOUT_MS: Final = 60_000
"""A peer that acknowledges nothing for this long is dead. Missing pongs never close a socket."""
TELLS: Final = hasattr(socket, "TCP_INFO")
"""Whether `is_reset` and `bytes_received` know anything here."""

_CLOSED: Final = 7
"""TCP_CLOSE, in the first byte of `tcp_info`: what a reset leaves."""
_RECEIVED: Final = struct.Struct("=128xQ")
"""`tcpi_bytes_received` in `tcp_info`."""


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


def is_reset(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer's system has answered that nobody is there. Only where `TELLS`."""
    return _info(transport, 1)[0] == _CLOSED


def bytes_received(transport: asyncio.BaseTransport) -> int:
    """What the kernel has received of a connection; 0 if it does not say. Only where `TELLS`."""
    told = _info(transport, _RECEIVED.size)
    if len(told) < _RECEIVED.size:  # Linux before 4.1
        return 0
    (received,) = _RECEIVED.unpack(told)
    return int(received)


def _info(transport: asyncio.BaseTransport, size: int) -> bytes:
    sock: socket.socket = transport.get_extra_info("socket")
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
