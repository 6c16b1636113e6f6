"""The GPU: what `nvidia-smi` lists, what torch sees, and whether CUDA MPS runs.

TensorRT-LLM's worker and the codec are two processes on one GPU. Without MPS the GPU runs the kernels
of one process at a time, in turns.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from orpheus_ws.doctor.check import Check, Status

FP8_CAPABILITY: Final = (8, 9)
"""The least compute capability with FP8 (Ada); Hopper is 9.0."""
ANSWER_SECONDS: Final = 10.0
"""A program of the driver's that says nothing for so long is not waited for."""
PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
PIPE_DIRECTORY: Final = "/tmp/nvidia-mps"
"""CUDA's default."""
MPS_CONTROL: Final = "nvidia-cuda-mps-control"

_QUERY: Final = ("name", "driver_version", "memory.total", "compute_cap", "mig.mode.current")

Capability = tuple[int, int]


class Gpu(NamedTuple):
    """One GPU as `nvidia-smi` lists it. What it does not know is empty or None."""

    name: str
    driver: str
    memory_mib: int | None
    capability: Capability | None
    mig: bool
    slices: tuple[str, ...]
    """Names of its MIG slices, such as `3g.40gb`."""


class Listing(NamedTuple):
    """What `nvidia-smi` said. `failure` is empty when it answered."""

    gpus: tuple[Gpu, ...] = ()
    failure: str = ""
    installed: bool = True


class Device(NamedTuple):
    """One device as torch sees it: of a GPU with MIG, a slice."""

    name: str
    memory_bytes: int
    capability: Capability


class Torch(NamedTuple):
    """What torch said. `cuda` is the version it was built for, `failure` the name of an exception."""

    version: str = ""
    cuda: str | None = None
    devices: tuple[Device, ...] = ()
    failure: str = ""


def examine(
    environment: Mapping[str, str], *, engine_device: str | None, codec_device: str | None
) -> list[Check]:
    """Ask all three. The devices are those that engine and codec would run on, where known."""
    listing, torch = ask_nvidia_smi(environment), ask_torch()
    engine_on_gpu, codec_on_gpu = (
        device is not None and device.startswith("cuda") for device in (engine_device, codec_device)
    )
    found = bool(listing.gpus or (torch and torch.devices))
    return [
        torch_check(torch, listing),
        gpu_check(listing, torch, needed=engine_on_gpu),
        mps_check(environment, gpu=found, shared=engine_on_gpu and codec_on_gpu),
    ]


