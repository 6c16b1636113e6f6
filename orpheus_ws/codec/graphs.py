"""Passes of fixed shapes, each of them a CUDA graph: one copy in, one launch, one copy out.

Rule: whatever the batch is, what runs is a bucket of so many streams and frames, prepared at start-up.
Rows of a bucket that no stream needs read the blank state and write to the waste. Only the capture
needs a GPU: on a CPU the same buckets call the network instead, which is how they are tested.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
import torch

from orpheus_ws.codec.network import ENDLESS, Rows, StreamingNetwork
from orpheus_ws.codec.passes import Batch, Integers
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import CODES_PER_FRAME, SAMPLES_PER_FRAME

LARGEST: Final = 256
"""Frames of all streams in the largest bucket. It bounds what the graphs hold on the device; a
larger batch is run in parts."""

WARM_UPS: Final = 3
"""Runs before a capture: libraries choose their kernels and take their memory in the first ones."""

_FIELDS: Final = 5
"""Integers of a row besides its codes: frames, length, offset, source, target."""

_log = logging.getLogger("orpheus_ws.codec")


class GraphPasses:
    """`Passes` in buckets of `frame_sizes` frames and 1, 2, 4, … streams, up to all slots.

    On a GPU making it captures every bucket and logs each; what that raises is torch's.
    """

    max_frames = LARGEST

    def __init__(self, network: StreamingNetwork, slots: int, frame_sizes: Sequence[int]) -> None:
        self.blank, self.waste = slots, slots + 1
        self._network = network
        device = network.deviates.device
        self._states = torch.zeros(
            slots + 2, network.width, device=device, dtype=network.deviates.dtype
        )
        self._gpu = _Gpu(device) if device.type == "cuda" else None
        idle = (0, ENDLESS, 0, self.blank, self.waste)
        # The largest first: the others find its memory in the pool that all share.
        self._buckets = {
            frames: [
                _Bucket(streams, frames, device, idle)
                for streams in _sizes(max(1, min(slots, LARGEST // frames)))
            ]
            for frames in sorted(frame_sizes, reverse=True)
        }
        self._prepare()

    @property
    def buckets(self) -> list[tuple[int, int]]:
        """(streams, frames) of every bucket."""
        return [(b.streams, b.frames) for row in self._buckets.values() for b in row]

    @property
    def state_bytes(self) -> int:
        """What the device holds for each stream."""
        return self._states[0].nbytes

    def run(self, batch: Batch) -> Samples:
        """See `Passes`. `batch.edges` makes no difference: a graph always masks."""
        streams, frames, _ = batch.codes.shape
        buckets = self._buckets[frames]
        numbers = (batch.frames, batch.lengths, batch.offsets, batch.sources, batch.targets)
        packed = np.concatenate(
            (batch.codes.reshape(streams, -1), np.stack(numbers, axis=1)), axis=1
        )
        samples = np.empty((streams, SAMPLES_PER_FRAME * frames), np.float32)
        for start in range(0, streams, buckets[0].streams):
            part = slice(start, start + buckets[0].streams)
            fitting = next(b for b in reversed(buckets) if b.streams >= len(packed[part]))
            self._run(fitting, packed[part], samples[part])
        return samples

    def _run(self, bucket: "_Bucket", rows: Integers, samples: Samples) -> None:
        """Run the bucket over packed rows (B, 7n + 5) into `samples` (B, n × 2048)."""
        bucket.fill(rows)
        received = bucket.received[: len(rows)]
        with torch.inference_mode(), torch.cuda.stream(self._gpu.stream if self._gpu else None):
            bucket.inputs.copy_(bucket.sent, non_blocking=True)
            bucket.launch()
            received.copy_(bucket.audio[: len(rows)], non_blocking=True)
        if self._gpu is not None:
            self._gpu.stream.synchronize()
        samples[:] = received.numpy()

    def _compute(self, bucket: "_Bucket") -> None:
        """What a graph consists of: from the bucket's inputs and the table to its audio."""
        codes = bucket.inputs[:, :-_FIELDS].view(bucket.streams, bucket.frames, CODES_PER_FRAME)
        frames, lengths, offsets, sources, targets = bucket.inputs[:, -_FIELDS:].unbind(1)
        rows = Rows(codes, frames, lengths, offsets, self._states.index_select(0, sources))
        audio, states = self._network(rows, edges=True)
        self._states.index_copy_(0, targets, states)
        bucket.audio.copy_(audio)

    def _prepare(self) -> None:
        """Give every bucket its launch."""
        buckets = [bucket for row in self._buckets.values() for bucket in row]
        for number, bucket in enumerate(buckets, 1):
            bucket.launch = partial(self._compute, bucket)
            if self._gpu is None:
                continue
            bucket.launch = self._gpu.captured(bucket.launch)
            figures = {"streams": bucket.streams, "frames": bucket.frames}
            _log.info(
                "codec graph captured", extra=figures | {"graph": number, "graphs": len(buckets)}
            )


class _Bucket:
    """The fixed tensors of one shape, on both sides, and what runs a pass over them."""

    launch: Callable[[], None]

    def __init__(
        self, streams: int, frames: int, device: torch.device, idle: tuple[int, ...]
    ) -> None:
        self.streams, self.frames = streams, frames
        self._idle = np.array((0,) * CODES_PER_FRAME * frames + idle, np.int64)
        pinned = device.type == "cuda"  # what is pinned can be copied while the host goes on
        self.sent = torch.from_numpy(np.tile(self._idle, (streams, 1)))
        if pinned:
            self.sent = self.sent.pin_memory()
        self._packed: Integers = self.sent.numpy()
        self.inputs = self.sent.to(device, copy=True)
        samples = SAMPLES_PER_FRAME * frames
        self.audio = torch.zeros(streams, samples, device=device)
        self.received = torch.zeros(streams, samples, pin_memory=pinned)

    def fill(self, rows: Integers) -> None:
        """Put rows where they are sent from, and idle ones behind them."""
        self._packed[: len(rows)] = rows
        self._packed[len(rows) :] = self._idle


class _Gpu:
    """A stream of our own, and the memory that all graphs share: no two run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's
        self._pool = torch.cuda.graph_pool_handle()

    def captured(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture what `run` does; what is returned does it again."""
        graph = torch.cuda.CUDAGraph()
        # Convolutions may use TF32 unless they are told not to, and that keeps ten bits of float32's
        # 23. A graph keeps the kernels that are chosen here.
        precise = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False)
        with torch.inference_mode(), precise:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
            with torch.cuda.stream(self.stream):
                for _ in range(WARM_UPS):
                    run()
            # Another thread may use the device meanwhile: an engine, for example.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"
            ):
                run()
        return graph.replay


def _sizes(largest: int) -> list[int]:
    """How many streams buckets have: `largest`, and the powers of two below it, downwards."""
    powers = [1 << power for power in range(largest.bit_length())]
    return [largest, *(power for power in reversed(powers) if power < largest)]
