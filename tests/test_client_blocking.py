"""The client for programs without an event loop, used from plain threads."""

import asyncio
import gc
import inspect
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import pytest

from orpheus_ws import messages as m
from orpheus_ws.client import BlockingClient, BlockingUtterance, connect_sync
from orpheus_ws.client.blocking import _LoopThread
from orpheus_ws.errors import ClientError, Disconnected, Refused, UtteranceFailed
from orpheus_ws.server import Server
from tests.client_peers import FaultySocket, faulty
from tests.harness import server, turns_until

SENTENCE = "The quick brown fox jumps over the lazy dog."
STEPPED = "engine.options.step_seconds=0.01"
ENDLESS = "engine.options.fault=never_stops"

_T = TypeVar("_T")


async def in_a_script(started: Server, script: Callable[[BlockingClient], _T]) -> _T:
    """Run a plain function with a client, on a thread, while the server has this event loop."""

    def run() -> _T:
        with connect_sync(started.address.url) as client:
            return script(client)

    return await asyncio.to_thread(run)


def idle(started: Server) -> Callable[[], bool]:
    """Whether the engine has nothing to do."""
    return lambda: started.engine.statistics().active == 0


async def test_speak() -> None:
    """A plain loop gets the audio, gapless; then `result` says how it ended."""

    def script(client: BlockingClient) -> None:
        assert client.ready.voices
        utterance = client.speak(SENTENCE, lead_ms=10_000)
        position = 0
        for chunk in utterance:
            assert chunk.offset == position
            position += len(chunk.pcm) // 2
        assert isinstance(utterance.result, m.Done)
        assert utterance.result.audio_ms == pytest.approx(position / 24)
        # The same in one line, and every message.
        sampling = m.Sampling(seed=1)
        pcm = client.speak(SENTENCE, lead_ms=10_000, sampling=sampling).read()
        tagged = client.speak("<foo>" + SENTENCE, lead_ms=10_000, sampling=sampling)
        events = list(tagged.events())
        assert b"".join(event.pcm for event in events if isinstance(event, m.Audio)) == pcm
        assert isinstance(events[-1], m.Done)
        assert [warning.code for warning in tagged.warnings] == ["unknown_tag"]

    async with server() as started:
        await in_a_script(started, script)


async def test_leaving_the_loop_cancels() -> None:
    """Breaking out of the loop stops the engine, and the client speaks on."""
    left = threading.Event()
    looked = threading.Event()

    def script(client: BlockingClient) -> bytes:
        for _ in client.speak(SENTENCE):
            break
        gc.collect()
        left.set()
        assert looked.wait(30)
        return client.speak("Hi.", sampling=m.Sampling(max_tokens=70)).read()

    async with server(STEPPED, ENDLESS) as started:
        running = asyncio.create_task(in_a_script(started, script))
        await turns_until(left.is_set)
        await turns_until(idle(started))
        looked.set()
        assert await running


async def test_cancel() -> None:
    """`cancel` ends the loop quietly, from inside it and from another thread."""

    def script(client: BlockingClient) -> None:
        utterance = client.speak(SENTENCE)
        for _ in utterance:
            utterance.cancel(played_ms=0)
        assert isinstance(utterance.result, m.Cancelled)
        assert utterance.result.text_remaining == SENTENCE

        other = client.speak(SENTENCE)
        speaking = threading.Event()

        def interrupt() -> None:
            assert speaking.wait(30)
            other.cancel()

        thread = threading.Thread(target=interrupt)
        thread.start()
        for _ in other:
            speaking.set()
        thread.join()
        assert isinstance(other.result, m.Cancelled)

    async with server(STEPPED, ENDLESS) as started:
        await in_a_script(started, script)
        await turns_until(idle(started))


