"""Our service for Pipecat, used as badly as a pipeline may use it.

Rule: it does things and says what it saw; `tests/slow/test_plugins.py` knows what is right.

    python -m tests.clients.pipecat_breaks URL URL_OF_ONE_THAT_IS_FULL
"""

import asyncio
import json
import sys
from typing import Any

from pipecat.frames.frames import CancelFrame, Frame, InterruptionFrame
from pipecat.tests.utils import SleepFrame

from tests.clients.pipecat_rules import TEXT, run, turn

PAUSES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7)
"""Seconds after which the user speaks: from before the first text is there to the middle of the turn."""


def barge_ins() -> list[Frame]:
    """Long turns that are interrupted, each a little later than the last, and one that is not."""
    frames: list[Frame] = []
    for pause in PAUSES:
        frames += [*turn(TEXT * 10), *([SleepFrame(pause)] if pause else []), InterruptionFrame()]
    return [*frames, SleepFrame(0.2), *turn()]


async def watch(url: str, full: str) -> dict[str, Any]:
    """What there is to see."""
    twice = [InterruptionFrame(), InterruptionFrame(), *turn(), InterruptionFrame()]
    seen: dict[str, Any] = {
        "usual": await run(url, turn()),
        "interrupted": await run(url, barge_ins()),
        "twice": await run(url, [*twice, InterruptionFrame(), SleepFrame(0.2), *turn()]),
        "both": await asyncio.gather(run(url, turn()), run(url, turn())),
        "full": await run(full, turn()),
        "empty": await run(url, [*turn(""), *turn(" "), *turn("🙂"), *turn()]),
    }
    seen["cancelled"] = [
        await run(url, [*turn(TEXT * 10), SleepFrame(pause or 0.001), CancelFrame()])
        for pause in PAUSES
    ]
    seen["tasks"] = len(asyncio.all_tasks()) - 1
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(watch(*sys.argv[1:]))))
