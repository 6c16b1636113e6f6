"""Whether torch can use a device. Without transformers, which takes seconds to import."""

import torch

from orpheus_ws.errors import StartupError


def check_device(device: str, option: str) -> None:
    """Raise `StartupError` unless torch can use the device, which `option` names."""
    try:
        torch.empty(0, device=device)
    except Exception as error:
        # torch raises an AssertionError, among others.
        raise StartupError(
            f"torch cannot use the device {device!r} ({type(error).__name__}): set "
            f"{option} to one that it sees, such as 'cpu' or 'cuda'"
        ) from error
