"""What a manifest states and what is configured, brought together.

Rule: what was measured holds for what the manifest states, so an option may repeat it and may not
contradict it.
"""

from typing import TypeVar

from orpheus_ws import tokens
from orpheus_ws.errors import StartupError
from orpheus_ws.manifest import Manifest

_T = TypeVar("_T")


def choose(name: str, option: _T | None, stated: _T | None, default: _T) -> _T:
    """What the manifest states, or else what is configured, or else the default.

    Raises `StartupError` if the first two differ: what was measured holds for what is stated.
    """
    if stated is None:
        return default if option is None else option
    if option is not None and option != stated:
        raise StartupError(
            f"engine.options.{name} is {_words(option)} and the model's manifest says "
            f"{_words(stated)}: leave the option out, or make the manifest again with it"
        )
    return stated


def choose_voices(option: tuple[str, ...], manifest: Manifest | None) -> tuple[str, ...]:
    """The voices of the manifest, of the option, or the released model's. Raises `StartupError`."""
    return choose("voices", option or None, manifest.voices if manifest else None, tokens.VOICES)


def check_capacity(manifest: Manifest | None, capacity: int) -> None:
    """Raise `StartupError` if the manifest allows no batch of this size."""
    if manifest is not None and capacity > manifest.limits.max_batch_size:
        raise StartupError(
            f"engine.capacity is {capacity} and the model's manifest allows a batch of "
            f"{manifest.limits.max_batch_size}: lower engine.capacity to that, or make the manifest "
            "again with a larger --max-batch-size"
        )


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
