"""The client for programs without an event loop: the same, waiting where the other awaits.

    with connect_sync("ws://127.0.0.1:8765/v1/tts") as client:
        for chunk in client.speak("Hello there."):
            play(chunk.pcm)

Rule: an event loop runs in a thread of its own and everything happens there; nothing here decides
anything. A call that is interrupted (Ctrl-C) is cancelled there, and has ended when it returns.
"""

import asyncio
import concurrent.futures
import contextlib
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from typing import Any, Self, TypeVar, Unpack

from orpheus_ws import messages as m
from orpheus_ws.client.backoff import PATIENCE_SECONDS, Backoff
from orpheus_ws.client.connection import CLOSED
from orpheus_ws.client.lasting import (
    DEFAULT_BACKOFF,
    OPEN_SECONDS,
    Client,
    SpeakOptions,
    connect,
)
from orpheus_ws.client.text import SpokenText
from orpheus_ws.client.utterance import Utterance
from orpheus_ws.errors import Disconnected

_T = TypeVar("_T")


@contextlib.contextmanager
def connect_sync(
    url: str,
    *,
    api_key: str | None = None,
    patience: float = PATIENCE_SECONDS,
    open_timeout: float = OPEN_SECONDS,
    backoff: Backoff = DEFAULT_BACKOFF,
    ssl_context: ssl.SSLContext | None = None,
) -> Iterator["BlockingClient"]:
    """Like `connect`, for a plain `with`. Raises the same; see there for the arguments."""
    connecting = connect(
        url,
        api_key=api_key,
        patience=patience,
        open_timeout=open_timeout,
        backoff=backoff,
        ssl_context=ssl_context,
    )
    with _LoopThread() as thread:
        client = thread.call(connecting.__aenter__())
        try:
            yield BlockingClient(client, thread)
        finally:
            thread.call(connecting.__aexit__(None, None, None))


class BlockingClient:
    """See `Client`. Several threads may use one; what they speak is spoken one after the other."""

    def __init__(self, client: Client, thread: "_LoopThread") -> None:
        self._client = client
        self._thread = thread

    @property
    def ready(self) -> m.Ready:
        """What the server offered last: voices, encodings, limits."""
        return self._client.ready

    def speak(self, text: SpokenText, **options: Unpack[SpeakOptions]) -> "BlockingUtterance":
        """See `Client.speak`. An iterator is read on a thread of its own, not on the caller's."""
        return BlockingUtterance(self._client.speak(text, **options), self._thread)


class BlockingUtterance:
    """See `Utterance`: iterate it, once, for its audio; then `result` says how it ended."""

    def __init__(self, utterance: Utterance, thread: "_LoopThread") -> None:
        self._utterance = utterance
        self._thread = thread

    @property
    def result(self) -> m.Done | m.Cancelled | None:
        """How it ended."""
        return self._utterance.result

    @property
    def warnings(self) -> list[m.Warn]:
        """What the server warned of."""
        return self._utterance.warnings

    def __iter__(self) -> Iterator[m.Audio]:
        """Its audio. Leaving the loop early cancels the utterance."""
        return self._each(aiter(self._utterance))

    def events(self) -> Generator[m.ServerMessage, None, None]:
        """Like iterating, but yields every message of the utterance, its `done` included."""
        return self._each(self._utterance.events())

    def read(self) -> bytes:
        """Speak to the end and return all PCM."""
        return self._thread.call(self._utterance.read())

    def cancel(self, *, played_ms: float | None = None) -> None:
        """See `Utterance.cancel`. Also for other threads than the one that iterates."""
        self._thread.call(self._utterance.cancel(played_ms=played_ms))

    def _each(self, messages: AsyncGenerator[_T, None]) -> Generator[_T, None, None]:
        async def following() -> _T | None:
            return await anext(messages, None)

        try:
            while (message := self._thread.call(following())) is not None:
                yield message
        finally:
            # Without waiting: the garbage collector may do this, on any thread.
            with contextlib.suppress(Disconnected):
                self._thread.start(_close(messages))


class _LoopThread:
    """An event loop in a thread, for as long as the block lasts. For any other thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        # The garbage collector may close an utterance, and get here, in the middle of `start`.
        self._lock = threading.RLock()
        self._stopped = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end and return its result. Raises `Disconnected` after the block."""
        ended: concurrent.futures.Future[asyncio.Task[_T]] = concurrent.futures.Future()
        tasks: list[asyncio.Task[_T]] = []

        def abandon() -> None:
            if tasks:
                tasks[0].cancel()
            else:
                coroutine.close()
                ended.cancel()

        try:
            self.start(coroutine, ended.set_result, tasks.append)
            task = ended.result()
        except Disconnected:
            raise
        except BaseException:
            # It may have come at any moment of the two lines above, so only the loop knows what has begun.
            self._loop.call_soon_threadsafe(abandon)
            with contextlib.suppress(concurrent.futures.CancelledError):
                ended.result()
            raise
        if task.cancelled():
            raise Disconnected(CLOSED)
        return task.result()

    def start(
        self,
        coroutine: Coroutine[Any, Any, _T],
        ended: Callable[[asyncio.Task[_T]], object] = lambda _task: None,
        begun: Callable[[asyncio.Task[_T]], object] = lambda _task: None,
    ) -> None:
        """Start a coroutine; `begun` and `ended` are called there with its task. Raises `Disconnected`."""

        def begin() -> None:
            task = self._loop.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(ended)
            begun(task)

        with self._lock:
            if self._stopped:
                coroutine.close()
                raise Disconnected(CLOSED)
            self._loop.call_soon_threadsafe(begin)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            while not self._stopped:
                # A text that exits is for whoever iterates the utterance; others go on.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    runner.get_loop().run_forever()


async def _close(messages: AsyncGenerator[Any, None]) -> None:
    await messages.aclose()
