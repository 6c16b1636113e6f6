"""Ports that tests give to servers."""

import itertools
import socket
from pathlib import Path

import pytest

from tests import ports


def test_nobody_else_is_given_it() -> None:
    """It is free, is not given out again, and is none of those that the kernel gives to others."""
    given = [ports.free_port() for _ in range(50)]
    assert len(set(given)) == 50
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(given) < first
    with socket.create_server(("127.0.0.1", given[0])) as listener:
        assert listener.getsockname()[1] == given[0]


def test_what_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that somebody listens on is not given out."""
    with socket.create_server(("127.0.0.1", taken := ports.free_port())):
        monkeypatch.setattr(ports, "_NEXT", itertools.count(taken - ports._BEGIN))
        assert ports.free_port() != taken
