"""`orpheus-ws`, and `python -m orpheus_ws`.

Rule: as little as it takes for Ctrl-C to be one line from the first moment on. The commands need a part of
a second to be imported, and libraries in C abort when they are interrupted meanwhile.
"""

import os
import signal
from typing import Final, NoReturn

INTERRUPTED: Final[int] = 6
"""`exits.Exit.INTERRUPTED`, which is not imported yet."""


def main() -> None:
    """Run the command line."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, _leave)
    from orpheus_ws.cli import main as run

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(_number: int, _frame: object) -> NoReturn:
    os.write(2, b"orpheus-ws: interrupted\n")
    os._exit(INTERRUPTED)


# TensorRT-LLM's worker process may import this again, under another name.
if __name__ == "__main__":
    main()
