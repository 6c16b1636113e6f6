"""TensorRT-LLM as a process: loaded, watched for signs of death, and ended in bounded time.

Rule: what may block for long or forever runs on a daemon thread, so that neither the event loop nor
the end of this process waits for it. TensorRT-LLM computes in processes below this one; those that
appear while it loads are its own, and none is left behind.
"""

import asyncio
import contextlib
import importlib
import importlib.metadata
import importlib.util
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

import psutil

from orpheus_ws.engine.checkpoint import Checkpoint, open_checkpoint
from orpheus_ws.engine.checkpoint_limits import choose_voices
from orpheus_ws.engine.trtllm_setup import (
    Options,
    check_kv_cache,
    check_memory,
    free_gpu_bytes,
    llm_arguments,
    settle_limits,
)
from orpheus_ws.errors import StartupError
from orpheus_ws.manifest import Limits, Manifest

SHUTDOWN_SECONDS: Final = 10.0
"""For a shutdown in good order, which in 1.2 waits for its worker without a limit of its own."""
KILL_SECONDS: Final = 5.0

PACKAGE: Final = "tensorrt_llm"
_MISSING: Final = (
    "engine 'trtllm' needs TensorRT-LLM 1.2 or later: pip install 'orpheus-ws[trtllm]', or install "
    "orpheus-ws in NVIDIA's image of it"
)
_NO_MANIFEST: Final = (
    "the model has no manifest, so nothing says whether it is the one that was measured, nor with "
    "which TensorRT-LLM: make one with `python -m engine_build manifest`"
)

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """A running TensorRT-LLM and what goes with it."""

    llm: Any
    sampling_params: Any
    """Its class for how to sample."""
    request_error: type[Exception] | None
    """What it raises when one request has failed; None in versions without a class for it."""
    sampler_choice: bool
    """Whether this version has more than one sampler."""
    workers: frozenset[psutil.Process]
    checkpoint: Checkpoint
    limits: Limits
    voices: tuple[str, ...]


class _Found(NamedTuple):
    """What the directory and the options say together."""

    checkpoint: Checkpoint
    limits: Limits
    voices: tuple[str, ...]


def examine(options: Options, capacity: int | None) -> str | None:
    """Check what can be checked without importing TensorRT-LLM; advice where something is missing.

    Blocking. Raises `StartupError`.
    """
    manifest = _read(options, capacity).checkpoint.manifest
    if manifest is None:
        return _NO_MANIFEST
    # Its own word for it is asked once it is imported.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        _check_version(manifest, importlib.metadata.version(PACKAGE))
    return None


def _read(options: Options, capacity: int | None) -> _Found:
    if importlib.util.find_spec(PACKAGE) is None:
        raise StartupError(_MISSING)
    checkpoint = open_checkpoint(options.model, "trtllm")
    check_kv_cache(checkpoint, options)
    limits = settle_limits(options, capacity, checkpoint.manifest)
    return _Found(checkpoint, limits, choose_voices(options.voices, checkpoint.manifest))


def _check_version(manifest: Manifest, installed: str) -> None:
    """Raise `StartupError` if the manifest was made for another TensorRT-LLM than this one."""
    stated = manifest.built_with.get(PACKAGE, installed)
    if stated != installed:
        raise StartupError(
            f"the model's manifest is for TensorRT-LLM {stated}, and {installed} is installed: "
            "install that one, or make the manifest again with `python -m engine_build manifest` "
            "and measure the capacity again"
        )


