"""`orpheus-ws doctor`, run as a user runs it: what it says of a machine and a configuration."""

import os
import pty
import re
import resource
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orpheus_ws.cli.doctor import doctor as doctor_command
from orpheus_ws.cli.serve import serve
from tests.certificates import Authority
from tests.doctor_runs import WITHOUT_TORCH, command, doctor, serve_starts, settings, without
from tests.test_doctor_gpu import H100_MIG, LISTED, SLICE, daemon, program

SIMULATED = settings("engine.name=simulated", "codec.name=simulated")
FREE_PORTS = settings("server.port=0", "server.metrics_port=0")
CHECKS = [
    "python", "processors", "event_loop", "socket_options",
    "packages", "extra_codec", "extra_pocket", "extra_http", "extra_bench",
    "extra_torch", "extra_trtllm",
    "extra_otel",
    "torch", "gpu", "mps",
    "configuration", "engine", "codec", "open_files", "access", "certificate", "port",
    "metrics_port",
    "tracing",
]  # fmt: skip
SECRET = "hunter2-and-more"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on 127.0.0.1 that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


# What it says -------------------------------------------------------------------------------------


def test_the_schema() -> None:
    """The JSON report has these checks in this order, each with the same four fields."""
    examined = doctor(*SIMULATED, *FREE_PORTS, prelude="")
    assert examined.code == 0, examined.printed
    assert set(examined.report) == {"version", "problems", "warnings", "checks"}
    assert list(examined.checks) == CHECKS
    for check in examined.report["checks"]:
        assert set(check) == {"name", "status", "found", "advice"}
        assert check["status"] in ("ok", "absent", "warning", "problem")
        assert check["found"]
    for status in ("problem", "warning"):
        count = sum(check["status"] == status for check in examined.report["checks"])
        assert examined.report[f"{status}s"] == count


def test_a_machine_without_torch() -> None:
    """Where torch cannot be imported, whatever does not need it is examined as ever."""
    examined = doctor(*SIMULATED, *FREE_PORTS, prelude=without("torch", "uvloop"))
    assert examined.code == 0, examined.printed
    assert examined.checks["torch"]["found"] == "not installed"
    assert examined.checks["engine"]["found"] == "simulated, on cpu, 64 streams (default)"
    assert examined.checks["codec"]["found"] == "simulated, on cpu, 65 slots"
    assert examined.checks["event_loop"]["status"] == "warning"


def test_what_is_missing_for_a_codec() -> None:
    """A codec whose package is missing is a problem, with the command that installs it."""
    examined = doctor(
        *FREE_PORTS, *settings("engine.name=simulated"), prelude=without("torch", "snac")
    )
    assert examined.code == 1
    assert examined.checks["codec"]["status"] == "problem"
    assert "pip install 'orpheus-ws[codec]'" in examined.checks["codec"]["advice"]


def test_the_words_of_serve() -> None:
    """Every option of `serve` is one of `doctor`, and means the same."""
    assert {each.name for each in serve.params} <= {each.name for each in doctor_command.params}
    words = ("--engine", "simulated", "--port", "0", "--metrics-port", "0", "--uncalibrated", "5")
    examined = doctor(*settings("codec.name=simulated"), *words)
    assert "5 streams (uncalibrated)" in examined.checks["engine"]["found"]


def test_an_engine_that_is_not_there() -> None:
    """An engine that cannot be loaded is a problem with advice, and the exit code is 1."""
    examined = doctor(*SIMULATED, *FREE_PORTS, *settings("engine.name=trtllm"))
    assert examined.code == 1
    assert examined.checks["engine"]["status"] == "problem"
    assert examined.checks["engine"]["found"] == "trtllm, on cuda"
    assert examined.checks["engine"]["advice"]


def test_a_gpu_with_slices_and_no_mps(tmp_path: Path) -> None:
    """On a slice of an H100 without MPS all that concerns the GPU is put together."""
    device = "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    (tmp_path / "torch.py").write_text(
        f"""
from types import SimpleNamespace
__version__ = "2.9.1"
version = SimpleNamespace(cuda="13.1")
seen = SimpleNamespace(name="{device}", major=9, minor=0, total_memory=42 * 2**30)
cuda = SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 1, get_device_properties=lambda index: seen
)
print("this library is talkative")
"""
    )
    listed = f"{LISTED}\n{SLICE.format(0, 1)}"
    program(
        tmp_path,
        "nvidia-smi",
        f"[ $1 = -L ] && printf '%s\\n' '{listed}' || echo '{H100_MIG}'",
    )
    environment = daemon(tmp_path, "echo Cannot find MPS control daemon process; exit 1")
    examined = doctor(
        *FREE_PORTS,
        *settings("engine.name=trtllm", "codec.options.device=cuda"),
        prelude="",
        environment=environment | {"PYTHONPATH": str(tmp_path)},
    )
    checks = examined.checks
    assert checks["torch"]["found"] == (
        f"2.9.1, CUDA 13.1, sees cuda:0 {device} (42.0 GiB, compute capability 9.0, FP8)"
    )
    assert checks["gpu"]["found"].endswith("driver 580.82.07, MIG: 3g.40gb")
    assert checks["mps"]["status"] == "warning"
    assert "two processes on one GPU" in checks["mps"]["advice"]


