"""A load on a server that behaves like production clients, and what its listeners heard.

    result = run(Plan(url="ws://127.0.0.1:8765/v1/tts", streams=100, objective_ms=150))
    print(result.figures.first_byte_ms, result.broken)

Rule: it is a client. It knows the server by its protocol alone and imports nothing of it. `worker` is
one process of clients, `listener` one turn that is heard, `tally` what turns come to, `pool` the
processes together, `report` a page to look at.
"""

from orpheus_ws.loadtest.plan import Plan
from orpheus_ws.loadtest.pool import Result, Watch, run, run_naive
from orpheus_ws.loadtest.turn import (
    Figures,
    Gaps,
    Harness,
    Live,
    Naive,
    Percentiles,
    Progress,
    Turn,
)

__all__ = [
    "Figures",
    "Gaps",
    "Harness",
    "Live",
    "Naive",
    "Percentiles",
    "Plan",
    "Progress",
    "Result",
    "Turn",
    "Watch",
    "run",
    "run_naive",
]
