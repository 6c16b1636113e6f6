"""A decoder for the tests of the codec loop, and a loop over it.

Rule: everything that the loop promises can be seen in it, and it can be held up and made to fail.
"""

import threading
from collections.abc import Sequence

import numpy as np

from orpheus_ws.audio import MOST_FRAMES, Portion
from orpheus_ws.codec import CodecStream, Work
from orpheus_ws.codec.loop import CodecLoop
from orpheus_ws.codec.policy import IN_FLIGHT, Policy
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import SAMPLES_PER_FRAME, Frame

ALL = Portion(1, MOST_FRAMES)


class LookingDecoder:
    """A decoder that looks one frame ahead, keeps state in its slots and can be told to fail.

    A frame's samples are all equal to its first code, so that order and loss are plain to see.
    """

    max_frames = 32

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.batches: list[int] = []
        self.order: list[list[int]] = []
        """The first code that each stream brought to each step."""
        self.fail_on: int | None = None
        self.failure: BaseException = RuntimeError("the device fell off the bus")
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self._held: dict[int, list[Frame]] = {}

    def first_frames(self, *, early: bool) -> int:
        return 1 if early else 2

    def reset(self, slot: int, *, seed: int, early: bool) -> None:
        self._held[slot] = []

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        self.entered.set()
        assert self.go_on.wait(30)
        self.batches.append(len(batch))
        self.order.append([work.frames[0][0] for work in batch if work.frames])
        assert len({work.slot for work in batch}) == len(batch)
        return [self._advance(work) for work in batch]

    def _advance(self, work: Work) -> Samples:
        held = self._held[work.slot] + list(work.frames)
        if any(frame[0] == self.fail_on for frame in work.frames):
            raise self.failure
        keep = 0 if work.last else 1
        ready, self._held[work.slot] = held[: len(held) - keep], held[len(held) - keep :]
        codes = np.array([frame[0] for frame in ready], np.float32)
        return np.repeat(codes, SAMPLES_PER_FRAME)


def frames(*codes: int) -> list[Frame]:
    """Frames that are told apart by their first code."""
    return [(code, 0, 0, 0, 0, 0, 0) for code in codes]


def heard(samples: list[Samples]) -> list[int]:
    """The first codes of the frames that the samples came from."""
    whole = np.concatenate(samples) if samples else np.zeros(0, np.float32)
    assert len(whole) % SAMPLES_PER_FRAME == 0
    return [int(code) for code in whole[::SAMPLES_PER_FRAME]]


def opened(loop: CodecLoop) -> CodecStream:
    """A stream for which it does not matter how it begins."""
    return loop.open(seed=0, early=False)


async def start(slots: int = 4, policy: Policy = IN_FLIGHT) -> tuple[CodecLoop, LookingDecoder]:
    """A loop over a `LookingDecoder`."""
    decoder = LookingDecoder(slots)
    return await CodecLoop.start(lambda: decoder, policy=policy), decoder


def join_codec_threads() -> None:
    """Fail if a codec thread does not end."""
    for thread in threading.enumerate():
        if thread.name == "codec":
            thread.join(30)
            assert not thread.is_alive()
