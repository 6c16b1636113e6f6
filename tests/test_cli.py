"""The command line, run as a user runs it."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from orpheus_ws import messages as m
from orpheus_ws.access_tokens import verify_token
from orpheus_ws.client import connect_sync
from tests.certificates import Authority

SIMULATED = ("--engine", "simulated", "--set", "codec.name=simulated")
FREE_PORTS = ("--port", "0", "--metrics-port", "0")


def command(*arguments: str) -> list[str]:
    """The command line of `orpheus-ws`."""
    return [sys.executable, "-W", "ignore", "-m", "orpheus_ws", *arguments]


def run(
    *arguments: str, text: str | None = None, path: str = os.environ["PATH"]
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with the programs in `path`."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        input=text,
        timeout=60,
        check=False,
        env={**os.environ, "PATH": path},
    )


def player(folder: Path, script: str) -> str:
    """A `PATH` whose first program that plays sound is this shell script."""
    file = folder / "aplay"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@contextlib.contextmanager
def serving(
    *arguments: str, program: Callable[..., list[str]] = command
) -> Iterator[tuple["subprocess.Popen[str]", dict[str, str]]]:
    """`orpheus-ws serve` in the background, with what it announced."""
    with subprocess.Popen(
        program("serve", *SIMULATED, *FREE_PORTS, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_serve_and_say(tmp_path: Path) -> None:
    """`serve` announces itself in JSON, `say` writes a WAV file of its speech and measures it."""
    with serving() as (process, announced):
        file = tmp_path / "hello.wav"
        said = run("say", "--url", announced["url"], "-o", str(file), "--json", "Hello", "there.")
        assert said.returncode == 0, said.stderr
        report = json.loads(said.stdout)
        with wave.open(str(file)) as wav:
            assert (wav.getnchannels(), wav.getsampwidth(), wav.getframerate()) == (1, 2, 24_000)
            assert wav.getnframes() / 24_000 == pytest.approx(report["audio_seconds"])
        assert report["time_to_first_byte_ms"] <= report["time_to_first_audio_ms"]
        assert report["real_time_factor"] > 0
        with urllib.request.urlopen(announced["metrics"], timeout=10) as response:
            assert b"orpheus_time_to_first_byte_seconds_count" in response.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_say_to_standard_output() -> None:
    """`-o -` writes the WAV file to standard output and the figures to standard error."""
    with serving() as (_, announced):
        said = subprocess.run(
            command("say", "--url", announced["url"], "-o", "-", "Hello."),
            capture_output=True,
            timeout=60,
            check=True,
        )
    assert said.stdout[:4] == b"RIFF"
    assert int.from_bytes(said.stdout[40:44], "little") == len(said.stdout) - 44 > 0
    for figure in ("time to first byte", "time to first audio", "real-time factor", "audio"):
        assert figure in said.stderr.decode()


def test_say_reads_standard_input(tmp_path: Path) -> None:
    """Without TEXT, what is piped in is spoken."""
    with serving() as (_, announced):
        file = str(tmp_path / "piped.wav")
        assert (
            run("say", "--url", announced["url"], "-o", file, text="Piped words.").returncode == 0
        )


def test_say_without_a_player(tmp_path: Path) -> None:
    """Without a file and without a program that plays sound the error says what to do."""
    with serving() as (_, announced):
        said = run("say", "--url", announced["url"], "Hello.", path=str(tmp_path))
    assert said.returncode == 1
    assert "use -o FILE" in said.stderr


def test_say_plays_through_a_program(tmp_path: Path) -> None:
    """Without a file the PCM goes to the first player found."""
    path = player(tmp_path, f"exec cat > {tmp_path}/played")
    with serving() as (_, announced):
        said = run("say", "--url", announced["url"], "Hello.", path=path)
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "played").stat().st_size > 4 * 2048


def test_a_player_that_fails(tmp_path: Path) -> None:
    """A player that cannot play, as on a machine without a sound card, is one line of advice."""
    path = player(tmp_path, "exit 1")
    with serving() as (_, announced):
        said = run("say", "--url", announced["url"], "Hello. " * 20, path=path)
    assert said.returncode == 1
    assert len(said.stderr.splitlines()) == 1
    assert "use -o FILE" in said.stderr


def test_settings_from_everywhere(tmp_path: Path) -> None:
    """A file, the environment and options all reach the server, later ones winning."""
    file = tmp_path / "server.toml"
    file.write_text('[auth.keys]\nalice = "secret"\n[engine]\ncapacity = 3\n')
    with serving("--config", str(file), "--set", "limits.contexts=5") as (_, announced):
        url = announced["url"].replace("ws:", "http:").replace("/v1/tts", "/capacity")
        with urllib.request.urlopen(url, timeout=10) as response:
            assert json.load(response)["max"] == 3
        refused = run("say", "--url", announced["url"], "-o", str(tmp_path / "x.wav"), "Hello.")
        assert refused.returncode == 1
        assert "HTTP 401" in refused.stderr
        key = ("--api-key", "secret")
        said = run("say", "--url", announced["url"], *key, "-o", str(tmp_path / "x.wav"), "Hello.")
        assert said.returncode == 0


def test_who_hangs_up(tmp_path: Path) -> None:
    """Where something listens that hangs up, nobody is told to start a server."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    other.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        url = f"ws://127.0.0.1:{other.getsockname()[1]}/v1/tts"
        said = run("say", "--url", url, "-o", str(tmp_path / "x.wav"), "Hello.")
        other.shutdown(socket.SHUT_RDWR)
    assert said.returncode == 1
    assert said.stderr.endswith("before the server answered: is it a wss:// server?\n")


