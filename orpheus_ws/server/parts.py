"""The engine and the codec of a server, of one size.

Rule: one number is the capacity (`capacity.settle`): the engine's slots, the codec's, and by them who
is admitted. The codec is opened first, because it allocates first.
"""

import asyncio
import contextlib
import logging
from typing import Final, NamedTuple

import msgspec

from orpheus_ws.capacity import Capacity, settle
from orpheus_ws.codec import open_decoder
from orpheus_ws.codec.loop import CodecLoop
from orpheus_ws.codec.policy import policy
from orpheus_ws.config import Config
from orpheus_ws.engine import Engine, find_engine
from orpheus_ws.errors import StartupError
from orpheus_ws.metrics import Metrics

DEFAULT_CODEC_SLOTS: Final = 64
PROBE_SLOTS: Final = 1
"""The codec has one stream more than the engine, for the readiness probe."""

_log = logging.getLogger("orpheus_ws.server")


class Parts(NamedTuple):
    """What a server is made of."""

    engine: Engine
    codec: CodecLoop
    capacity: Capacity


def codec_slots(capacity: int | None) -> int:
    """Streams that the codec holds for an engine of this capacity; None: it is not known yet."""
    return (capacity or DEFAULT_CODEC_SLOTS) + PROBE_SLOTS


def check_slots(slots: int, streams: int) -> None:
    """Raise `StartupError` when the codec cannot hold what the engine speaks."""
    needed = codec_slots(streams)
    if slots < needed:
        raise StartupError(
            f"the codec has {slots} slots but the engine needs {needed}: raise codec.slots or lower "
            "engine.capacity"
        )


async def open_parts(config: Config, metrics: Metrics, stack: contextlib.AsyncExitStack) -> Parts:
    """Open codec and engine, in this order; `stack` closes them in reverse. Raises `StartupError`."""
    open_engine = find_engine(config.engine)
    capacity = await asyncio.to_thread(settle, config.engine)
    slots = config.codec.slots or codec_slots(capacity.streams)
    codec_config = msgspec.structs.replace(config.codec, slots=slots)
    codec = await CodecLoop.start(
        lambda: open_decoder(codec_config),
        policy=policy(config.codec.batching, config.codec.max_batch),
        stepped=metrics.codec_stepped,
    )
    stack.push_async_callback(codec.close)
    engine = await open_engine(msgspec.structs.replace(config.engine, capacity=capacity.streams))
    stack.push_async_callback(engine.close)
    check_slots(slots, engine.capacity)
    told = {"streams": engine.capacity, "source": capacity.source}
    if capacity.source == "simulated":
        _log.warning("the capacity was measured with a simulated engine", extra=told)
    elif capacity.source in ("override", "uncalibrated"):
        _log.warning("the capacity is not what was measured here", extra=told)
    else:
        _log.info("capacity", extra=told)
    return Parts(engine, codec, capacity)
