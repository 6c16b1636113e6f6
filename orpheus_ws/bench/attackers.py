"""Whoever storms a port: connections at a steady rate, from a process of its own.

Rule: bounded in rate, in time and in how many there are at once, and only ever against 127.0.0.1. What
is counted is what the attacker saw. Nothing waits for the server: who is not served counts as that.
"""

import select
import socket
import struct
from collections import Counter
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from orpheus_ws.trace import clock

HOST: Final = "127.0.0.1"
AT_ONCE: Final = 2000
"""Connections an attacker holds at most; then the oldest goes. Far fewer than its open files."""
BATCH_SECONDS: Final = 0.002
CATCH_UP_SECONDS: Final = 0.01
"""An attacker who did not get the processor makes up for no more than this: a storm from many machines is
steady. The rate that was reached is reported."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: closing resets, so that no attempt leaves a port in TIME_WAIT behind."""


class Attack(NamedTuple):
    """What one attacker does."""

    port: int
    request: bytes
    """Sent on every connection; empty: nothing is, and it is held open."""
    per_second: int
    seconds: float


class Seen(NamedTuple):
    """What came of it."""

    attempts: int
    seconds: float
    statuses: dict[str, int]
    """Answers by HTTP status; "closed" ended without one, "unanswered" was given up at last."""

    @property
    def answered(self) -> int:
        """Attempts that the server came to, whatever it did with them."""
        return self.attempts - self.statuses.get("unanswered", 0)


def run(attack: Attack, pipe: Connection) -> None:
    """Body of a process: storm once told to, then report."""
    pipe.send("ready")
    pipe.recv()
    pipe.send(_Attacker(attack).storm())


class _Attacker:
    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self._poll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        self._seen: Counter[str] = Counter()
        self._attempts = 0

    def storm(self) -> Seen:
        began = due = clock()
        end, apart = began + self._attack.seconds, 1 / self._attack.per_second
        while (now := clock()) < end:
            due = max(due, now - CATCH_UP_SECONDS)
            while due <= now:
                self._connect()
                due += apart
            self._look(BATCH_SECONDS)
        seconds = clock() - began
        # Those under way are answered, or are not.
        self._look(0.5)
        for number in tuple(self._open):
            self._close(number, "unanswered")
        return Seen(self._attempts, seconds, dict(self._seen))

    def _connect(self) -> None:
        self._attempts += 1
        if len(self._open) >= AT_ONCE:
            self._close(next(iter(self._open)), "unanswered")
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.connect_ex((HOST, self._attack.port))
        self._open[sock.fileno()] = sock
        wanted = select.EPOLLOUT if self._attack.request else select.EPOLLIN
        self._poll.register(sock.fileno(), wanted)

    def _look(self, seconds: float) -> None:
        for number, _ in self._poll.poll(seconds):
            sock = self._open[number]
            try:
                answer = self._exchange(sock, number)
            except OSError:
                answer = "closed"
            if answer:
                self._close(number, answer)

    def _exchange(self, sock: socket.socket, number: int) -> str:
        """Ask, or hear the answer; nothing if it is still to come."""
        try:
            received = sock.recv(4096)
        except BlockingIOError:
            sock.send(self._attack.request)
            self._poll.modify(number, select.EPOLLIN)
            return ""
        return received[9:12].decode("latin-1") or "closed"

    def _close(self, number: int, seen: str) -> None:
        self._seen[seen] += 1
        self._poll.unregister(number)
        self._open.pop(number).close()