def test_say_waits_for_a_full_server(tmp_path: Path) -> None:
    """A full server is waited for, which is said on standard error, and then speaks."""
    with serving("--capacity", "1") as (_, announced):
        with connect(announced["url"], subprotocols=[Subprotocol("tts.v1.msgpack")]) as holder:
            saying = subprocess.Popen(
                command("say", "--url", announced["url"], "-o", str(tmp_path / "x.wav"), "Hello."),
                stderr=subprocess.PIPE,
                text=True,
            )
            assert saying.stderr is not None
            waiting = saying.stderr.readline()
            holder.close()
        with saying:
            _, report = saying.communicate(timeout=60)
    assert re.fullmatch(r"waiting 1\.\d s: HTTP 503: all streams are in use; .*\n", waiting)
    assert saying.returncode == 0, report
    assert "time to first audio" in report


def test_token(tmp_path: Path) -> None:
    """`token` prints a token, and nothing else, that opens a socket where its key is known."""
    file = tmp_path / "server.toml"
    file.write_text('[auth.keys]\nweb = "secret"\nmobile = "other"\n')
    made = run("token", "web", "--ttl", "60", "--config", str(file))
    assert made.returncode == 0
    assert made.stderr == ""
    token = made.stdout.strip()
    assert verify_token({"web": "secret"}, token, time.time()) == "web"
    assert verify_token({"web": "secret"}, token, time.time() + 61) is None
    with serving("--config", str(file)) as (_, announced):
        output = ("-o", str(tmp_path / "x.wav"), "Hello.")
        assert run("say", "--url", f"{announced['url']}?token={token}", *output).returncode == 0
    with serving("--config", str(file), "--set", "auth.keys.web=changed") as (_, announced):
        refused = run("say", "--url", f"{announced['url']}?token={token}", *output)
    assert "HTTP 401" in refused.stderr
    assert token not in refused.stderr


