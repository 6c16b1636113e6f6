"""A codec that dies in the middle of its work with a text that nobody is to see.

It is opened by name, as anybody's codec is: `codec.name=tests.telling_codec`. A codec is given no text;
this one stands for a library that knows more than it should.
"""

from collections.abc import Sequence

from orpheus_ws.codec import Decoder, Work
from orpheus_ws.codec.simulated import Options, ToneDecoder
from orpheus_ws.config import CodecConfig
from orpheus_ws.pcm import Samples

MARK = "qmarkq"
LIFETIME_FRAMES = 20
"""More than the probe at start-up needs, and less than a sentence."""


class TellingDecoder(ToneDecoder):
    """Tones for so many frames, and then a failure that says too much."""

    left = LIFETIME_FRAMES
    failures = 0

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """See `Decoder`."""
        self.left -= sum(len(work.frames) for work in batch)
        if self.left < 0:
            self.failures += 1
            # The first fails a stream, the second the thread.
            raise (ValueError if self.failures == 1 else SystemExit)(MARK) from KeyError(MARK)
        return super().step(batch)


def open_decoder(config: CodecConfig) -> Decoder:
    """See `orpheus_ws.codec.open_decoder`."""
    return TellingDecoder(slots=config.slots or 64, options=Options())
