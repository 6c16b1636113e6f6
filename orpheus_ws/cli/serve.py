"""`orpheus-ws serve`: run the server until it is told to stop."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from orpheus_ws import config as configuration
from orpheus_ws import logs
from orpheus_ws.cli.exits import Exit, ender_of_children, leave, leave_anyway, report
from orpheus_ws.cli.options import SHORTCUTS, configured, examples, flags
from orpheus_ws.errors import OrpheusError

if TYPE_CHECKING:
    from orpheus_ws.server import Address

CLOSE_SECONDS: Final = 30.0
"""For parts to be closed: twice what the slowest of ours takes. What hangs then ends with the process."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@click.command(
    short_help="Serve speech until told to stop.",
    epilog=examples(
        "orpheus-ws serve",
        "orpheus-ws serve --config server.toml --port 9000 --set limits.contexts=8",
        "orpheus-ws serve --engine simulated --set codec.name=simulated",
        "orpheus-ws serve --engine torch --model /models/orpheus --uncalibrated 4",
    ),
)
@configured(*SHORTCUTS)
def serve(file: Path | None, settings: tuple[str, ...], **shortcuts: str | None) -> None:
    """Serve speech until SIGTERM or SIGINT, then let open utterances finish; a second one does not.

    One that comes before it serves ends it at once.

    Configuration comes from the file, then ORPHEUS_WS_* variables (ORPHEUS_WS_SERVER__PORT=9000),
    then these options. One JSON line on standard output says where the server listens once it has
    spoken a test word.
    """
    config = configuration.load(file=file, environment=os.environ, flags=flags(settings, shortcuts))
    logs.configure(config.log.level)
    end = _leave_on_signals()
    try:
        code = _run(_serve(config, end))
    except OrpheusError as error:
        code = report(error)
    leave(code)


async def _serve(config: configuration.Config, end: Callable[[], None]) -> Exit:
    # Imported here, so that the client's commands need nothing that only a server needs.
    from orpheus_ws.server import running
    from orpheus_ws.server.loop_monitor import spare_collections

    first, second, hung_up = asyncio.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    # From the start: its default would end a server that is loading.
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    loaded = _leave_though_blocked(end)
    async with running(config) as server:
        loaded()
        for number in _SIGNALS:
            loop.add_signal_handler(number, lambda: (second if first.is_set() else first).set())
        loop.add_signal_handler(signal.SIGHUP, server.reloading.ask)
        if hung_up.is_set():
            server.reloading.ask()
        _announce(server.address, config.server.metrics_host)
        spare_collections()

        async def drained() -> Exit:
            await first.wait()
            _notify("STOPPING=1")
            return Exit.CUT_OFF if await server.drain() else Exit.DONE

        async def stopped() -> Exit:
            await second.wait()
            return Exit.STOPPED

        async def died() -> Exit:
            await server.wait_dead()
            return Exit.DIED

        ending = await _earliest(drained(), stopped(), died())
        # A death empties the server, so a drain that is under way is over by it as well.
        ending = ending if server.health.alive else Exit.DIED
        leave_anyway(ending, CLOSE_SECONDS)
        return ending


def _announce(address: "Address", metrics_host: str) -> None:
    """Say where it listens, to whoever started us."""
    metrics = f"http://{metrics_host}:{address.metrics_port}/metrics"
    http = {} if address.http_url is None else {"http": address.http_url}
    click.echo(json.dumps({"url": address.url, **http, "metrics": metrics}))
    _notify("READY=1")


def _leave_on_signals() -> Callable[[], None]:
    """Loading a model may take minutes and cannot be interrupted; nobody is served yet. Returns what ends us."""
    end_children = ender_of_children()

    def end() -> None:
        end_children()
        leave(Exit.DONE)

    def answer(_number: int, _frame: object) -> None:
        # A second one, on its way already, would come in the middle of this.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        end()

    for number in _SIGNALS:
        signal.signal(number, answer)
    return end


def _leave_though_blocked(end: Callable[[], None]) -> Callable[[], None]:
    """Until the function that it returns is called, a signal ends us even if the event loop stands still.

    Python answers signals in the main thread alone. One that sleeps in a library is not woken when the kernel
    gives them to another thread, as it does with most of those that come two at a time.
    """
    ours, written = socket.socketpair()
    written.setblocking(False)
    of_the_loop = signal.set_wakeup_fd(written.fileno())

    def watch() -> None:
        with ours:
            while numbers := ours.recv(64):
                if not set(_SIGNALS).isdisjoint(numbers):
                    end()
                os.write(of_the_loop, numbers)

    def stop() -> None:
        signal.set_wakeup_fd(of_the_loop)
        written.close()

    threading.Thread(target=watch, daemon=True).start()
    return stop


def _notify(state: str) -> None:
    """Tell systemd, if it started us as a service of `Type=notify` (sd_notify(3) has the protocol)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    # A supervisor that does not listen is no reason to stop speaking.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying,
    ):
        notifying.sendto(state.encode(), address)


async def _earliest(*endings: Coroutine[None, None, Exit]) -> Exit:
    """The outcome of the one that is over first; the others are cancelled."""
    tasks = [asyncio.create_task(ending) for ending in endings]
    over, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return over.pop().result()


def _run(main: Coroutine[None, None, Exit]) -> Exit:
    try:
        import uvloop
    except ModuleNotFoundError:  # not made for Windows
        return asyncio.run(main)
    return uvloop.run(main)