async def test_several_threads() -> None:
    """Threads share a client; each gets the whole of what it speaks."""

    def script(client: BlockingClient) -> list[int]:
        sizes = [0] * 6

        def speak(n: int) -> None:
            sizes[n] = len(client.speak(SENTENCE[: 6 + 6 * n], lead_ms=10_000).read())

        threads = [threading.Thread(target=speak, args=(n,)) for n in range(len(sizes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sizes

    async with server() as started:
        sizes = await in_a_script(started, script)
    assert sizes[0] > 0
    assert sizes == sorted(sizes)


async def test_text_from_an_iterator() -> None:
    """Text may come from a generator that waits for what the same program does meanwhile."""
    heard = threading.Event()

    def script(client: BlockingClient) -> list[str]:
        def written() -> Iterator[str]:
            yield "The first sentence. "
            yield "And "
            assert heard.wait(30)  # until the loop below has sound of the first
            yield "the second."

        said: list[str] = []
        for event in client.speak(written(), lead_ms=10_000).events():
            if isinstance(event, m.Audio):
                heard.set()
            if isinstance(event, m.Segment):
                said.append(event.text)
        return said

    async with server() as started:
        assert await in_a_script(started, script) == ["The first sentence.", "And the second."]


async def test_errors() -> None:
    """Every error of the client is raised where a plain script can catch it."""

    def script(client: BlockingClient) -> None:
        with pytest.raises(UtteranceFailed, match="voice"):
            client.speak("Hi.", voice="nobody").read()
        with pytest.raises(UtteranceFailed, match="voice"):
            list(client.speak("Hi.", voice="nobody"))
        spoken = client.speak("Hi.")
        assert spoken.read()
        with pytest.raises(ClientError, match="speak again"):
            spoken.read()

        def failing() -> Iterator[str]:
            yield "One. "
            raise LookupError("no more")

        with pytest.raises(LookupError, match="no more"):
            client.speak(failing()).read()

    def refused(url: str) -> None:
        with pytest.raises(Refused), connect_sync(url, api_key="wrong", patience=0):
            pass

    async with server("auth.keys.a=right") as started:
        await asyncio.to_thread(refused, started.address.url)
    async with server() as started:
        await in_a_script(started, script)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("kind", ["ordinary", "asynchronous"])
async def test_a_text_that_exits(error: BaseException, kind: str) -> None:
    """A writer that ends the program ends the script that iterates, and no other utterance."""

    def ordinary() -> Iterator[str]:
        yield "One. "
        raise error

    async def asynchronous() -> AsyncIterator[str]:
        yield "One. "
        raise error

    def script(client: BlockingClient) -> bytes:
        with pytest.raises(type(error)):
            client.speak(ordinary() if kind == "ordinary" else asynchronous()).read()
        return client.speak("Hi.").read()

    async with server() as started:
        assert await in_a_script(started, script)


async def test_after_the_block() -> None:
    """What is used after its block says so; a loop that was left open by then ends there, too."""

    def script(
        client: BlockingClient,
    ) -> tuple[BlockingClient, BlockingUtterance, Iterator[m.Audio]]:
        left_open = client.speak(SENTENCE)
        chunks = iter(left_open)
        assert next(chunks)
        return client, left_open, chunks

    async with server(STEPPED, ENDLESS) as started:
        client, left_open, chunks = await in_a_script(started, script)
        await turns_until(idle(started))

        def late() -> None:
            for use in (client.speak("Hi.").read, left_open.cancel, lambda: next(chunks)):
                with pytest.raises(Disconnected, match="this client was closed"):
                    use()

        await asyncio.to_thread(late)


async def test_leaving_while_others_speak() -> None:
    """Threads that still speak when the block is left are told, and none of them hangs."""
    failures: list[BaseException] = []

    def script(client: BlockingClient) -> list[threading.Thread]:
        speaking = threading.Semaphore(0)

        def speak() -> None:
            try:
                for _ in client.speak(SENTENCE, sampling=m.Sampling(max_tokens=70)):
                    speaking.release()
                while True:
                    client.speak("Hi.", sampling=m.Sampling(max_tokens=7)).read()
            except ClientError as error:
                failures.append(error)

        threads = [threading.Thread(target=speak) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert speaking.acquire(timeout=30)
        return threads

    async with server(STEPPED) as started:
        for thread in await in_a_script(started, script):
            await asyncio.to_thread(thread.join)
    assert len(failures) == 4


def test_what_runs_when_the_block_is_left() -> None:
    """A call that another thread is in the middle of ends, and says why."""
    failures: list[BaseException] = []
    running = threading.Event()

    async def for_ever() -> None:
        running.set()
        await asyncio.get_running_loop().create_future()

    def call() -> None:
        try:
            loop_thread.call(for_ever())
        except ClientError as error:
            failures.append(error)

    with _LoopThread() as loop_thread:
        caller = threading.Thread(target=call)
        caller.start()
        assert running.wait(30)
    caller.join()
    assert [type(failure) for failure in failures] == [Disconnected]


@pytest.mark.parametrize("when", ["before it is begun", "when it is"])
def test_a_call_that_is_interrupted_at_once(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before anything is waited for leaves nothing running either."""
    begun, left = threading.Event(), threading.Event()

    async def for_ever() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            left.set()

    def interrupted(thread: _LoopThread, *arguments: Any) -> None:
        if when == "when it is":
            start(thread, *arguments)
            assert begun.wait(30)
        raise KeyboardInterrupt

    start = _LoopThread.start
    monkeypatch.setattr(_LoopThread, "start", interrupted)
    with _LoopThread() as loop_thread:
        with pytest.raises(KeyboardInterrupt):
            loop_thread.call(coroutine := for_ever())
        assert left.is_set() == begun.is_set() == (when == "when it is")
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


async def test_reconnecting() -> None:
    """It reconnects as the other does, and says nothing twice."""

    async def lost(socket: FaultySocket) -> None:
        await socket.receive(m.End)
        await socket.lose()

    def script(url: str) -> list[bytes]:
        with connect_sync(url) as client:
            return [client.speak("Hi.").read() for _ in range(2)]

    async def twice(socket: FaultySocket) -> None:
        await socket.speak()
        await socket.speak()

    async with faulty(lost, twice) as servers:
        assert await asyncio.to_thread(script, servers.url) == [b"\0\0", b"\0\0"]


@pytest.mark.parametrize("inside", ["read", "loop"])
async def test_ctrl_c(inside: str) -> None:
    """An interrupted script leaves at once, with nothing but KeyboardInterrupt, and cancels."""
    use = {
        "read": "client.speak(text).read()",
        "loop": "[print('heard', flush=True) for _ in client.speak(text)]",
    }[inside]
    program = textwrap.dedent(
        f"""
        import signal, sys
        from orpheus_ws.client import connect_sync

        # As at a terminal; where the tests run in a shell's background it is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        text = {SENTENCE!r}
        with connect_sync(sys.argv[1]) as client:
            try:
                {use}
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                assert client.speak("The same client goes on.").read()
                sys.exit(7)
        """
    )
    async with server(STEPPED, ENDLESS, "engine.options.fault_requests=1") as started:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-X", "dev", "-W", "error", "-c", program, started.address.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        await turns_until(lambda: started.engine.statistics().active == 1)
        process.send_signal(signal.SIGINT)
        output, errors = await process.communicate()
        assert (process.returncode, errors) == (7, b"")
        assert b"interrupted" in output
        await turns_until(idle(started))
