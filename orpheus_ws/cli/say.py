"""`orpheus-ws say`: speak a text into a file or aloud, and measure it."""

import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

import click
import msgspec
import numpy as np

from orpheus_ws import messages as m
from orpheus_ws.audio import AUDIBLE
from orpheus_ws.cli.options import examples
from orpheus_ws.cli.progress import advancing
from orpheus_ws.client import Backoff, connect
from orpheus_ws.client.connection import check_url
from orpheus_ws.errors import ClientError, Refused, StartupError, Unreachable
from orpheus_ws.settings import ENVIRONMENT_PREFIX
from orpheus_ws.tokens import SAMPLE_RATE

API_KEY_VARIABLE: Final = "ORPHEUS_API_KEY"
DEFAULT_URL: Final = "ws://127.0.0.1:8765/v1/tts"
CA: Final = click.option(
    "--ca",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Certificates to trust, in PEM, instead of the system's.",
)
"""Of the commands that are clients; see `trust`."""
COMPRESSED: Final = (".mp3", ".ogg", ".opus", ".flac", ".aac", ".m4a")
FILE_LEAD_MS: Final = 10_000
"""A file is not listened to while it is written: the most the protocol lets the server run ahead."""
PLAYERS: Final = (
    ("ffplay", "-v", "quiet", "-nodisp", "-autoexit", "-f", "s16le", "-ar", "24000", "-i", "-"),
    ("aplay", "-q", "-t", "raw", "-f", "S16_LE", "-r", "24000", "-c", "1"),
    ("play", "-q", "-t", "raw", "-e", "signed", "-b", "16", "-r", "24000", "-c", "1", "-"),
)
"""Programs that play raw PCM from standard input; the first one installed is used."""


