"""Passes of the network over rows of a table of states.

Rule: the host says in plain arrays which slots take part and with what; what comes back is samples.
Nothing else crosses between host and device.
"""

from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from orpheus_ws.codec.network import Rows, StreamingNetwork
from orpheus_ws.pcm import Samples

Integers = NDArray[np.int64]


class Batch(NamedTuple):
    """One pass. B streams, n frames each."""

    codes: Integers
    """(B, n, 7)"""
    frames: Integers
    """(B,) frames that each stream had before."""
    lengths: Integers
    """(B,) frames of each whole stream, or `ENDLESS`."""
    offsets: Integers
    """(B,) where in the table of noise each begins."""
    sources: Integers
    """(B,) rows of the table that the states come from."""
    targets: Integers
    """(B,) rows that the new states go to."""
    edges: bool
    """Whether any stream is near its start or its end."""


class Passes(Protocol):
    """Runs batches one after the other."""

    @property
    def max_frames(self) -> int:
        """Frames of all streams together beyond which a pass saves nothing any more."""
        ...

    @property
    def blank(self) -> int:
        """Number of the row that is always zeros: the state of a stream at its start."""
        ...

    @property
    def waste(self) -> int:
        """Number of the row for states that are of no further use."""
        ...

    def run(self, batch: Batch) -> Samples:
        """(B, n × 2048) samples; the states are advanced."""
        ...


class EagerPasses:
    """`Passes` that call the network as it is; for CPUs, and to hold others to."""

    max_frames = 8
    """From here on a CPU takes twice as long for twice as many (`bench codec`)."""

    def __init__(self, network: StreamingNetwork, slots: int) -> None:
        self.blank, self.waste = slots, slots + 1
        self._network = network
        weight = network.deviates
        self._states = torch.zeros(
            slots + 2, network.width, device=weight.device, dtype=weight.dtype
        )

    def run(self, batch: Batch) -> Samples:
        """See `Passes`."""
        with torch.inference_mode():
            codes, frames, lengths, offsets, sources, targets = (
                torch.from_numpy(array).to(self._states.device) for array in batch[:6]
            )
            rows = Rows(codes, frames, lengths, offsets, self._states.index_select(0, sources))
            audio, states = self._network(rows, edges=batch.edges)
            self._states.index_copy_(0, targets, states)
            samples: Samples = audio.float().cpu().numpy()
            return samples
