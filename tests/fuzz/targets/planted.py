"""A fault on purpose, at the end of a path that no corpus takes: whoever looks must find it."""

WORDS: tuple[str, ...] = ()


class Planted(Exception):
    """What is to be found."""


def one(data: bytes) -> None:
    """Raise for inputs that begin with four certain bytes."""
    if (
        len(data) > 3
        and data[0] == 0x66
        and data[1] == 0x75
        and data[2] == 0x7A
        and data[3] == 0x7A
    ):
        raise Planted
