"""Orpheus's vocabulary: prompt framing, frames, and loops of them. Pure.

Rule: this module alone knows the model's constants. The slot of a token comes from its id, never
from a counter, so a stray id costs at most the frame it falls into and never shifts later ones.
"""

from collections import deque
from collections.abc import Callable, Sequence
from operator import sub

from orpheus_ws.errors import Internal

# Ids of the released checkpoints (canopylabs/orpheus-3b, built on Llama-3.2-3B's tokenizer).
BEGIN_OF_TEXT = 128_000
END_OF_TURN = 128_009
START_OF_SPEECH = 128_257
END_OF_SPEECH = 128_258
START_OF_HUMAN = 128_259
END_OF_HUMAN = 128_260
START_OF_AI = 128_261
# Text ids are below this; everything from here on is control or audio.
FIRST_SPECIAL_ID = 128_000
AUDIO_BASE = 128_266
CODEBOOK_SIZE = 4096
CODES_PER_FRAME = 7
AUDIO_END = AUDIO_BASE + CODES_PER_FRAME * CODEBOOK_SIZE
VOCABULARY = 156_940
"""Ids that the model has; the two above the audio ids mean nothing."""
NAMES = {
    BEGIN_OF_TEXT: "<|begin_of_text|>",
    END_OF_TURN: "<|eot_id|>",
    START_OF_SPEECH: "<custom_token_1>",
    END_OF_SPEECH: "<custom_token_2>",
    START_OF_HUMAN: "<custom_token_3>",
    END_OF_HUMAN: "<custom_token_4>",
    START_OF_AI: "<custom_token_5>",
    AUDIO_BASE: "<custom_token_10>",
    AUDIO_END - 1: "<custom_token_28681>",
}
"""What the published tokenizer calls the control ids of a prompt, and the first and last audio id."""
_SLOT_BASES = tuple(range(AUDIO_BASE, AUDIO_END, CODEBOOK_SIZE))

SAMPLE_RATE = 24_000
SAMPLES_PER_FRAME = 2048
FRAME_SECONDS = SAMPLES_PER_FRAME / SAMPLE_RATE
"""85.33 ms, so real time is 11.72 frames or 82.03 tokens a second."""
LEVEL_SLOTS = ((0,), (1, 4), (2, 3, 5, 6))
"""Which slots of a frame make up each of SNAC's three levels, coarse to fine."""

# Sampling as published with the model; below this penalty it does not speak stably.
TEMPERATURE = 0.6
TOP_P = 0.8
REPETITION_PENALTY = 1.1
MAX_TOKENS = 2048
"""25 s of speech; it degrades beyond about 30 s of one generation."""

VOICES = ("tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe")
TAGS = ("laugh", "chuckle", "sigh", "cough", "sniffle", "groan", "yawn", "gasp")

Frame = tuple[int, ...]
"""Seven codes 0…4095 in slot order."""


def prompt_ids(voice: str, text: str, encode: Callable[[str], Sequence[int]]) -> list[int]:
    """Frame `text` for `voice` as the model was trained to see it.

    `encode` turns plain text into ids and adds nothing of its own; it must be called with special
    tokens disabled, and a text id that is a control or audio id raises `Internal` rather than
    reach the model.
    """
    text_ids = list(encode(f"{voice}: {text}"))
    if any(not 0 <= text_id < FIRST_SPECIAL_ID for text_id in text_ids):
        raise Internal("the tokenizer turned text into control ids; disable special tokens")
    return [
        START_OF_HUMAN,
        BEGIN_OF_TEXT,
        *text_ids,
        END_OF_TURN,
        END_OF_HUMAN,
        START_OF_AI,
        START_OF_SPEECH,
    ]


def audio_id(slot: int, code: int) -> int:
    """Token id of `code` (0…4095) in `slot` (0…6)."""
    return AUDIO_BASE + slot * CODEBOOK_SIZE + code


def frame_ids(frame: Sequence[int]) -> list[int]:
    """Token ids of one frame of seven codes."""
    return [audio_id(slot, code) for slot, code in enumerate(frame)]