def trust(ca: Path | None) -> None:
    """Take these certificates for good, in this process and in those that it starts.

    Raises `click.BadParameter` where the file has none.
    """
    if ca is not None:
        try:
            ssl.create_default_context(cafile=ca)
        except (ssl.SSLError, OSError):
            raise click.BadParameter(f"{ca} has no certificate in PEM", param_hint="--ca") from None
        # What OpenSSL itself reads wherever no other is named.
        os.environ["SSL_CERT_FILE"] = str(ca)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `say` measured. Times are from handing over the text.

    The real-time factor is audio over time until the server began to wait for the listener, the way
    and all waiting included; `done.rtf` and the metrics count the engine's time alone.
    """

    time_to_first_byte_ms: float
    time_to_first_audio_ms: float | None
    real_time_factor: float
    audio_seconds: float


@click.command(
    short_help="Speak a text into a file, or aloud.",
    epilog=examples(
        'orpheus-ws say "Hello there." -o hello.wav',
        'orpheus-ws say --local "No server is needed." -o hello.wav',
        "orpheus-ws say --url wss://speech.example.com/v1/tts --voice leo < letter.txt",
        'orpheus-ws say -o - "Into another program." | ffplay -autoexit -nodisp -',
    ),
)
@click.argument("text", nargs=-1)
@click.option("-o", "--output", help="WAV file to write, or - for standard output.")
@click.option("--url", help=f"The server; {DEFAULT_URL} if none is named.")
@click.option("--local", is_flag=True, help="Start a server of its own with the embedded voice.")
@click.option("--voice", help="One of the server's voices.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
@click.option("--api-key", envvar=API_KEY_VARIABLE, show_envvar=True, help="The server's key.")
@CA
def say(
    text: tuple[str, ...],
    output: str | None,
    url: str | None,
    *,
    local: bool,
    voice: str | None,
    as_json: bool,
    api_key: str | None,
    ca: Path | None,
) -> None:
    """Speak TEXT (or standard input) into a WAV file, or aloud if no file is named.

    A server that is full is asked again for up to ten seconds. Where nothing listens, that is said at
    once.
    """
    if local and url is not None:
        raise click.UsageError("--local starts its own server; leave out --url")
    if output is not None and Path(output).suffix.lower() in COMPRESSED:
        raise click.UsageError(f"{output} would be a WAV file all the same; call it something.wav")
    trust(ca)
    url = url or DEFAULT_URL
    check_url(url)
    words = " ".join(text) if text else _piped()
    if not words.strip():
        raise click.UsageError("there is nothing to say: give TEXT or pipe it in")
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(_local_server()) if local else url
        write = stack.enter_context(_destination(output))
        advance = stack.enter_context(advancing(len(words), "speaking"))
        saying = _say(address, api_key, words, voice, write, advance, aloud=output is None)
        report = asyncio.run(saying)
    if output not in (None, "-"):
        click.echo(f"wrote {output}", err=True)
    if as_json:
        click.echo(msgspec.json.encode(report).decode(), err=output == "-")
    else:
        click.echo(_table(report), err=True)


def _piped() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        advice = f"what is piped in is not text in {sys.stdin.encoding}; iconv can make it that"
        raise click.UsageError(advice) from error


def _table(report: Report) -> str:
    first_audio = report.time_to_first_audio_ms
    return (
        f"time to first byte   {report.time_to_first_byte_ms:8.1f} ms\n"
        f"time to first audio  {'      --' if first_audio is None else f'{first_audio:8.1f}'} ms\n"
        f"real-time factor     {report.real_time_factor:8.1f} (waiting and the way included)\n"
        f"audio                {report.audio_seconds:8.2f} s"
    )


async def _say(
    url: str,
    api_key: str | None,
    text: str,
    voice: str | None,
    write: Callable[[bytes], object],
    advance: Callable[[int], None],
    *,
    aloud: bool,
) -> Report:
    first_byte = first_audio = None
    samples, factor = 0, 0.0
    lead = 2.0 if aloud else FILE_LEAD_MS / 1000
    async with connect(url, api_key=api_key, backoff=Backoff(waiting=_waiting)) as client:
        utterance = client.speak(text, voice=voice, lead_ms=None if aloud else FILE_LEAD_MS)
        started = time.monotonic()
        async for event in utterance.events():
            if isinstance(event, m.Segment):
                advance(len(event.text))
            if not isinstance(event, m.Audio):
                continue
            now = time.monotonic() - started
            first_byte = now if first_byte is None else first_byte
            pcm = np.frombuffer(event.pcm, "<i2")
            if first_audio is None and np.any(np.abs(pcm / 32767.0) >= AUDIBLE):
                first_audio = now
            samples += len(pcm)
            if factor == 0.0 or samples / SAMPLE_RATE - now < lead - 1.0:
                factor = samples / SAMPLE_RATE / now
            await asyncio.to_thread(write, event.pcm)
    for warning in utterance.warnings:
        click.echo(f"warning: {warning.message}", err=True)
    if first_byte is None:
        raise ClientError("the server found nothing to say in this text")
    return Report(
        time_to_first_byte_ms=first_byte * 1000,
        time_to_first_audio_ms=None if first_audio is None else first_audio * 1000,
        real_time_factor=factor,
        audio_seconds=samples / SAMPLE_RATE,
    )


def _waiting(error: ClientError, seconds: float) -> None:
    """A full server may have room in a moment; one that is not there is a mistake to be told now."""
    if isinstance(error, Unreachable) and isinstance(error.__cause__, ConnectionRefusedError):
        advice = "Start one with `orpheus-ws serve`, or use --local"
        raise Unreachable(f"{error} {advice}") from error
    if not isinstance(error, Refused):
        raise error
    click.echo(f"waiting {seconds:.1f} s: {error}", err=True)


@contextlib.contextmanager
def _destination(output: str | None) -> Iterator[Callable[[bytes], object]]:
    """Where PCM goes: a function that takes it."""
    if output is None:
        with _player() as write:
            yield write
    elif output == "-":
        collected = io.BytesIO()
        yield collected.write
        with _wav(sys.stdout.buffer) as wav:
            wav.writeframes(collected.getvalue())
    else:
        with _writing(output), contextlib.ExitStack() as stack:
            opened: list[wave.Wave_write] = []

            def write(pcm: bytes) -> None:
                # Not before there is something to write: a failure leaves an old file as it is.
                if not opened:
                    opened.append(
                        stack.enter_context(_wav(stack.enter_context(Path(output).open("wb"))))
                    )
                opened[0].writeframes(pcm)

            yield write


@contextlib.contextmanager
def _writing(output: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClientError(f"cannot write {output}: {error.strerror}") from error


def _wav(file: IO[bytes]) -> wave.Wave_write:
    wav = wave.open(file, "wb")  # noqa: SIM115 - the caller closes it
    wav.setnchannels(1)
    wav.setsampwidth(2)
    wav.setframerate(SAMPLE_RATE)
    return wav


@contextlib.contextmanager
def _player() -> Iterator[Callable[[bytes], object]]:
    command = next((list(player) for player in PLAYERS if shutil.which(player[0])), None)
    if command is None:
        names = ", ".join(player[0] for player in PLAYERS)
        raise ClientError(f"no program to play sound was found ({names}); use -o FILE")
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            yield process.stdin.write
    except BrokenPipeError as error:
        raise ClientError(f"{command[0]} stopped playing; use -o FILE") from error
    if process.returncode != 0:
        raise ClientError(f"{command[0]} could not play (exit {process.returncode}); use -o FILE")


@contextlib.contextmanager
def _local_server() -> Iterator[str]:
    """Run a server with the embedded voice on a free port; yields its URL and stops it."""
    if sys.stderr.isatty():
        click.echo("starting a server …", err=True)
    command = [sys.executable, "-m", "orpheus_ws", "serve"]
    command += ["--port", "0", "--metrics-port", "0", "--set", "log.level=warning"]
    # Without our own settings: they describe the server that the user runs.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        # Being told to end is a reason to stop the server too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            assert process.stdout is not None
            announcement = process.stdout.readline()
            if not announcement:
                raise StartupError("the local server did not start; its error is above")
            yield json.loads(announcement)["url"]
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
