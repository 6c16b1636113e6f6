"""`orpheus-ws calibrate` from its arguments to its end."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from orpheus_ws import manifest as manifests
from orpheus_ws.calibration.record import Report
from orpheus_ws.calibration.server import serving as started
from orpheus_ws.client import connect_sync
from orpheus_ws.keys import new_key
from tests.certificates import Authority
from tests.doctor_runs import command
from tests.test_cli import SIMULATED, run, serving

# Each starts processes, which take their time.
pytestmark = pytest.mark.slow


PATIENT = "from orpheus_ws.audio import Player; Player.PREBUFFER = 60.0"
"""What is found says how busy the machine is; this player and this objective make of that whatever is whole."""


def calibrate(path: Path, *arguments: str) -> list[str]:
    """The command line for a simulated engine."""
    given = ("--set", f"engine.manifest={path}", "--objective-ms", "60000", *arguments)
    return command("calibrate", *SIMULATED, *given, prelude=PATIENT)


def calibrated(path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    line = calibrate(path, *arguments)
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


SHORT = ("--probe-seconds", "1", "--confirm-seconds", "2")


def test_what_is_confirmed_is_served(tmp_path: Path) -> None:
    """The number is written with its evidence, `serve` and `doctor` take it, and both call it simulated."""
    manifest, out = tmp_path / "m.json", tmp_path / "out.json"
    done = calibrated(manifest, "--max", "1", *SHORT, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "1 streams, confirmed and written" in done.stdout
    assert "SIMULATED" in done.stdout
    assert "a larger --max" in done.stdout
    told = msgspec.json.decode(out.read_bytes(), type=Report)
    assert (told.streams, told.written, told.simulated) == (1, str(manifest), True)
    kinds = [(each.purpose, each.traffic) for each in told.attempts]
    assert kinds == [(p, t) for p in ("search", "confirm") for t in ("steady", "variable")]
    (entry,) = manifests.read(manifest).capacity
    assert entry.streams == 1
    settings = ("--set", f"engine.manifest={manifest}")
    with serving(*settings) as (process, _):
        process.terminate()
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr]
    (warned,) = [line for line in lines if "simulated engine" in line["event"]]
    assert (warned["streams"], warned["source"]) == (1, "simulated")
    examined = run("doctor", "--set", "engine.name=simulated", *settings)
    assert "1 streams (simulated)" in examined.stdout


def test_a_configuration_with_keys_limits_and_tls(tmp_path: Path) -> None:
    """The server that is measured lets in the run's own key, whatever the configuration asks of others."""
    authority = Authority(tmp_path)
    authority.issue()
    keys = tmp_path / "keys.toml"
    keys.write_text('[a]\nkeys = ["x"]\nsockets = 1\n')
    hashed = f"auth.keys.b=sha256:{'0' * 64}"
    given = (f"auth.file={keys}", hashed, "auth.sockets=1", *authority.settings)
    arguments = ["--engine", "simulated", "--set", "codec.name=simulated"]
    arguments += [part for setting in given for part in ("--set", setting)]
    key, _ = new_key()
    with (
        started(arguments, 2, key) as measured,
        connect_sync(measured.url, api_key=key) as one,
        connect_sync(measured.url, api_key=key) as other,
    ):
        assert one.speak("Hello.").read()
        assert other.speak("Hello.").read()


def test_a_server_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that heeds no signal is killed when its time is over, and what was measured with it counts."""
    monkeypatch.setattr("orpheus_ws.calibration.server.STOP_SECONDS", 0.01)
    with started([*SIMULATED], 1, new_key()[0]) as measured:
        stopped = measured._process
        os.kill(stopped.pid, signal.SIGSTOP)
    assert stopped.returncode == -signal.SIGKILL


def test_not_even_one(tmp_path: Path) -> None:
    """Where one stream breaks a bound, one line says which and what to do; nothing is written."""
    impossible = ("--max", "1", "--objective-ms", "0.001", "--json")
    done = calibrated(tmp_path / "m.json", *SHORT, *impossible)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "orpheus-ws: not one stream holds, so nothing was written: time to first"
    )
    assert "--objective-ms" in last
    told = msgspec.json.decode(done.stdout, type=Report)
    # What failed had a second chance.
    assert [(each.held, each.traffic) for each in told.attempts] == [(False, "steady")] * 2
    assert not (tmp_path / "m.json").exists()


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    """Where `--out` cannot be is said before anything is measured."""
    done = calibrated(tmp_path / "m.json", "--out", str(tmp_path / "none" / "out.json"))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("orpheus-ws: cannot write ")


def test_a_server_that_cannot_start(tmp_path: Path) -> None:
    """The server's own line says why, and no process is left."""
    done = calibrated(tmp_path / "m.json", "--set", "codec.slots=2")
    assert done.returncode == 1
    assert "no server with 64 streams: the codec has 2 slots" in done.stderr
    assert "Traceback" not in done.stderr


@contextlib.contextmanager
def calibrating(path: Path) -> Iterator[tuple["subprocess.Popen[str]", list[psutil.Process]]]:
    """A calibration that has ended one probe, and all processes that it has started."""
    arguments = ("--max", "4", "--start", "2", *SHORT, "--out", str(path.with_suffix(".out")))
    with subprocess.Popen(
        calibrate(path, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            while "steady" not in process.stderr.readline():
                pass
            yield process, psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()


def runs(process: psutil.Process) -> bool:
    """Whether it does anything any more; that nobody has waited for it makes no difference."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    """A signal leaves what was measured as a file, writes nothing to the manifest, and leaves no process."""
    manifest = tmp_path / "m.json"
    with calibrating(manifest) as (process, started):
        # Ctrl-C at the terminal comes to all of its processes.
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        output, errors = process.communicate(timeout=40)
        assert process.returncode == 6
    assert "Traceback" not in errors
    assert errors.splitlines()[-1] == (
        "orpheus-ws: interrupted; nothing was written to the manifest"
    )
    assert "no number of streams was confirmed" in output
    told = msgspec.json.decode(manifest.with_suffix(".out").read_bytes(), type=Report)
    assert (told.interrupted, told.streams, told.written) == (True, None, None)
    assert told.attempts[0].held
    assert not manifest.exists()
    assert started
    # The last to go is the one that counts what the others hold.
    _, left = psutil.wait_procs(started, timeout=10)
    assert not [each for each in left if runs(each)]


def test_a_killed_calibration_leaves_no_server(tmp_path: Path) -> None:
    """However it ends, the server that it has started ends, too."""
    with calibrating(tmp_path / "m.json") as (process, started):
        process.kill()
        process.wait()
        assert started
        _, left = psutil.wait_procs(started, timeout=40)
    assert not [each for each in left if runs(each)]
