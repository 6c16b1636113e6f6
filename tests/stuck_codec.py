"""A codec whose step does not end, until it is let go.

It is opened by name, as anybody's codec is: `codec.name=tests.stuck_codec`.
"""

import threading
from collections.abc import Sequence

from orpheus_ws.codec import Decoder, Work
from orpheus_ws.codec.simulated import Options, ToneDecoder
from orpheus_ws.config import CodecConfig
from orpheus_ws.pcm import Samples

FREE_FRAMES = 20
"""More than the probe at start-up needs, and less than a sentence."""

RELEASE = threading.Event()
"""Whoever opens it sets this before the server is closed."""


class StuckDecoder(ToneDecoder):
    """Tones for so many frames, and then none for a long time."""

    left = FREE_FRAMES

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """See `Decoder`."""
        self.left -= sum(len(work.frames) for work in batch)
        if self.left < 0:
            RELEASE.wait()
        return super().step(batch)


def open_decoder(config: CodecConfig) -> Decoder:
    """See `orpheus_ws.codec.open_decoder`."""
    return StuckDecoder(slots=config.slots or 64, options=Options())
