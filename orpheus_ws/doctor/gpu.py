"""The GPU: what `nvidia-smi` lists, what torch sees, and whether CUDA MPS runs.

TensorRT-LLM's worker and the codec are two processes on one GPU. Without MPS the GPU runs the kernels
of one process at a time, in turns.
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from orpheus_ws.doctor.check import Check, Status
from orpheus_ws.hardware import ABSENT, Capability, Gpu, Listing, ask, ask_nvidia_smi

FP8_CAPABILITY: Final = (8, 9)
"""The least compute capability with FP8 (Ada); Hopper is 9.0."""
PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
PIPE_DIRECTORY: Final = "/tmp/nvidia-mps"
"""CUDA's default."""
MPS_CONTROL: Final = "nvidia-cuda-mps-control"


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
    parts += (
        [f"MIG: {', '.join(one.profile for one in gpu.slices) or 'no slice'}"]
        if gpu.mig or gpu.slices
        else []
    )
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
        answer = ask([MPS_CONTROL], environment, "get_server_list\n")
        # The process ids of its servers: none before the first CUDA program.
        servers = answer.text.split()
        if not answer.failure and all(server.isdecimal() for server in servers):
            running = (
                f"runs in {directory}, process ids of servers: {', '.join(servers) or 'none yet'}"
            )
            return Check("mps", Status.OK, running)
        if answer.failure == ABSENT:
            found = f"unknown: {directory}/control is there, but {MPS_CONTROL} {answer.failure}"
            advice = "see to it that it runs"
        else:
            found = f"does not answer, though there is {directory}/control"
    if not shared:
        return Check("mps", Status.OK, found)
    reason = "engine and codec are two processes on one GPU, whose kernels take turns without MPS"
    return Check("mps", Status.WARNING, found, f"{reason}: {advice}")
