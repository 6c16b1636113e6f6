"""The reference engine: an Orpheus checkpoint on PyTorch, on a CPU, an NVIDIA GPU or Apple's.

Rule: one thread owns the model; the event loop owns the slots. They exchange requests that join or
leave through one queue, and ids through one `call_soon_threadsafe` per step that completed anything. It
is what other engines are held to and runs anywhere; it is not made to be fast.

Not transformers' own continuous batching (read in 5.24): it has no seed of a request's own, leaves out
the repetition penalty, and wakes the event loop for every id.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import torch
from msgspec import Meta

from orpheus_ws import tokens
from orpheus_ws.config import EngineConfig
from orpheus_ws.engine import EngineStatistics, Prompt
from orpheus_ws.engine.checkpoint import Checkpoint, open_checkpoint
from orpheus_ws.engine.checkpoint_limits import check_capacity, choose, choose_voices
from orpheus_ws.engine.torch_batch import Batch, Group
from orpheus_ws.engine.torch_device import check_device
from orpheus_ws.engine.torch_model import ATTENTION, SlotModel, load_model
from orpheus_ws.engine.torch_sampling import LEGAL_COLUMNS, Sampler
from orpheus_ws.errors import EngineFailed, StartupError
from orpheus_ws.settings import read_options

DEFAULT_CAPACITY: Final = 8
DEFAULT_CONTEXT: Final = 2560
CLOSE_SECONDS: Final = 10.0
"""For the step under way when the engine is closed; on a CPU the longest prompt takes seconds. Its thread
is not waited for any longer: it ends with the process."""

_log = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which checkpoint, and how it is run."""

    model: str = ""
    """Directory of an Orpheus checkpoint in Hugging Face's format, with its tokenizer. Required."""
    device: str = "cpu"
    """What torch calls the device: `cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What the model computes in. On a GPU use `bfloat16`."""
    context: Annotated[int, Meta(ge=64)] | None = None
    """Ids that a slot has room for: a segment's prompt and its speech. Unset: what the model's manifest
    says of both, or 2560."""
    legal_only: bool = True
    """Choose among the ids that may come next: the codes of the slot whose turn it is, and end of
    speech between frames. `false`: among all ids, as the model has them."""
    threads: Annotated[int, Meta(ge=1)] = 1
    """CPU threads that a step may use."""


@dataclass(eq=False, slots=True)
class _Request:
    """One call of `generate`."""

    prompt: Prompt
    slot: int | None = None
    groups: asyncio.Queue[Group["_Request"]] = field(default_factory=asyncio.Queue)

    def fail(self, reason: str) -> None:
        self.groups.put_nowait(Group(self, (), last=True, failure=reason))


class _Loaded(NamedTuple):
    batch: Batch[_Request]
    voices: tuple[str, ...]


class _Join(NamedTuple):
    slot: int
    request: _Request


class _Leave(NamedTuple):
    slot: int