def test_tokens_that_cannot_be() -> None:
    """A key that is not there is an error that names those that are; a token lasts up to a day."""
    keys = ("--set", "auth.keys.web=s3cret", "--set", "auth.keys.mobile=s3cret")
    unknown = run("token", "wep", *keys)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert (
        unknown.stderr
        == "orpheus-ws: there is no key 'wep' in auth.keys or auth.file; there is web, mobile\n"
    )
    none = run("token", "web")
    assert none.returncode == 1
    assert "auth.keys.NAME=SECRET" in none.stderr
    for ttl in ("0", "86401", "-1", "1.5", "nan"):
        wrong = run("token", "web", *keys, f"--ttl={ttl}")
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert "s3cret" not in wrong.stderr
    assert run("token", "web", *keys, "--ttl", "86400").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("serve", "--set", "server.prot=1"), "'server.port'"),
        (("serve", *FREE_PORTS, "--engine", "pockt"), "pocket, simulated"),
        (("serve", *FREE_PORTS, *SIMULATED, "--set", "codec.name=loop"), "no codec 'loop'"),
        (("serve", *SIMULATED, "--host", "0.0.0.0"), "auth.keys"),
        (("serve", *SIMULATED, "--port", "many"), "server.port"),
        (("serve", "--config", "/nonexistent.toml"), "/nonexistent.toml"),
        (
            ("say", "--url", "ws://127.0.0.1:{closed}", "-o", "x.wav", "Hello."),
            "is the server running?",
        ),
        (("say", "--url", "http://127.0.0.1:1", "Hello."), "must be like ws://"),
        (("say", "--url", "ws://127.0.0.1:port", "Hello."), "must be like ws://"),
    ],
)
def test_mistakes(
    arguments: tuple[str, ...], advice: str, tmp_path: Path, closed_port: int
) -> None:
    """What cannot work is one line that says what to change, and exit code 1."""
    given = [argument.replace("{closed}", str(closed_port)) for argument in arguments]
    finished = subprocess.run(
        command(*given), capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert len(finished.stderr.splitlines()) == 1
    assert finished.stderr.startswith("orpheus-ws: ")
    assert not (tmp_path / "x.wav").exists()
    assert advice in finished.stderr


def test_usage() -> None:
    """Wrong usage is exit code 2; help names the commands."""
    assert run("speak").returncode == 2
    assert run("say", "-o", "x.wav", text="  ").returncode == 2
    both = run("say", "--local", "--url", "ws://127.0.0.1:1", "-o", "x.wav", "Hello.")
    assert both.returncode == 2
    assert "leave out --url" in both.stderr
    help_text = run("--help").stdout
    for name in ("serve", "say", "token", "bench", "doctor"):
        assert name in help_text


def test_a_drained_server_lets_speech_finish() -> None:
    """SIGTERM in the middle of an utterance lets it finish; then the server exits with 0."""
    draining = threading.Event()

    def written() -> Iterator[str]:
        yield "A sentence, to be heard. "
        assert draining.wait(30)
        yield "And this is its end."

    with serving() as (process, announced):
        said = []
        with connect_sync(announced["url"]) as client:
            utterance = client.speak(written())
            for event in utterance.events():
                if isinstance(event, m.Segment):
                    said.append(event.text)
                if isinstance(event, m.Audio) and not draining.is_set():
                    process.send_signal(signal.SIGTERM)
                    while not _drains(announced):
                        pass
                    draining.set()
            assert said == ["A sentence, to be heard.", "And this is its end."]
            assert isinstance(utterance.result, m.Done)
        assert process.wait(timeout=30) == 0


def _drains(announced: dict[str, str]) -> bool:
    url = announced["url"].replace("ws:", "http:").replace("/v1/tts", "/capacity")
    with urllib.request.urlopen(url, timeout=10) as response:
        return bool(json.load(response)["draining"])


ONE_TURN = ("--streams", "1", "--utterances", "1", "--ramp", "0", "--prebuffer-ms", "60000")
"""Of a load, by a player that no process is too late for."""


def test_a_signal_to_read_again(tmp_path: Path) -> None:
    """SIGHUP has keys and certificate read again; the server goes on, with or without such files."""
    authority = Authority(tmp_path)
    old = authority.issue()
    keys = tmp_path / "keys.toml"
    keys.write_text('[alice]\nkeys = ["one"]\n')
    given = [f"auth.file={keys}", *authority.settings]
    secured = [part for setting in given for part in ("--set", setting)]
    with serving(*secured) as (process, announced):
        assert announced["url"].startswith("wss://")
        wav, ca = str(tmp_path / "a.wav"), str(authority.file)
        say = ("say", "--url", announced["url"], "--ca", ca, "-o", wav)
        assert run(*say, "--api-key", "one", "Hello.").returncode == 0
        unknown = run("say", "--url", announced["url"], "--api-key", "one", "-o", "-", "Hello.")
        assert (unknown.returncode, "--ca" in unknown.stderr) == (1, True)
        mistaken = run(*say[:3], "--ca", str(keys), "-o", wav, "--api-key", "one", "Hello.")
        assert mistaken.returncode == 2
        assert f"{keys} has no certificate in PEM" in mistaken.stderr
        assert authority.issue() != old
        keys.write_text('[alice]\nkeys = ["two"]\n')
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        read: set[str] = set()
        while len(read) < 2:
            line = json.loads(process.stderr.readline())
            if line["event"] == "read again":
                read.add(line["what"])
        assert read == {"keys", "certificate"}
        assert run(*say, "--api-key", "two", "Hello.").returncode == 0
        refused = run(*say, "--api-key", "one", "Hello.")
        assert (refused.returncode, "HTTP 401" in refused.stderr) == (1, True)
        load = ("load", announced["url"], "--ca", ca, "--api-key", "two", "--json")
        loaded = run(*load, *ONE_TURN)
        assert loaded.returncode == 0, loaded.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    with serving() as (process, announced):
        process.send_signal(signal.SIGHUP)
        hello = run("say", "--url", announced["url"], "-o", str(tmp_path / "a.wav"), "Hello.")
        assert hello.returncode == 0


def test_saying_what_is_no_text() -> None:
    """Bytes of another encoding that are piped in are one line that says what they should be."""
    done = subprocess.run(
        command("say", "--url", "ws://127.0.0.1:1/v1/tts"),
        input="Señor".encode("latin-1"),
        capture_output=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
    )
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "orpheus-ws: what is piped in is not text in utf-8; iconv can make it that; see "
        "`orpheus-ws say --help`\n"
    )
