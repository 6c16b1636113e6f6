"""An engine that does not finish loading, and says that it has begun by making a file.

It is opened by name: `engine.name=tests.loading_engine`, `engine.options.begun=FILE`. `where` says what keeps
it: a `thread`, the event `loop` itself, a `process` of its own, whose id is in the file, or the `file`: once
that is gone, it is a simulated engine.
"""

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Literal

import msgspec

from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Engine, simulated
from orpheus_ws.settings import read_options

FOREVER = 3600.0


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See above."""

    begun: str
    where: Literal["thread", "loop", "process", "file"]


async def open_engine(config: EngineConfig) -> Engine:
    """Does not return, but for `file`."""
    options = read_options(config.options, Options, "engine.options")
    _begin(options)
    await asyncio.to_thread(_wait, options)
    return await simulated.open_engine(msgspec.structs.replace(config, options={}))


def _wait(options: Options) -> None:
    if options.where != "file":
        time.sleep(FOREVER)
    while Path(options.begun).exists():
        time.sleep(0.01)


def _begin(options: Options) -> None:
    process = 0
    if options.where == "process":
        process = subprocess.Popen(["sleep", f"{FOREVER:g}"]).pid
    draft = Path(options.begun + ".part")
    draft.write_text(f"{process}")
    draft.rename(options.begun)
    if options.where == "loop":
        time.sleep(FOREVER)
