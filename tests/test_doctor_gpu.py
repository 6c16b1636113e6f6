"""The doctor's view of GPUs, with programs of the driver's that are scripts and print what is given.

The answers are written by hand after NVIDIA's documentation; none of them is from a machine of ours.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from orpheus_ws import hardware
from orpheus_ws.doctor import gpu
from orpheus_ws.doctor.check import Status

H100 = "NVIDIA H100 80GB HBM3, 580.82.07, 81559, 9.0, Disabled"
H100_MIG = "NVIDIA H100 80GB HBM3, 580.82.07, 81559, 9.0, Enabled"
A100 = "NVIDIA A100-SXM4-40GB, 580.82.07, 40960, 8.0, Disabled"
LISTED = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-950792bf-0000-0000-0000-000000000000)"
SLICE = "  MIG 3g.40gb     Device  {}: (UUID: MIG-b3061c09-0000-0000-0000-00000000000{})"
SEEN = gpu.Torch("2.9.1", "13.1", (gpu.Device("NVIDIA H100 80GB HBM3", 84_942_979_072, (9, 0)),))
NONE_SEEN = gpu.Torch("2.9.1", "13.1")
CPU_BUILD = gpu.Torch("2.9.1+cpu")


def program(folder: Path, name: str, script: str) -> dict[str, str]:
    """Put a program on the only `PATH`; returns the environment."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return {"PATH": str(folder)}


def nvidia_smi(folder: Path, details: str, listed: str) -> hardware.Listing:
    """What an `nvidia-smi` that answers this is understood to say."""
    script = f"""case "$1" in
        -L) printf '%s\\n' '{listed}' ;;
        --query-gpu=name,driver_version,memory.total,compute_cap,mig.mode.current)
            [ "$2" = --format=csv,noheader,nounits ] && printf '%s\\n' '{details}' ;;
        *) exit 2 ;;
    esac"""
    return hardware.ask_nvidia_smi(program(folder, "nvidia-smi", script))


def test_a_whole_gpu(tmp_path: Path) -> None:
    """Name, memory, capability and driver are shown; a Hopper has FP8."""
    listing = nvidia_smi(tmp_path, H100, LISTED)
    check = gpu.gpu_check(listing, SEEN, needed=True)
    assert check.status is Status.OK
    assert check.found == (
        "NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0, FP8, driver 580.82.07"
    )
    assert check.advice == ""


def test_a_slice_of_a_gpu(tmp_path: Path) -> None:
    """A single MIG slice is named by its size, and no choice has to be made."""
    listing = nvidia_smi(tmp_path, H100_MIG, f"{LISTED}\n{SLICE.format(0, 1)}")
    check = gpu.gpu_check(listing, SEEN, needed=True)
    assert (check.status, check.advice) == (Status.OK, "")
    assert check.found.endswith("MIG: 3g.40gb")


def test_slices_belong_to_the_gpu_above_them(tmp_path: Path) -> None:
    """Of several GPUs, each has its own slices; how to choose one is said."""
    listed = "\n".join([LISTED, LISTED, SLICE.format(0, 1), SLICE.format(1, 2)])
    listing = nvidia_smi(tmp_path, f"{H100}\n{H100_MIG}", listed)
    assert [[one.profile for one in gpu.slices] for gpu in listing.gpus] == [[], ["3g.40gb"] * 2]
    check = gpu.gpu_check(listing, SEEN, needed=True)
    assert check.status is Status.OK
    assert "CUDA_VISIBLE_DEVICES" in check.advice


def test_mig_without_a_slice(tmp_path: Path) -> None:
    """MIG that is on and has no slice is warned of."""
    check = gpu.gpu_check(nvidia_smi(tmp_path, H100_MIG, LISTED), NONE_SEEN, needed=True)
    assert check.status is Status.WARNING
    assert "no slice" in check.found


