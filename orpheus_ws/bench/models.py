"""The models that the codec's benchmarks decode with.

Rule: what decoding costs depends on the shape of a model, not on its weights. So the released model's
shape gets random weights, the same in every run, and a figure of sound is only taken from weights that
were trained.
"""

from typing import Any, Final

import numpy as np
import snac
import torch
from torch import nn

from orpheus_ws.codec.weights import prepare
from orpheus_ws.tokens import CODEBOOK_SIZE, CODES_PER_FRAME, SAMPLE_RATE, Frame

RELEASED_DIM: Final = 1024
"""Channels at the beginning of the released model's decoder."""

_RELEASED: Final[dict[str, Any]] = {
    "sampling_rate": SAMPLE_RATE,
    "encoder_dim": 48,
    "encoder_rates": [2, 4, 8, 8],
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None,
    "codebook_size": CODEBOOK_SIZE,
    "codebook_dim": 8,
    "vq_strides": [4, 2, 1],
    "noise": True,
    "depthwise": True,
}
"""`config.json` of hubertsiuzdak/snac_24khz, but for the width of the decoder."""


def random_model(decoder_dim: int = RELEASED_DIM, *, noise: bool) -> nn.Module:
    """A prepared model with the released one's layers and random weights, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = snac.SNAC(**_RELEASED, decoder_dim=decoder_dim)
    return prepare(model, noise=noise)


def random_frames(count: int, seed: int) -> list[Frame]:
    """So many frames of any codes."""
    codes = np.random.default_rng(seed).integers(CODEBOOK_SIZE, size=(count, CODES_PER_FRAME))
    return [tuple(map(int, frame)) for frame in codes]
