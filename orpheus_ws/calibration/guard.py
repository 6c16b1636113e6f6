"""Runs the command line for as long as somebody holds the other end of its standard input.

Rule: started as `python -m orpheus_ws.calibration.guard serve …`, it is `orpheus-ws serve …`, which is
told to stop, by SIGTERM, when standard input ends: so it never outlives who started it, however that
ended.
"""

import os
import runpy
import signal
import sys
import threading


def _stop_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_parent, name="parent", daemon=True).start()
    # Its processes see `orpheus_ws` as what was started.
    runpy.run_module("orpheus_ws", run_name="__main__", alter_sys=True)