@pytest.mark.parametrize(("needed", "status"), [(True, Status.WARNING), (False, Status.OK)])
def test_a_gpu_without_fp8(tmp_path: Path, *, needed: bool, status: Status) -> None:
    """Below compute capability 8.9 there is no FP8, which matters if the engine runs there."""
    check = gpu.gpu_check(nvidia_smi(tmp_path, A100, LISTED), None, needed=needed)
    assert check.status is status
    assert "compute capability 8.0, no FP8" in check.found


def test_what_nvidia_smi_may_not_know(tmp_path: Path) -> None:
    """Fields it cannot answer are left out rather than guessed."""
    unknown = "NVIDIA H100 80GB HBM3, 580.82.07, [Insufficient Permissions], [N/A], [N/A]"
    check = gpu.gpu_check(nvidia_smi(tmp_path, unknown, LISTED), None, needed=True)
    assert check.found == "NVIDIA H100 80GB HBM3, driver 580.82.07"
    assert check.status is Status.OK


@pytest.mark.parametrize(
    ("script", "found", "status"),
    [
        (None, "none found: nvidia-smi is not installed", Status.OK),
        ("echo a secret; exit 9", "nvidia-smi fails with exit code 9", Status.WARNING),
        ("exit 0", "none found: nvidia-smi lists none", Status.OK),
        ("echo; echo No devices were found", "none found: nvidia-smi lists none", Status.OK),
        ("printf '\\377,\\376'", "none found: nvidia-smi lists none", Status.OK),
    ],
)
def test_no_gpu(tmp_path: Path, script: str | None, found: str, status: Status) -> None:
    """Without a GPU only an engine that needs one has a problem; a broken driver is warned of."""
    environment = program(tmp_path, "nvidia-smi", script) if script else {"PATH": str(tmp_path)}
    listing = hardware.ask_nvidia_smi(environment)
    check = gpu.gpu_check(listing, None, needed=False)
    assert (check.found, check.status) == (found, status)
    needed = gpu.gpu_check(listing, CPU_BUILD, needed=True)
    assert needed.status is Status.PROBLEM
    assert "--gpus" in needed.advice


def test_a_gpu_that_only_torch_sees() -> None:
    """A container without `nvidia-smi` has a GPU all the same."""
    absent = hardware.Listing(failure="nvidia-smi is not installed", installed=False)
    check = gpu.gpu_check(absent, SEEN, needed=True)
    assert check.status is Status.OK
    assert "torch sees 1" in check.found


