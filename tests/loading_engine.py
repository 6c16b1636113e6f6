"""An engine that never finishes loading, and says that it has begun by making a file.

It is opened by name: `engine.name=tests.loading_engine`, `engine.options.begun=FILE`. `where` says what keeps
it: a `thread`, the event `loop` itself, or a `process` of its own, whose id is in the file.
"""

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Literal

import msgspec

from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Engine
from orpheus_ws.settings import read_options

FOREVER = 3600.0


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See above."""

    begun: str
    where: Literal["thread", "loop", "process"]


async def open_engine(config: EngineConfig) -> Engine:
    """Does not return."""
    options = read_options(config.options, Options, "engine.options")
    _begin(options)
    await asyncio.to_thread(time.sleep, FOREVER)
    raise AssertionError


def _begin(options: Options) -> None:
    process = 0
    if options.where == "process":
        process = subprocess.Popen(["sleep", f"{FOREVER:g}"]).pid
    draft = Path(options.begun + ".part")
    draft.write_text(f"{process}")
    draft.rename(options.begun)
    if options.where == "loop":
        time.sleep(FOREVER)
