"""Files that are read again while the server runs: keys, certificates.

Rule: what is in use is replaced as a whole or not at all. A file that cannot be used is said in the log
and counted, once for each change of it, and what was read before stays in use. Files are looked at every
two seconds, away from the event loop: a handshake waits for no disk.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from orpheus_ws.config import Config
from orpheus_ws.errors import StartupError
from orpheus_ws.keys import KeyRing, read_keys
from orpheus_ws.metrics import Metrics
from orpheus_ws.server import tls

LOOK_SECONDS: Final = 2.0

_log = logging.getLogger("orpheus_ws.server")

_Marks = tuple[object, ...]


class Source(NamedTuple):
    """Files that belong together."""

    name: str
    """As the label `what` of metrics has it."""
    files: Sequence[Path]
    read: Callable[[], Any]
    """Makes something of them. May block; raises `StartupError` if it cannot be used."""
    use: Callable[[Any], None]
    """Puts that into use. Does not wait."""


def sources(
    config: Config,
    rekey: Callable[[KeyRing], None],
    certify: Callable[[ssl.SSLContext], None] | None,
) -> list[Source]:
    """All there are in a configuration; `certify` is None where nothing speaks TLS."""
    found = []
    if config.auth.file:
        file = Path(config.auth.file)
        found.append(Source("keys", [file], lambda: read_keys(config.auth), rekey))
    if certify is not None:
        files = tls.files(config.server)
        found.append(Source("certificate", files, lambda: tls.read_context(config.server), certify))
    return found


class Reloading:
    """Looks after files. `watch` does the work."""

    def __init__(self, sources: Sequence[Source], metrics: Metrics) -> None:
        self._sources = sources
        self._metrics = metrics
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Read all files again at once, whether they have changed or not. Does not wait."""
        self._asked.set()

    async def watch(self, seen: dict[str, _Marks]) -> None:
        """Never returns. `seen` is what `look` said before the files were read for the first time."""
        seen = dict(seen)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if self._sources else None):
                    await self._asked.wait()
            asked = self._asked.is_set()
            self._asked.clear()
            for source in self._sources:
                # Of the time before reading: what is written meanwhile is a change again.
                marks = await asyncio.to_thread(_marks, source.files)
                if asked or marks != seen[source.name]:
                    seen[source.name] = marks
                    await self._read(source)

    async def _read(self, source: Source) -> None:
        try:
            source.use(await asyncio.to_thread(source.read))
        except Exception as error:  # noqa: BLE001 - whatever it was, this goes on looking
            self._metrics.reloads.labels(source.name, "failed").inc()
            why = str(error) if isinstance(error, StartupError) else type(error).__name__
            told = {"what": source.name, "error": why}
            _log.error("not read again; what was read before stays in use", extra=told)
        else:
            self._metrics.reloads.labels(source.name, "done").inc()
            _log.info("read again", extra={"what": source.name})


def look(config: Config) -> dict[str, _Marks]:
    """How the files of each source are now, by its name. Blocks.

    Before anything is read of them: loading a model takes minutes, and what changes meanwhile counts.
    """
    certify = _ignore if tls.is_on(config.server) else None
    return {source.name: _marks(source.files) for source in sources(config, _ignore, certify)}


def _ignore(_read: object) -> None:
    """Nothing is put into use."""


def _marks(files: Sequence[Path]) -> _Marks:
    """What tells one content of the files from another."""
    marks: list[object] = []
    for file in files:
        try:
            # Of what a link leads to: that is what Kubernetes changes.
            found = file.stat()
        except OSError:
            marks.append(None)
        else:
            marks.append((found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(marks)
