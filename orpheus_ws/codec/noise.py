"""SNAC's noise as a function of a stream's seed and the position, so that chunking cannot change it.

Rule: no random numbers are drawn while decoding. One fixed table of normal deviates is read from an
offset that the seed and the layer decide, and wraps around: at 24 kHz after 10.9 s, where nobody
hears that white noise repeats.
"""

from typing import Final

import numpy as np
import torch

TABLE_SIZE: Final = 1 << 18
LAYERS: Final = 4
"""Noise blocks of a decoder, one after each transposed convolution."""

# Odd constants whose products spread seeds and layers over the table (Fibonacci hashing).
_SEED_FACTOR: Final = 0x9E3779B97F4A7C15
_LAYER_STEP: Final = TABLE_SIZE // LAYERS + 12_345


def table(device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
    """(TABLE_SIZE,) normal deviates, the same on every machine."""
    # Of all generators at hand only this one is promised never to change, numpy's NEP 19.
    deviates = np.random.RandomState(0).standard_normal(TABLE_SIZE)
    return torch.from_numpy(deviates).to(device, dtype)


def offset(seed: int) -> int:
    """Where in the table a stream with this seed begins."""
    return (seed * _SEED_FACTOR % 2**64) * TABLE_SIZE >> 64


def values(
    deviates: torch.Tensor, offsets: torch.Tensor, layer: int, positions: torch.Tensor
) -> torch.Tensor:
    """Noise of `layer` (0…3) at `positions` (B, T) of streams that begin at `offsets` (B,)."""
    index = positions + (offsets + layer * _LAYER_STEP)[:, None]
    return deviates[index & (TABLE_SIZE - 1)]
