"""Which machine this is, as far as a measured capacity depends on it: the GPU or its slice, the driver.

Rule: `nvidia-smi` is asked, and what it cannot say is unknown; nothing is guessed. No CUDA program is
started, so it can be asked before anything is loaded. Where an engine runs on the processor, that is
the machine.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ANSWER_SECONDS: Final = 10.0
"""A program of the driver's that says nothing for so long is not waited for."""
VISIBLE_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
NO_DRIVER: Final = "none"
"""The driver of a processor."""
ABSENT: Final = "is not installed"

_QUERY: Final = ("name", "driver_version", "memory.total", "compute_cap", "mig.mode.current")

Capability = tuple[int, int]


class Hardware(NamedTuple):
    """What a capacity was measured on. Two machines that are equal here serve equally many streams."""

    name: str
    """Of the GPU, of a slice with its profile (`… MIG 3g.40gb`), or of the processor with its cores."""
    driver: str
    """Version of NVIDIA's driver, or `NO_DRIVER`."""


class Slice(NamedTuple):
    """A MIG slice of a GPU."""

    profile: str
    """Such as `3g.40gb`."""
    uuid: str


class Gpu(NamedTuple):
    """One GPU as `nvidia-smi` lists it. What it does not know is empty or None."""

    name: str
    driver: str
    memory_mib: int | None
    capability: Capability | None
    mig: bool
    uuid: str
    slices: tuple[Slice, ...]


class Listing(NamedTuple):
    """What `nvidia-smi` said. `failure` is empty when it answered."""

    gpus: tuple[Gpu, ...] = ()
    failure: str = ""
    installed: bool = True


def find_hardware(device: str, environment: Mapping[str, str] | None = None) -> Hardware | None:
    """The machine behind `cpu`, `cuda` or `cuda:1`; None when that cannot be told. Blocking.

    `environment` is where CUDA's programs are and which devices they see; None: this process's.
    """
    environment = os.environ if environment is None else environment
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return _processor()
    if kind != "cuda":
        return None
    seen = list(_visible(ask_nvidia_smi(environment).gpus, environment.get(VISIBLE_VARIABLE)))
    number = int(index or 0)
    return seen[number] if number < len(seen) else None


def _processor() -> Hardware:
    try:
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # only Linux has it
        listed = ""
    named = re.search(r"^model name\s*:\s*(\S.*?)\s*$", listed, re.MULTILINE)
    name = named[1] if named else platform.processor() or platform.machine()
    return Hardware(f"{name}, {usable_processors()} cores", NO_DRIVER)


def usable_processors() -> int:
    """How many processors this process may use. Only Linux lets it be kept to some of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _visible(gpus: tuple[Gpu, ...], visible: str | None) -> Iterator[Hardware]:
    """The devices that CUDA shows a program, in its order; it stops at one that is not there."""
    if visible is None:
        for gpu in gpus:
            yield from _devices(gpu)[:1]
        return
    for name in visible.split(","):
        chosen = [
            device
            for number, gpu in enumerate(gpus)
            for device in _chosen(gpu, number, name.strip())
        ]
        if not chosen:
            return
        yield chosen[0]


def _chosen(gpu: Gpu, number: int, name: str) -> list[Hardware]:
    """The devices of a GPU that an entry of the variable names, by number or by the start of a UUID."""
    if name == str(number) or (name.startswith("GPU-") and gpu.uuid.startswith(name)):
        return _devices(gpu)
    slices = zip(gpu.slices, _devices(gpu), strict=True) if gpu.slices else ()
    return [device for one, device in slices if name[4:] and one.uuid.startswith(name)]


def _devices(gpu: Gpu) -> list[Hardware]:
    """The GPU, or its slices."""
    if not gpu.mig and not gpu.slices:
        return [Hardware(gpu.name, gpu.driver)]
    return [Hardware(f"{gpu.name} MIG {one.profile}", gpu.driver) for one in gpu.slices]


def ask_nvidia_smi(environment: Mapping[str, str]) -> Listing:
    """List the GPUs and their MIG slices. Blocking."""
    query = f"--query-gpu={','.join(_QUERY)}"
    details = ask(["nvidia-smi", query, "--format=csv,noheader,nounits"], environment)
    names = ask(["nvidia-smi", "-L"], environment)
    if failure := details.failure or names.failure:
        return Listing(failure=f"nvidia-smi {failure}", installed=failure != ABSENT)
    listed = _listed(names.text)
    rows = [[cell.strip() for cell in line.split(",")] for line in details.text.splitlines()]
    return Listing(
        tuple(
            _gpu(row, *(listed[index] if index < len(listed) else ("", ())))
            for index, row in enumerate(rows)
            if len(row) == len(_QUERY)
        )
    )


def _gpu(row: list[str], uuid: str, slices: tuple[Slice, ...]) -> Gpu:
    """Cells that it may not or cannot know are words in brackets."""
    name, driver, memory, capability, mig = row
    numbers = re.fullmatch(r"(\d+)\.(\d+)", capability)
    return Gpu(
        name=name,
        driver=driver,
        memory_mib=int(memory) if memory.isdecimal() else None,
        capability=(int(numbers[1]), int(numbers[2])) if numbers else None,
        mig=mig == "Enabled",
        uuid=uuid,
        slices=slices,
    )


def _listed(text: str) -> list[tuple[str, tuple[Slice, ...]]]:
    """The UUID and the MIG slices of each GPU, from its line and the lines below."""
    found: list[tuple[str, tuple[Slice, ...]]] = []
    for line in text.splitlines():
        named = re.search(r"\(UUID: ([\w-]+)\)", line)
        uuid = named[1] if named else ""
        if line.startswith("GPU "):
            found.append((uuid, ()))
        elif found and (slice_ := re.match(r"\s+MIG (\S+)\s+Device", line)):
            gpu, slices = found[-1]
            found[-1] = (gpu, (*slices, Slice(slice_[1], uuid)))
    return found


class Answer(NamedTuple):
    """What a program printed. `failure` is empty when it answered."""

    text: str = ""
    failure: str = ""


def ask(command: list[str], environment: Mapping[str, str], text: str = "") -> Answer:
    """Run a program of the driver's. Its own words for a failure are not passed on. Blocking."""
    program = shutil.which(command[0], path=environment.get("PATH", os.defpath))
    if program is None:
        return Answer(failure=ABSENT)
    try:
        done = subprocess.run(
            [program, *command[1:]],
            input=text.encode(),
            capture_output=True,
            timeout=ANSWER_SECONDS,
            check=False,
            env=dict(environment),
        )
    except subprocess.TimeoutExpired:
        return Answer(failure="does not answer")
    except OSError as error:
        return Answer(failure=f"cannot be run ({error.strerror})")
    if done.returncode != 0:
        return Answer(failure=f"fails with exit code {done.returncode}")
    return Answer(done.stdout.decode(errors="replace"))
