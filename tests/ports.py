"""Ports for servers that must be told where to listen, or that come back at the same place.

Rule: none is given out twice, and all lie below those that the kernel gives to whoever names none, so that nobody
takes one between its being found free and its being listened on.
"""

import itertools
import os
import random
import socket
from pathlib import Path
from typing import Final

_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 10_000
_EACH: Final = 2000
"""Ports for each of the processes that run tests side by side."""
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_BEGIN: Final = _FIRST + _WORKER * _EACH
# Somewhere in them: tests of another clone may run at the same time.
_NEXT: Final = itertools.count(random.randrange(_EACH))


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that nobody else is given."""
    assert int(_EPHEMERAL.read_text().split()[0]) >= _BEGIN + _EACH
    for place in itertools.islice(_NEXT, _EACH):
        port = _BEGIN + place % _EACH
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is free")
