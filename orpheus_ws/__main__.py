"""`orpheus-ws`, and `python -m orpheus_ws`."""

from collections.abc import Callable

from orpheus_ws.interrupts import start


def main() -> None:
    """Run the command line."""
    start("orpheus-ws", _load)


def _load() -> Callable[[], None]:
    from orpheus_ws.cli import main as run

    return run


# TensorRT-LLM's worker process may import this again, under another name.
if __name__ == "__main__":
    main()