def test_a_program_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that hangs does not hang the doctor."""
    monkeypatch.setattr(hardware, "ANSWER_SECONDS", 0.01)
    listing = hardware.ask_nvidia_smi(program(tmp_path, "nvidia-smi", "exec /bin/sleep 60"))
    assert gpu.gpu_check(listing, None, needed=False).found == "nvidia-smi does not answer"


def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    """A file that is no program is a finding, not an exception."""
    environment = program(tmp_path, "nvidia-smi", "")
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF")
    check = gpu.gpu_check(hardware.ask_nvidia_smi(environment), None, needed=False)
    assert check.status is Status.WARNING
    assert "cannot be run" in check.found


# torch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "found", "advice"),
    [
        (None, "not installed", ""),
        (SEEN, "2.9.1, CUDA 13.1, sees cuda:0 NVIDIA H100 80GB HBM3 (79.1 GiB, ", ""),
        (NONE_SEEN, "2.9.1, CUDA 13.1, sees no GPU", "CUDA_VISIBLE_DEVICES"),
        (CPU_BUILD, "2.9.1+cpu, built without CUDA, sees no GPU", "for CUDA"),
        (gpu.Torch(failure="OSError"), "cannot be imported (OSError)", "import torch"),
        (gpu.Torch("2.9.1", "13.1", failure="RuntimeError"), "fails (RuntimeError)", "init()"),
    ],
)
def test_torch_beside_a_gpu(
    tmp_path: Path, torch: gpu.Torch | None, found: str, advice: str
) -> None:
    """A torch that does not see the GPU that is there is warned of, with what to look at."""
    listing = nvidia_smi(tmp_path, H100, LISTED)
    check = gpu.torch_check(torch, listing)
    assert found in check.found
    assert advice in check.advice
    assert (check.status is Status.WARNING) == bool(advice)


@pytest.mark.parametrize("torch", [NONE_SEEN, CPU_BUILD])
def test_torch_without_a_gpu(torch: gpu.Torch) -> None:
    """Where there is no GPU, that torch sees none is as it should be."""
    assert gpu.torch_check(torch, hardware.Listing()).status is Status.OK


# MPS ----------------------------------------------------------------------------------------------

ANSWERS: Mapping[str, tuple[str | None, Status, str]] = {
    "runs": ("echo 4711", Status.OK, "process ids of servers: 4711"),
    "runs, nobody came yet": ("exit 0", Status.OK, "process ids of servers: none yet"),
    "left over": (
        "echo Cannot find MPS control daemon process; exit 1",
        Status.WARNING,
        "does not answer",
    ),
    "says something else": ("echo what?", Status.WARNING, "does not answer"),
    "cannot be asked": (None, Status.WARNING, "unknown"),
}


def daemon(folder: Path, script: str | None) -> dict[str, str]:
    """A pipe directory with a control file, and the program that answers for it."""
    (folder / "control").touch()
    environment = {"PATH": str(folder), gpu.PIPE_VARIABLE: str(folder)}
    if script is not None:
        asked = 'read -r question; [ "$question" = get_server_list ] || exit 3'
        mine = f'[ "$CUDA_MPS_PIPE_DIRECTORY" = "{folder}" ] || exit 4'
        environment |= program(folder, gpu.MPS_CONTROL, f"{asked}\n{mine}\n{script}")
    return environment


@pytest.mark.parametrize("state", ANSWERS)
def test_mps(tmp_path: Path, state: str) -> None:
    """That MPS runs is said only when its daemon answered; anything else is warned of."""
    script, status, found = ANSWERS[state]
    environment = daemon(tmp_path, script)
    check = gpu.mps_check(environment, gpu=True, shared=True)
    assert check.status is status
    assert found in check.found
    assert ("two processes on one GPU" in check.advice) == (status is Status.WARNING)
    # One process has the GPU to itself.
    alone = gpu.mps_check(environment, gpu=True, shared=False)
    assert (alone.status, alone.advice) == (Status.OK, "")
    assert found in alone.found


def test_mps_that_was_never_started(tmp_path: Path) -> None:
    """Without a control file MPS does not run; how to start it is said."""
    environment = program(tmp_path, gpu.MPS_CONTROL, "echo 1")
    for directory in (f"{tmp_path}/none", f"{tmp_path}/{'long' * 2000}"):
        there = environment | {gpu.PIPE_VARIABLE: directory}
        check = gpu.mps_check(there, gpu=True, shared=True)
        assert check.status is Status.WARNING
        assert check.found == f"not running: no {directory}/control was found"
        assert "nvidia-cuda-mps-control -d" in check.advice


def test_mps_without_a_gpu() -> None:
    """Where there is no GPU nothing is said of MPS."""
    check = gpu.mps_check({}, gpu=False, shared=True)
    assert (check.status, check.found) == (Status.OK, "not asked: no GPU was found")


@pytest.mark.parametrize(
    ("engine_device", "codec_device", "status"),
    [
        ("cuda", "cuda", Status.WARNING),
        ("cuda", "cuda:0", Status.WARNING),
        ("cuda", "cpu", Status.OK),
        ("cpu", "cuda", Status.OK),
        (None, "cuda", Status.OK),
    ],
)
def test_who_needs_mps(
    tmp_path: Path, engine_device: str | None, codec_device: str, status: Status
) -> None:
    """MPS matters when both the engine and the codec run on a GPU."""
    nvidia_smi(tmp_path, H100, LISTED)
    environment = {"PATH": str(tmp_path), gpu.PIPE_VARIABLE: str(tmp_path)}
    *_, mps = gpu.examine(environment, engine_device=engine_device, codec_device=codec_device)
    assert mps.name == "mps"
    assert mps.status is status
