"""A codec whose thread ends in the middle of its work, for a server that runs in another process.

It is opened by name, as anybody's codec is: `codec.name=tests.mortal_codec`.
"""

from collections.abc import Sequence

from orpheus_ws.codec import Decoder, Work
from orpheus_ws.codec.simulated import Options, ToneDecoder
from orpheus_ws.config import CodecConfig
from orpheus_ws.pcm import Samples

LIFETIME_FRAMES = 20
"""More than the probe at start-up needs, and less than a sentence."""


class MortalDecoder(ToneDecoder):
    """Tones for so many frames, and then no thread any more."""

    left = LIFETIME_FRAMES

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """See `Decoder`."""
        self.left -= sum(len(work.frames) for work in batch)
        if self.left < 0:
            raise SystemExit
        return super().step(batch)


def open_decoder(config: CodecConfig) -> Decoder:
    """See `orpheus_ws.codec.open_decoder`."""
    return MortalDecoder(slots=config.slots or 64, options=Options())