class TorchEngine:
    """`Engine` over one `Batch`. Make it with `start`."""

    def __init__(self, capacity: int, load: Callable[[], _Loaded]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[_Loaded] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._run, args=(load,), name="torch-engine", daemon=True
        )
        self._commands: queue.SimpleQueue[_Join | _Leave | None] = queue.SimpleQueue()
        self._capacity = capacity
        self._voices: tuple[str, ...] = ()
        self._free = list(range(capacity))
        self._running: dict[int, _Request] = {}
        self._waiting: dict[_Request, None] = {}  # in order
        self._steps = 0  # written by the thread alone
        self._tokens = 0
        self._stopped: str | None = None
        self._dead = asyncio.Event()

    @classmethod
    async def start(cls, capacity: int, load: Callable[[], _Loaded]) -> "TorchEngine":
        """Load on a new thread, which goes on to run the engine. Raises what `load` raises.

        When this is cancelled the thread ends by itself as soon as it has loaded.
        """
        engine = cls(capacity, load)
        engine._thread.start()
        try:
            engine._voices = (await engine._loaded).voices
        except BaseException:
            engine._commands.put(None)
            raise
        return engine

    @property
    def capacity(self) -> int:
        """Slots."""
        return self._capacity

    @property
    def voices(self) -> tuple[str, ...]:
        """Those of the checkpoint's manifest, or the released model's."""
        return self._voices

    @property
    def alive(self) -> bool:
        """False after `close`, and after a step that failed: it was everybody's."""
        return self._stopped is None

    async def wait_dead(self) -> None:
        """Return after `close` or a step that failed."""
        await self._dead.wait()

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Sequence[int], None]:
        """Yield one frame's 7 ids a group; the last has what is left and ends with end of speech,
        unless `max_tokens` or the room in the slot ran out.

        Closing the generator and being cancelled free the slot at once; the step that runs then is
        finished and forgotten. Raises `EngineFailed`.
        """
        request = self._join(prompt)
        try:
            while True:
                group = await request.groups.get()
                if group.failure is not None:
                    raise EngineFailed(group.failure)
                yield group.ids
                if group.last:
                    return
        finally:
            self._leave(request)

    def statistics(self) -> EngineStatistics:
        """Current figures. Ids count when they reach the event loop."""
        return EngineStatistics(
            active=len(self._running),
            waiting=len(self._waiting),
            steps=self._steps,
            tokens=self._tokens,
        )

    async def close(self) -> None:
        """Stop, once the step that runs is done or `CLOSE_SECONDS` are over. Idempotent; safe to cancel."""
        self._stop("the engine was closed")
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)

    # On the event loop -----------------------------------------------------------------------------

    def _join(self, prompt: Prompt) -> _Request:
        if self._stopped is not None:
            raise EngineFailed(self._stopped)
        request = _Request(prompt)
        self._waiting[request] = None
        self._admit()
        return request

    def _admit(self) -> None:
        """Give free slots to those who have waited longest."""
        while self._waiting and self._free:
            request = next(iter(self._waiting))
            del self._waiting[request]
            request.slot = self._free.pop()
            self._running[request.slot] = request
            self._commands.put(_Join(request.slot, request))

    def _leave(self, request: _Request) -> None:
        self._waiting.pop(request, None)
        if self._release(request):
            assert request.slot is not None
            self._commands.put(_Leave(request.slot))
            self._admit()

    def _release(self, request: _Request) -> bool:
        """Take the request out of its slot; false if it has none any more."""
        slot = request.slot
        if slot is None or self._running.get(slot) is not request:
            return False
        del self._running[slot]
        self._free.append(slot)
        return True

    def _deliver(self, groups: list[Group[_Request]]) -> None:
        for group in groups:
            request = group.owner
            # It may have left while the step ran, and its slot may be somebody else's.
            if request.slot is None or self._running.get(request.slot) is not request:
                continue
            self._tokens += len(group.ids)
            request.groups.put_nowait(group)
            if group.last:
                self._release(request)
        self._admit()

    def _stop(self, reason: str) -> None:
        """Nothing is generated from here on: fail everybody. Only the first reason counts."""
        if self._stopped is not None:
            return
        self._stopped = reason
        self._dead.set()
        for request in (*self._running.values(), *self._waiting):
            request.fail(reason)
        self._running.clear()
        self._waiting.clear()

    # On the thread ---------------------------------------------------------------------------------

    def _run(self, load: Callable[[], _Loaded]) -> None:
        try:
            loaded = load()
        except BaseException as error:  # noqa: BLE001 - it is raised again on the event loop
            self._tell(_settle, self._loaded, error)
            return
        self._tell(_settle, self._loaded, loaded)
        try:
            self._generate(loaded.batch)
        except BaseException as error:  # noqa: BLE001 - whatever it was, nobody may wait for us now
            _log.critical("the torch engine died", extra={"error": type(error).__name__})
            self._tell(self._stop, "the engine died; try again when it has been restarted")

    def _generate(self, batch: Batch[_Request]) -> None:
        """Step while there is anybody in the batch, until told to stop.

        One prompt is read between two steps at most: those who speak wait for no more than that.
        """
        joining: dict[int, _Request] = {}
        while True:
            while not (self._commands.empty() and (joining or batch.busy)):
                command = self._commands.get()
                if command is None:
                    return
                joining.pop(command.slot, None)
                batch.leave(command.slot)
                if isinstance(command, _Join):
                    joining[command.slot] = command.request
            groups: list[Group[_Request]] = []
            if joining:
                slot = next(iter(joining))
                groups += self._read(batch, slot, joining.pop(slot))
            if batch.busy:
                self._steps += 1
                groups += batch.step()
            if groups:
                self._tell(self._deliver, groups)

    def _read(self, batch: Batch[_Request], slot: int, request: _Request) -> list[Group[_Request]]:
        """Let a request join; what is wrong with its prompt fails it alone."""
        try:
            batch.join(slot, request, request.prompt)
        except EngineFailed as error:
            return [Group(request, (), last=True, failure=str(error))]
        except Exception as error:  # noqa: BLE001 - what has broken for everybody fails the next step
            _log.error("a prompt could not be read", extra={"error": type(error).__name__})
            failure = "the engine could not read this text; reword it"
            return [Group(request, (), last=True, failure=failure)]
        return []

    def _tell(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call something on the event loop."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The event loop has gone without closing us; nobody is left to tell.
            self._commands.put(None)


def _settle(loaded: asyncio.Future[_Loaded], outcome: _Loaded | BaseException) -> None:
    if loaded.done():
        return  # whoever waited was cancelled
    if isinstance(outcome, BaseException):
        loaded.set_exception(outcome)
    else:
        loaded.set_result(outcome)


async def open_engine(config: EngineConfig) -> TorchEngine:
    """Load the checkpoint in `engine.options.model`; 8 slots unless `config.capacity` is set.

    Raises `StartupError`. Safe to cancel.
    """
    options = read_options(config.options, Options, "engine.options")
    capacity = config.capacity or DEFAULT_CAPACITY
    return await TorchEngine.start(capacity, lambda: _load(options, capacity))


class _Found(NamedTuple):
    """What the directory and the options say together."""

    checkpoint: Checkpoint
    context: int
    voices: tuple[str, ...]


def examine(options: Options, capacity: int | None) -> None:
    """Look at the checkpoint without loading it. Blocking. Raises `StartupError`."""
    _read(options, capacity)


def _read(options: Options, capacity: int | None) -> _Found:
    checkpoint = open_checkpoint(options.model, "torch")
    manifest = checkpoint.manifest
    limits = manifest.limits if manifest else None
    stated = limits.max_prompt_tokens + limits.max_tokens if limits else None
    context = choose("context", options.context, stated, DEFAULT_CONTEXT)
    if context > checkpoint.config.max_position_embeddings:
        raise StartupError(
            f"the model reads {checkpoint.config.max_position_embeddings} ids, and a slot is to have "
            f"{context}: set engine.options.context, or the limits in its manifest, to less"
        )
    if capacity is not None:
        check_capacity(manifest, capacity)
    return _Found(checkpoint, context, choose_voices((), manifest))


def _load(options: Options, slots: int) -> _Loaded:
    """Everything that can be wrong is found here, what takes no time first."""
    torch.set_num_threads(options.threads)
    checkpoint, context, voices = _read(options, slots)
    check_device(options.device, "engine.options.device")
    model = load_model(
        options.model, device=options.device, dtype=options.dtype, attention=ATTENTION
    )
    columns = LEGAL_COLUMNS if options.legal_only else range(model.config.vocab_size)
    try:
        cached = SlotModel(model, slots, context, columns)
        sampler = Sampler(slots, columns, legal_only=options.legal_only, device=options.device)
        # The first pass takes its time, and shows what the device cannot do.
        cached.prefill(0, [tokens.START_OF_HUMAN])
        sampler.choose(cached.step([tokens.BEGIN_OF_TEXT] * slots, [0] * slots), [0] * slots)
    except Exception as error:
        # What torch raises depends on the device.
        raise StartupError(
            f"{slots} slots of {context} ids cannot be run on {options.device!r} "
            f"({type(error).__name__}): lower engine.capacity or engine.options.context, or change "
            "engine.options.dtype"
        ) from error
    return _Loaded(Batch(cached, sampler, checkpoint.encode, slots, context), voices)
