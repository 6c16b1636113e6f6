"""The codec contract: frames of seven codes in, samples out, in terms of streams.

Rule: two layers. A `Decoder` is blocking and owned by one thread; it holds the state of `slots`
streams and advances some of them in one step. A `Codec` is what the event loop sees: streams that
are fed and taken from. `loop.py` makes the second out of the first. A decoder is opened by name
like an engine: `codec.name = "streaming"` is `orpheus_ws/codec/streaming.py:open_decoder`.

N frames give exactly N × 2048 samples, head and tail included, whatever the chunking.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from orpheus_ws.audio import Portion
from orpheus_ws.config import CodecConfig
from orpheus_ws.named_parts import load_part
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import Frame


class Work(msgspec.Struct, frozen=True):
    """What one step does for one stream."""

    slot: int
    frames: Sequence[Frame]
    last: bool
    """No frame follows: flush everything the stream still owes."""


class Decoder(Protocol):
    """A blocking decoder of many streams.

    `slots`, `max_frames` and `first_frames` never change and may be asked on any thread; only the
    thread that opened it may call the rest.
    """

    @property
    def slots(self) -> int:
        """How many streams it can hold."""
        ...

    @property
    def max_frames(self) -> int:
        """Frames of all streams together beyond which a step takes longer without saving any work."""
        ...

    def first_frames(self, *, early: bool) -> int:
        """Frames that a stream needs before there is anything to hear of it."""
        ...

    def reset(self, slot: int, *, seed: int, early: bool) -> None:
        """Make the slot a stream of which nothing has been heard.

        `seed` decides whatever a decoder adds at random. `early`: it should begin to sound as soon
        as the decoder can make it, even if its first samples are not exact.
        """
        ...

    def step(self, batch: Sequence[Work]) -> list[Samples]:
        """Feed frames to each slot of the batch and return the samples that became final.

        A slot is in a batch once at most. When it raises, the streams of this batch are lost until
        their slots are reset, and no other stream is touched.
        """
        ...


class CodecStream(Protocol):
    """One segment on its way through the codec. Used on the event loop."""

    def push(self, frames: Sequence[Frame]) -> None:
        """Queue frames; never blocks. They wait undecoded until `take` asks for samples."""
        ...

    def finish(self) -> None:
        """No frame follows."""
        ...

    async def take(self, portion: Portion) -> Samples:
        """Wait for and decode so many frames, return the next samples; empty after the last ones.

        The last portion of a segment may be smaller than asked for, and so may one that took too
        long. A decoder that looks ahead gives fewer samples at first and the rest at the end. Not
        asking is how a slow listener holds the codec back. Cancelling is safe: the stream can only
        be closed afterwards. Raises `Internal` when the decode failed.
        """
        ...

    def close(self) -> None:
        """Give the slot back; a pending `take` ends. Idempotent."""
        ...


class CodecStatistics(NamedTuple):
    """Where the codec stands."""

    streams: int
    busy_seconds: float
    """How long the step under way has taken so far; 0 when there is none."""


class Codec(Protocol):
    """All streams of the process."""

    @property
    def alive(self) -> bool:
        """False once nothing can be decoded any more."""
        ...

    async def wait_dead(self) -> None:
        """Return once `alive` is false, at once if it is already. Safe to cancel."""
        ...

    def open(self, *, seed: int, early: bool) -> CodecStream:
        """Start a stream, see `Decoder.reset`. Raises `Overloaded` when every slot is taken."""
        ...

    def statistics(self) -> CodecStatistics:
        """Current figures."""
        ...

    async def close(self) -> None:
        """Stop the thread; streams still open raise `Internal`. Idempotent."""
        ...


def weights_advice(config: CodecConfig, engine: str) -> str | None:
    """What is amiss with the weights for the frames of the engine of that name, if anything is known."""
    decodes = config.name in ("streaming", "window")
    if decodes and config.weights == "pocket" and engine in ("torch", "trtllm"):
        return (
            "codec.weights is the embedded voice's, of which Orpheus's frames make noise: set it to a "
            "directory with SNAC's 24 kHz model, snac_24khz"
        )
    return None


def find_decoder(config: CodecConfig) -> Callable[[CodecConfig], Decoder]:
    """Import the decoder that `config.name` names, without opening it.

    Raises `StartupError` with what to do.
    """
    opener: Callable[[CodecConfig], Decoder] = load_part(
        "orpheus_ws.codec", config.name, "open_decoder", extra="codec"
    )
    return opener


def open_decoder(config: CodecConfig) -> Decoder:
    """Open the decoder that `config.name` names, on the calling thread.

    Raises `StartupError` with what to do.
    """
    return find_decoder(config)(config)
