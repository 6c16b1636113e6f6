"""The engine and the codec that the configuration names: imported, their options read, not opened.

So are traces, which connect to nobody before there is one.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from orpheus_ws.capacity import DEVICES, settle
from orpheus_ws.codec import find_decoder, weights_advice
from orpheus_ws.config import Config, EngineConfig, TracingConfig
from orpheus_ws.doctor.check import Check, Status
from orpheus_ws.engine import find_engine
from orpheus_ws.errors import StartupError
from orpheus_ws.server.parts import check_slots, codec_slots
from orpheus_ws.settings import read_options
from orpheus_ws.tracing import open_tracer


class Part(NamedTuple):
    """What is known of a part. `device` and `capacity` are None when only the part itself knows."""

    check: Check
    device: str | None
    capacity: int | None


def engine(config: EngineConfig, environment: Mapping[str, str]) -> Part:
    """The engine. `environment` says where CUDA's programs are and which devices they see."""
    device = _device(config.name, config.options, None)
    try:
        module = _import(lambda: find_engine(config), "engine", config.name)
        options = _options(module, config.options, "engine.options")
        device = _device(config.name, config.options, options)
        _try_device(device, options, "engine")
        # An engine that has files may look at them without loading them.
        capacity, source = settle(config, environment)
        advice = getattr(module, "examine", lambda _options, _capacity: None)(options, capacity)
    except StartupError as error:
        check = Check("engine", Status.PROBLEM, _named(config.name, device), str(error))
        return Part(check, device, config.capacity)
    streams = "" if capacity is None else f", {capacity} streams ({source})"
    status = Status.WARNING if advice else Status.OK
    check = Check("engine", status, _named(config.name, device) + streams, advice or "")
    return Part(check, device, capacity)


def tracing(config: TracingConfig) -> Check:
    """Whether traces could be exported. Whether anybody takes them is not tried."""

    async def open_and_close() -> None:
        await (await open_tracer(config)).close()

    try:
        asyncio.run(open_and_close())
    except StartupError as error:
        return Check("tracing", Status.PROBLEM, "cannot be used", str(error))
    if config.endpoint is None:
        return Check("tracing", Status.ABSENT, "off")
    return Check("tracing", Status.OK, "on; the collector was not asked")


def codec(config: Config, capacity: int | None) -> Part:
    """The codec, for an engine of this capacity."""
    own = config.codec
    device = _device(own.name, own.options, None)
    slots = own.slots or codec_slots(capacity)
    try:
        module = _import(lambda: find_decoder(own), "codec", own.name)
        options = _options(module, own.options, "codec.options")
        device = _device(own.name, own.options, options)
        _try_device(device, options, "codec")
        if own.name != "simulated":
            _check_weights(own.weights)
        if capacity is not None:
            check_slots(slots, capacity)
    except StartupError as error:
        check = Check("codec", Status.PROBLEM, _named(own.name, device), str(error))
        return Part(check, device, slots)
    advice = weights_advice(own, config.engine.name)
    status = Status.WARNING if advice else Status.OK
    check = Check("codec", status, f"{_named(own.name, device)}, {slots} slots", advice or "")
    return Part(check, device, slots)


def _import(find: Callable[[], object], kind: str, name: str) -> ModuleType:
    """The module of a part. What it prints on the way goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        find()
    return sys.modules[name if "." in name else f"orpheus_ws.{kind}.{name}"]


def _options(module: ModuleType, options: Mapping[str, Any], where: str) -> object:
    """The options as the part will read them; None for a part that does not say which it has."""
    schema = getattr(module, "Options", None)
    return None if schema is None else read_options(options, schema, where)


def _device(name: str, configured: Mapping[str, Any], options: object) -> str | None:
    device = getattr(options, "device", configured.get("device", DEVICES.get(name)))
    return None if device is None else str(device)


def _try_device(device: str | None, options: object, kind: str) -> None:
    """See to it that torch, if the part has it, can use the device that an option names."""
    if sys.modules.get("torch") and device is not None and hasattr(options, "device"):
        from orpheus_ws.engine.torch_device import check_device

        check_device(device, f"{kind}.options.device")


def _check_weights(weights: str) -> None:
    if weights != "pocket" and not os.access(f"{weights}/config.json", os.R_OK):
        raise StartupError(
            f"no config.json can be read in {weights!r}: set codec.weights to 'pocket' or to a "
            "directory with a SNAC checkpoint"
        )


def _named(name: str, device: str | None) -> str:
    return f"{name}, on {device}" if device else name