def load(options: Options, capacity: int) -> Loaded:
    """Check what can be checked, cheapest first, then load. Blocking, for minutes.

    Raises `StartupError`, and then leaves no process behind.
    """
    checkpoint, limits, voices = _read(options, capacity)
    check_memory(checkpoint, options, limits, capacity, free_gpu_bytes())
    package, llm_args = _import(PACKAGE), _import(f"{PACKAGE}.llmapi.llm_args")
    if checkpoint.manifest is None:
        _log.warning(_NO_MANIFEST)
    else:
        _check_version(checkpoint.manifest, str(package.__version__))
    before = _below()
    try:
        arguments = llm_arguments(options, limits, capacity, checkpoint, llm_args)
        llm = package.LLM(**arguments)
    except Exception as error:
        _end(_below() - before)
        raise _explained(error) from error
    return Loaded(
        llm=llm,
        sampling_params=package.SamplingParams,
        request_error=_request_error(),
        sampler_choice="sampler_type" in llm_args.TorchLlmArgs.model_fields,
        workers=_below() - before,
        checkpoint=checkpoint,
        limits=limits,
        voices=voices,
    )


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("tensorrt_llm"):
            raise StartupError(_MISSING) from error  # it is there, and too old
        raise StartupError(f"TensorRT-LLM needs the package {missing!r}: install it") from error
    except Exception as error:
        # A driver or a library that does not fit shows as anything.
        raise StartupError(
            f"TensorRT-LLM cannot be imported ({type(error).__name__}); try: "
            f"python -c 'import {name}'"
        ) from error


def _request_error() -> type[Exception] | None:
    try:
        found = importlib.import_module("tensorrt_llm.executor.utils")
    except ImportError:
        return None
    kind = getattr(found, "RequestError", None)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None


def _explained(error: Exception) -> StartupError:
    """Out of memory is told by name or by text: it comes from another process, wrapped."""
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ == "OutOfMemoryError" or "out of memory" in str(cause).lower():
            return StartupError(
                "too little GPU memory: TensorRT-LLM ran out of it while loading: lower "
                "engine.capacity or engine.options.max_num_tokens, or free memory of the GPU"
            )
        cause = cause.__cause__ or cause.__context__
    return StartupError(
        f"TensorRT-LLM cannot load the checkpoint ({type(error).__name__}): what it printed says why"
    )


def is_gone(llm: Any) -> bool:
    """Whether its executor is shut down: what it does when its worker has failed.

    No public call tells. A version without these names is never gone by this, and then only a
    failing request shows its death.
    """
    executor = getattr(llm, "_executor", llm)
    is_shutdown = getattr(executor, "is_shutdown", None)
    return executor is None or (callable(is_shutdown) and bool(is_shutdown()))


def has_lost(workers: frozenset[psutil.Process]) -> bool:
    """Whether all processes of TensorRT-LLM have ended; helpers among them come and go. Blocking."""
    return bool(workers) and not any(map(_runs, workers))


def abandon(loading: Future[Loaded]) -> None:
    """Close what is still being loaded as soon as it is there."""

    def close_late(done: Future[Loaded]) -> None:
        # Called on the thread that loads, or on this one if that has just finished.
        if done.exception() is None:
            start_thread(lambda: _close(done.result(), SHUTDOWN_SECONDS), "trtllm-close")

    loading.add_done_callback(close_late)


async def close(loaded: Loaded, seconds: float = SHUTDOWN_SECONDS) -> None:
    """Shut down, for at most `seconds`, then kill what is left. Goes on when it is cancelled."""
    await asyncio.wrap_future(start_thread(lambda: _close(loaded, seconds), "trtllm-close"))


def _close(loaded: Loaded, seconds: float) -> None:
    shutdown = start_thread(loaded.llm.shutdown, "trtllm-shutdown")
    try:
        shutdown.result(seconds)
    except TimeoutError:
        _log.error("TensorRT-LLM did not shut down", extra={"seconds": seconds})
    except Exception as error:  # noqa: BLE001 - it is ended all the same
        _log.error("TensorRT-LLM failed to shut down", extra={"error": type(error).__name__})
    _end(loaded.workers)


def start_thread(function: Callable[[], _T], name: str) -> Future[_T]:
    """Run on a daemon thread, which keeps no process from ending."""
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - for whoever waits
            outcome.set_exception(error)

    outcome.set_running_or_notify_cancel()
    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


def _below() -> frozenset[psutil.Process]:
    return frozenset(psutil.Process().children(recursive=True))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _end(processes: frozenset[psutil.Process]) -> None:
    """Kill those that still run and wait until they are gone."""
    left = [process for process in processes if _runs(process)]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(left, timeout=KILL_SECONDS)
    if left:
        _log.warning(
            "killed workers of TensorRT-LLM", extra={"killed": len(left), "alive": len(alive)}
        )