def ask_torch() -> Torch | None:
    """Import torch and ask for its devices; None when it is not installed."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            import torch
    except ModuleNotFoundError as error:
        return None if error.name == "torch" else Torch(failure=type(error).__name__)
    except Exception as error:  # noqa: BLE001 - a build that does not fit raises what it likes
        return Torch(failure=type(error).__name__)
    version, cuda = str(torch.__version__), torch.version.cuda
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    except Exception as error:  # noqa: BLE001 - and so does its driver
        return Torch(version, cuda, failure=type(error).__name__)
    devices = [Device(p.name, p.total_memory, (p.major, p.minor)) for p in properties]
    return Torch(version, cuda, tuple(devices))


def torch_check(torch: Torch | None, listing: Listing) -> Check:
    """What torch is, and whether it sees a GPU that is there."""
    if torch is None:
        return Check("torch", Status.ABSENT, "not installed")
    if not torch.version:
        advice = "python -c 'import torch' says why"
        return Check("torch", Status.WARNING, f"cannot be imported ({torch.failure})", advice)
    built = f"{torch.version}, " + (f"CUDA {torch.cuda}" if torch.cuda else "built without CUDA")
    if torch.failure:
        advice = "python -c 'import torch; torch.cuda.init()' says why"
        return Check("torch", Status.WARNING, f"{built}, fails ({torch.failure})", advice)
    if torch.devices:
        seen = [
            f"cuda:{index} {device.name} ({device.memory_bytes / 2**30:.1f} GiB, "
            f"{_capability(device.capability)})"
            for index, device in enumerate(torch.devices)
        ]
        return Check("torch", Status.OK, f"{built}, sees {', '.join(seen)}")
    found = f"{built}, sees no GPU"
    if not listing.gpus:
        return Check("torch", Status.OK, found)
    if torch.cuda is None:
        advice = "there is a GPU: install a build of torch for CUDA"
    else:
        advice = "there is a GPU: check the driver, MIG and CUDA_VISIBLE_DEVICES"
    return Check("torch", Status.WARNING, found, advice)


def ask_nvidia_smi(environment: Mapping[str, str]) -> Listing:
    """List the GPUs and their MIG slices."""
    query = f"--query-gpu={','.join(_QUERY)}"
    details = _ask(["nvidia-smi", query, "--format=csv,noheader,nounits"], environment)
    names = _ask(["nvidia-smi", "-L"], environment)
    if failure := details.failure or names.failure:
        return Listing(failure=f"nvidia-smi {failure}", installed=failure != _ABSENT)
    slices = _slices(names.text)
    rows = [[cell.strip() for cell in line.split(",")] for line in details.text.splitlines()]
    return Listing(
        tuple(
            _gpu(row, slices[index] if index < len(slices) else ())
            for index, row in enumerate(rows)
            if len(row) == len(_QUERY)
        )
    )


def _gpu(row: list[str], slices: tuple[str, ...]) -> Gpu:
    """Cells that it may not or cannot know are words in brackets."""
    name, driver, memory, capability, mig = row
    numbers = re.fullmatch(r"(\d+)\.(\d+)", capability)
    return Gpu(
        name=name,
        driver=driver,
        memory_mib=int(memory) if memory.isdecimal() else None,
        capability=(int(numbers[1]), int(numbers[2])) if numbers else None,
        mig=mig == "Enabled",
        slices=slices,
    )


def _slices(listed: str) -> list[tuple[str, ...]]:
    """The names of the MIG slices of each GPU, from the lines below its own."""
    found: list[tuple[str, ...]] = []
    for line in listed.splitlines():
        if line.startswith("GPU "):
            found.append(())
        elif found and (named := re.match(r"\s+MIG (\S+)\s+Device", line)):
            found[-1] = (*found[-1], named[1])
    return found


def gpu_check(listing: Listing, torch: Torch | None, *, needed: bool) -> Check:
    """Which GPUs there are, and whether the engine can use them. `needed`: it runs on one."""
    devices = torch.devices if torch else ()
    if not listing.gpus:
        failed = listing.failure or "nvidia-smi lists none"
        if devices:
            return Check("gpu", Status.OK, f"{failed}, but torch sees {len(devices)}")
        if needed:
            advice = "the engine needs an NVIDIA GPU and its driver; Docker gives one with --gpus"
            return Check("gpu", Status.PROBLEM, f"none found: {failed}", advice)
        if listing.failure and listing.installed:
            return Check("gpu", Status.WARNING, failed, "run nvidia-smi to see why")
        return Check("gpu", Status.OK, f"none found: {failed}")
    found = "; ".join(map(_described, listing.gpus))
    capabilities = [device.capability for device in devices] or [
        gpu.capability for gpu in listing.gpus if gpu.capability
    ]
    if any(gpu.mig and not gpu.slices for gpu in listing.gpus):
        advice = "MIG is on and has no slice: create one, or turn MIG off"
        return Check("gpu", Status.WARNING, found, advice)
    if needed and any(capability < FP8_CAPABILITY for capability in capabilities):
        advice = "FP8 needs compute capability 8.9 or more: use a checkpoint without it"
        return Check("gpu", Status.WARNING, found, advice)
    if any(len(gpu.slices) > 1 for gpu in listing.gpus):
        advice = "CUDA_VISIBLE_DEVICES=UUID chooses a slice; nvidia-smi -L lists them"
        return Check("gpu", Status.OK, found, advice)
    return Check("gpu", Status.OK, found)


def _described(gpu: Gpu) -> str:
    parts = [gpu.name]
    parts += [f"{gpu.memory_mib / 1024:.1f} GiB"] if gpu.memory_mib else []
    parts += [_capability(gpu.capability)] if gpu.capability else []
    parts += [f"driver {gpu.driver}"]
    parts += [f"MIG: {', '.join(gpu.slices) or 'no slice'}"] if gpu.mig or gpu.slices else []
    return ", ".join(parts)


def _capability(capability: Capability) -> str:
    fp8 = "FP8" if capability >= FP8_CAPABILITY else "no FP8"
    return f"compute capability {capability[0]}.{capability[1]}, {fp8}"


def mps_check(environment: Mapping[str, str], *, gpu: bool, shared: bool) -> Check:
    """Whether CUDA MPS runs. `shared`: engine and codec are two processes that use a GPU."""
    if not gpu:
        return Check("mps", Status.OK, "not asked: no GPU was found")
    directory = environment.get(PIPE_VARIABLE) or PIPE_DIRECTORY
    advice = f"start it with {MPS_CONTROL} -d"
    if not os.access(f"{directory}/control", os.F_OK):
        found = f"not running: no {directory}/control was found"
    else:
        answer = _ask([MPS_CONTROL], environment, "get_server_list\n")
        # The process ids of its servers: none before the first CUDA program.
        servers = answer.text.split()
        if not answer.failure and all(server.isdecimal() for server in servers):
            running = (
                f"runs in {directory}, process ids of servers: {', '.join(servers) or 'none yet'}"
            )
            return Check("mps", Status.OK, running)
        if answer.failure == _ABSENT:
            found = f"unknown: {directory}/control is there, but {MPS_CONTROL} {answer.failure}"
            advice = "see to it that it runs"
        else:
            found = f"does not answer, though there is {directory}/control"
    if not shared:
        return Check("mps", Status.OK, found)
    reason = "engine and codec are two processes on one GPU, whose kernels take turns without MPS"
    return Check("mps", Status.WARNING, found, f"{reason}: {advice}")


class _Answer(NamedTuple):
    text: str = ""
    failure: str = ""


_ABSENT: Final = "is not installed"


def _ask(command: list[str], environment: Mapping[str, str], text: str = "") -> _Answer:
    """What a program prints. Its own words for a failure are not passed on."""
    program = shutil.which(command[0], path=environment.get("PATH", os.defpath))
    if program is None:
        return _Answer(failure=_ABSENT)
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
        return _Answer(failure="does not answer")
    except OSError as error:
        return _Answer(failure=f"cannot be run ({error.strerror})")
    if done.returncode != 0:
        return _Answer(failure=f"fails with exit code {done.returncode}")
    return _Answer(done.stdout.decode(errors="replace"))