def test_a_part_of_somebody_elses(tmp_path: Path) -> None:
    """A module of the user's is imported; what it prints is not taken for the report."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "engine.py").write_text("print('hello')\ndef open_engine(config): ...\n")
    own = settings("engine.name=own.engine")
    environment = {"PYTHONPATH": str(tmp_path)}
    examined = doctor(*SIMULATED, *FREE_PORTS, *own, environment=environment)
    assert examined.code == 0, examined.printed
    assert examined.checks["engine"]["found"] == "own.engine"
    assert "capacity is unknown" in examined.checks["open_files"]["found"]
    (tmp_path / "own" / "engine.py").write_text(f"raise OSError('{SECRET}')\n")
    broken = doctor(*SIMULATED, *FREE_PORTS, *own, environment=environment)
    assert broken.code == 1
    assert "cannot be imported (OSError)" in broken.checks["engine"]["advice"]
    assert SECRET not in broken.printed


def test_a_configuration_that_cannot_be_read() -> None:
    """A mistake in the configuration is a problem; the machine is examined all the same."""
    examined = doctor(*settings("server.prot=1"))
    assert examined.code == 1
    assert "'server.port'" in examined.checks["configuration"]["advice"]
    assert list(examined.checks) == CHECKS[: CHECKS.index("configuration") + 1]


# The machine --------------------------------------------------------------------------------------


def limited(name: int, value: int, *arguments: str) -> dict[str, str]:
    """The check of open files of a doctor that may open so many."""

    def limit() -> None:
        _, hard = resource.getrlimit(name)
        resource.setrlimit(name, (value, hard))

    done = subprocess.run(
        command("doctor", *arguments, prelude=WITHOUT_TORCH),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=limit,
    )
    assert done.returncode == 0, done.stderr
    (line,) = re.findall(r"^(\w+) +open files +(.*)", done.stdout, re.MULTILINE)
    return {"status": line[0], "found": line[1]}


@pytest.mark.parametrize(("tls", "needed"), [(False, 776), (True, 776 + 256)])
def test_too_few_open_files(tmp_path: Path, needed: int, *, tls: bool) -> None:
    """A limit that leaves no room for a full server's sockets, and a storm's, is warned of."""
    certificate = Authority(tmp_path)
    certificate.issue()
    given = settings("engine.capacity=200", *(certificate.settings if tls else ()))
    arguments = [*SIMULATED, *FREE_PORTS, *given]
    low = limited(resource.RLIMIT_NOFILE, needed - 1, *arguments)
    assert low == {"status": "warning", "found": f"at most {needed - 1}, for 200 sockets"}
    assert limited(resource.RLIMIT_NOFILE, needed, *arguments)["status"] == "ok"


def test_a_single_processor() -> None:
    """A process that is kept to one processor is warned of."""
    one = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})"
    check = doctor(*SIMULATED, *FREE_PORTS, prelude=f"{one}\n{WITHOUT_TORCH}").checks
    assert check["processors"]["status"] == "warning"
    assert check["processors"]["found"].endswith("may use 1")


def test_a_taken_port(taken: int) -> None:
    """A port that somebody listens on is a problem that names the key."""
    for key, name in (("server.port", "port"), ("server.metrics_port", "metrics_port")):
        examined = doctor(*SIMULATED, *FREE_PORTS, *settings(f"{key}={taken}"))
        assert examined.code == 1
        assert examined.report["problems"] == 1
        assert examined.checks[name]["status"] == "problem"
        assert key in examined.checks[name]["advice"]


# Packages -----------------------------------------------------------------------------------------


# Keys and certificates ----------------------------------------------------------------------------


def test_a_key_file(tmp_path: Path) -> None:
    """Keys of the file are counted with the others; one that cannot be read is a problem."""
    file = tmp_path / "keys.toml"
    file.write_text(f'[alice]\nkeys = ["{SECRET}", "b"]\n')
    examined = doctor(*SIMULATED, *FREE_PORTS, *settings(f"auth.file={file}", "auth.keys.bob=c"))
    assert examined.checks["access"]["found"] == "3 keys, on 127.0.0.1"
    file.write_text(f'[alice]\nkeys = "{SECRET}"\n')
    broken = doctor(*SIMULATED, *FREE_PORTS, *settings(f"auth.file={file}"))
    assert (broken.code, broken.checks["access"]["status"]) == (1, "problem")
    assert SECRET not in broken.printed


# As a command -------------------------------------------------------------------------------------


def test_keys_are_never_shown(tmp_path: Path) -> None:
    """Keys are counted; neither a right nor a misplaced one is in any output."""
    file = tmp_path / "server.toml"
    file.write_text(f'[auth.keys]\nalice = "{SECRET}"\n')
    environment = {"ORPHEUS_WS_AUTH__KEYS__BOB": SECRET}
    examined = doctor("--config", str(file), *SIMULATED, *FREE_PORTS, environment=environment)
    assert examined.code == 0
    assert examined.checks["access"]["found"] == "2 keys, on 127.0.0.1"
    assert SECRET not in examined.printed
    for misplaced in (f"auth.keys={SECRET}", f"auth.keys.a.b={SECRET}", f"log.level={SECRET}"):
        wrong = doctor("--config", str(file), *settings(misplaced), environment=environment)
        assert wrong.code == 1
        assert SECRET not in wrong.printed


def test_the_table(taken: int) -> None:
    """For people it is a table: a line a check, advice below what it belongs to, a last word."""
    done = subprocess.run(
        command(
            "doctor",
            *SIMULATED,
            *settings("server.metrics_port=0", f"server.port={taken}"),
            prelude=WITHOUT_TORCH,
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 1
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    *table, blank, verdict = done.stdout.splitlines()
    assert blank == ""
    assert verdict.endswith(": 1 found that serve would stop at")
    checks = [line for line in table if not line.startswith(" ")]
    assert [line[9:25].strip().replace(" ", "_") for line in checks] == CHECKS
    (at,) = [i for i, line in enumerate(table) if line.startswith("problem")]
    assert table[at].split()[:2] == ["problem", "port"]
    assert table[at + 1].startswith(" " * 25 + "→ ")


def test_colours_on_a_terminal() -> None:
    """Only a terminal gets colours."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        subprocess.run(
            command("doctor", *SIMULATED, *FREE_PORTS, prelude=WITHOUT_TORCH),
            stdout=theirs,
            timeout=60,
            check=True,
        )
        os.close(theirs)
        shown = terminal.read(1 << 16).decode()
    assert "\x1b[32mok" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("engine.name=simulatid",),
        ("codec.name=loop",),
        ("engine.options.fault=everything",),
        ("codec.options.step=1",),
        ("engine.capacity=3", "codec.slots=3"),
        ("engine.capacity=3", "codec.slots=4"),
        ("codec.slots=3",),
        ("server.host=0.0.0.0",),
        ("server.host=0.0.0.0", "auth.anonymous=true"),
        ("server.host=203.0.113.1", "auth.anonymous=true"),
        ("server.metrics_host=203.0.113.1",),
        ("server.host=localhost", "server.metrics_host=localhost"),
        ("server.host=",),
        ("server.port=PORT",),
        ("server.metrics_port=PORT",),
        ("limits.contexts=0",),
    ],
)
def test_it_agrees_with_serve(arguments: tuple[str, ...], taken: int) -> None:
    """The exit code is 0 exactly for the configurations that `serve` starts with."""
    given = settings(*(value.replace("PORT", str(taken)) for value in arguments))
    examined = doctor(*SIMULATED, *FREE_PORTS, *given)
    assert (examined.code == 0) == serve_starts(*SIMULATED, *FREE_PORTS, *given)


def test_one_port_for_both() -> None:
    """A port that is free, but wanted twice, is a problem for the second."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    both = settings(f"server.port={free}", f"server.metrics_port={free}")
    examined = doctor(*SIMULATED, *both)
    assert examined.code == 1
    assert examined.checks["port"]["status"] == "ok"
    assert examined.checks["metrics_port"]["status"] == "problem"


def test_a_port_for_http() -> None:
    """It is tried where it is wanted, and needs its extra; `serve` says the same."""
    wanted = [*SIMULATED, *FREE_PORTS, *settings("server.http_port=0")]
    examined = doctor(*wanted)
    assert examined.checks["http_port"]["status"] == "ok"
    assert examined.code == 0
    lacking = without("torch", "uvicorn")
    examined = doctor(*wanted, prelude=lacking)
    assert examined.checks["http_port"]["status"] == "problem"
    assert "orpheus-ws[http]" in examined.checks["http_port"]["advice"]
    served = subprocess.run(
        command("serve", *wanted, prelude=lacking), capture_output=True, text=True, check=False
    )
    assert served.returncode == 1
    assert examined.checks["http_port"]["advice"] in served.stderr
