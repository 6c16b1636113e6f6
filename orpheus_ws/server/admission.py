"""How many sockets there are, and whether another may come.

Rule: a socket holds a slot from the handshake until its TCP connection is gone, whatever happens in
between; there are as many slots as the engine has. Draining admits nobody.
"""


class Admission:
    """Slots for sockets. `reserve` and `release` are idempotent for one holder."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.draining = False
        self._holders: set[object] = set()

    @property
    def active(self) -> int:
        """Slots in use."""
        return len(self._holders)

    def reserve(self, holder: object) -> bool:
        """Take a slot for `holder`; false when there is none."""
        if self.draining or (self.active >= self.capacity and holder not in self._holders):
            return False
        self._holders.add(holder)
        return True

    def release(self, holder: object) -> None:
        """Give the slot back, if the holder has one."""
        self._holders.discard(holder)
