"""`python -m engine_build`."""

from collections.abc import Callable

from orpheus_ws.interrupts import start


def _load() -> Callable[[], None]:
    from engine_build.cli import main

    return main


if __name__ == "__main__":
    start("engine_build", _load)
