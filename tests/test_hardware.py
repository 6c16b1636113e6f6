"""Which GPU, slice or processors a program would run on."""

import os
from pathlib import Path

import pytest

from orpheus_ws.hardware import (
    NO_DRIVER,
    VISIBLE_VARIABLE,
    Hardware,
    find_hardware,
    usable_processors,
)
from tests.test_doctor_gpu import A100, H100, H100_MIG, program

FIRST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-0000)"
SECOND = "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-22222222-0000)"
LARGE = "  MIG 3g.40gb     Device  0: (UUID: MIG-aaaa0000-0000)"
SMALL = "  MIG 1g.10gb     Device  1: (UUID: MIG-bbbb0000-0000)"

WHOLE = Hardware("NVIDIA H100 80GB HBM3", "580.82.07")
OTHER = Hardware("NVIDIA A100-SXM4-40GB", "580.82.07")
LARGE_SLICE = Hardware("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "580.82.07")
SMALL_SLICE = Hardware("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "580.82.07")

TWO = (f"{H100}\n{A100}", f"{FIRST}\n{SECOND}")
SLICED = (f"{H100_MIG}\n{A100}", f"{FIRST}\n{LARGE}\n{SMALL}\n{SECOND}")


@pytest.mark.parametrize(
    ("listed", "visible", "device", "found"),
    [
        (TWO, None, "cuda", WHOLE),
        (TWO, None, "cuda:1", OTHER),
        (TWO, None, "cuda:2", None),
        (TWO, "1", "cuda", OTHER),
        (TWO, "1, 0", "cuda:1", WHOLE),
        (TWO, "GPU-2222", "cuda:0", OTHER),
        (TWO, "7,0", "cuda", None),
        (TWO, "", "cuda", None),
        (TWO, None, "mps", None),
        (SLICED, None, "cuda", LARGE_SLICE),
        (SLICED, None, "cuda:1", OTHER),
        (SLICED, "MIG-bbbb0000-0000", "cuda", SMALL_SLICE),
        (SLICED, "MIG-aaaa", "cuda", LARGE_SLICE),
        (SLICED, "MIG-", "cuda", None),
        ((H100_MIG, FIRST), None, "cuda", None),
    ],
)
def test_what_cuda_would_use(
    tmp_path: Path,
    listed: tuple[str, str],
    visible: str | None,
    device: str,
    found: Hardware | None,
) -> None:
    """The variable that chooses devices is understood as CUDA does; what is not there is unknown."""
    rows, names = listed
    script = f"[ $1 = -L ] && printf '%s\\n' '{names}' || printf '%s\\n' '{rows}'"
    environment = program(tmp_path, "nvidia-smi", script)
    if visible is not None:
        environment[VISIBLE_VARIABLE] = visible
    assert find_hardware(device, environment) == found


def test_no_driver(tmp_path: Path) -> None:
    """Without `nvidia-smi` a GPU is unknown."""
    assert find_hardware("cuda", {"PATH": str(tmp_path)}) is None


def test_a_processor() -> None:
    """A processor is named with the cores that this process may use, and has no driver."""
    found = find_hardware("cpu")
    assert found is not None
    assert found.name.endswith("cores")
    assert found.driver == NO_DRIVER
    assert found == find_hardware("cpu", {})


def test_a_system_that_binds_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a process cannot be kept to some of the processors, as on macOS, it may use all of them."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_processors() == os.cpu_count()
