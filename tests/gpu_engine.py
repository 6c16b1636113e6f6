"""An engine as the configuration names one: it runs on a GPU, and its capacity has to be measured."""

import msgspec

from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import Engine

DEFAULT_CAPACITY = None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What it can be told."""

    model: str
    device: str = "cuda"


async def open_engine(_config: EngineConfig) -> Engine:
    """Nobody opens it."""
    raise NotImplementedError