class FrameAssembler:
    """Token ids → whole frames of one segment.

    An id that is out of range is counted and skipped. An audio id out of turn is counted and what
    was assembled of its frame is dropped; the stream resynchronises at the next slot 0. `dropped`
    counts the legal ids lost with incomplete frames. `ended` turns true at end of speech, after
    which ids are ignored.
    """

    def __init__(self) -> None:
        self.ended = False
        self.tokens = 0
        self.invalid = 0
        self.dropped = 0
        self._partial: list[int] = []
        self._synchronised = True

    def push(self, ids: Sequence[int]) -> list[Frame]:
        """Take ids in the order the engine produced them; return the frames they complete."""
        if len(ids) == CODES_PER_FRAME and not self._partial and not self.ended:
            # What an engine that reports once a frame says nearly always, a dozen times a
            # second for each stream.
            codes = tuple(map(sub, ids, _SLOT_BASES))
            a, b, c, d, e, f, g = codes
            # One comparison for all: the size is a power of two.
            if 0 <= a | b | c | d | e | f | g < CODEBOOK_SIZE:
                self.tokens += CODES_PER_FRAME
                self._synchronised = True
                return [codes]
        frames: list[Frame] = []
        for token in ids:
            if self.ended:
                break
            self.tokens += 1
            if token == END_OF_SPEECH:
                self.finish()
            elif AUDIO_BASE <= token < AUDIO_END:
                slot, code = divmod(token - AUDIO_BASE, CODEBOOK_SIZE)
                self._accept(slot, code, frames)
            else:
                self.invalid += 1
        return frames

    def finish(self) -> None:
        """End the segment; ids of an incomplete last frame count as dropped."""
        self.ended = True
        self.dropped += len(self._partial)
        self._partial.clear()

    def _accept(self, slot: int, code: int, frames: list[Frame]) -> None:
        partial = self._partial
        if slot != len(partial):
            self.dropped += len(partial)
            partial.clear()
            if slot != 0:
                # Only the first id out of turn is wrong; those after it are of the frame it broke.
                self.invalid += self._synchronised
                self.dropped += not self._synchronised
                self._synchronised = False
                return
        self._synchronised = True
        partial.append(code)
        if len(partial) == CODES_PER_FRAME:
            frames.append(tuple(partial))
            partial.clear()


class LoopDetector:
    """Notices a generation that repeats itself.

    `push` takes frames in order with whether each is audible and says whether the last
    `limit_frames` audible frames merely repeat what came 1…`max_period` frames before them.
    Silent frames do not count towards it: a long pause is not a loop.
    """

    # 23 frames are 1.96 s: "within 2 s of audible repetition".
    # 36 frames are 3.1 s, longer than the phrases that loops were reported to consist of.
    def __init__(self, *, limit_frames: int = 23, max_period: int = 36) -> None:
        self._limit = limit_frames
        self._history: deque[Frame] = deque()
        self._max_period = max_period
        self._seen: dict[Frame, int] = {}  # how often each frame is in the history
        self._runs: dict[int, int] = {}  # by period: audible frames that repeated so far

    def is_new(self, frame: Frame) -> bool:
        """Whether the frame repeats nothing, so that it does not matter if it is audible."""
        return frame not in self._seen

    def push(self, frame: Frame, *, audible: bool) -> bool:
        """Return true when the stream has looped for `limit_frames` audible frames."""
        looping = False
        seen, runs = self._seen, self._runs
        before = seen.get(frame, 0)
        if before or runs:
            self._runs = {}
        if before:
            for period, earlier in enumerate(reversed(self._history), start=1):
                if earlier == frame:
                    run = runs.get(period, 0) + audible
                    self._runs[period] = run
                    looping = looping or (audible and run >= self._limit)
        self._history.append(frame)
        seen[frame] = before + 1
        if len(self._history) > self._max_period:
            gone = self._history.popleft()
            left = seen.pop(gone) - 1
            if left:
                seen[gone] = left
        return looping
