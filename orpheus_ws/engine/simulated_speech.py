"""What the simulated engine says: plausible ids, and those that go wrong. Pure.

Rule: all of a request is settled by its prompt and the options; the same prompt says the same.
"""

import hashlib
import math
import random
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from orpheus_ws import tokens
from orpheus_ws.engine import Prompt

MINIMUM_FRAMES: Final = 4
"""Frames that any text gets, however short."""
BAD_ID_PERIOD: Final = 4
"""With `bad_ids`, one wrong id comes with the last of every so many frames."""
GOOD_FRAMES: Final = 2
"""Frames before `loop`, `raises`, `stalls` and `dies` show."""
LOOP_FRAMES: Final = 3

Fault = Literal["none", "never_stops", "loop", "bad_ids", "empty", "raises", "stalls", "dies"]

_SILENT_FRAME_IDS: Final = np.array(tokens.frame_ids([0] * tokens.CODES_PER_FRAME))


@lru_cache(maxsize=256)
def script(
    prompt: Prompt, fault: Fault, frames_per_char: float, silent_frames: int = 0
) -> list[int]:
    """All that a request will say if nobody stops it: at most `max_tokens` ids. Not to be changed.

    It is kept, so that who measures with the same prompts does not measure the making of ids.
    """
    if fault == "empty":
        return [tokens.END_OF_SPEECH][: prompt.max_tokens]
    endless = fault in ("never_stops", "loop")
    frames = math.ceil(prompt.max_tokens / tokens.CODES_PER_FRAME)
    if not endless:
        frames = min(frames, spoken_frames(prompt.text, frames_per_char))
    entropy = _entropy(prompt)
    ids: list[int] = _SILENT_FRAME_IDS.tolist() * silent_frames
    ids += _frames(entropy, frames, loops=fault == "loop")
    if fault == "bad_ids":
        _insert_bad_ids(ids, random.Random(entropy))
    if not endless:
        ids.append(tokens.END_OF_SPEECH)
    return ids[: prompt.max_tokens]


def spoken_frames(text: str, frames_per_char: float) -> int:
    """Frames of speech that a text gets, without the silence before them."""
    return max(MINIMUM_FRAMES, math.ceil(len(text) * frames_per_char))


def _entropy(prompt: Prompt) -> int:
    """Seed and text as one number. Text from JSON may hold half a surrogate pair."""
    key = f"{prompt.seed} {prompt.text}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "big")


def _frames(entropy: int, frames: int, *, loops: bool) -> list[int]:
    """Flat ids of `frames` frames; the first ones do not depend on how many there are."""
    # An all-zero frame would be silence to the simulated codec; it is one in 2**84.
    size = (frames, tokens.CODES_PER_FRAME)
    codes = np.random.default_rng(entropy).integers(tokens.CODEBOOK_SIZE, size=size)
    if loops:
        order = np.arange(frames)
        order[GOOD_FRAMES:] = GOOD_FRAMES + (order[GOOD_FRAMES:] - GOOD_FRAMES) % LOOP_FRAMES
        codes = codes[order]
    ids: list[int] = (codes + _SILENT_FRAME_IDS).ravel().tolist()
    return ids


def _insert_bad_ids(ids: list[int], chance: random.Random) -> None:
    size = tokens.CODES_PER_FRAME
    for nth in range(len(ids) // size // BAD_ID_PERIOD):
        frame = (nth + 1) * BAD_ID_PERIOD - 1
        slot = chance.randrange(size)
        # `nth` bad ids have gone in before this one.
        ids.insert(frame * size + slot + nth, _bad_id(chance, slot))


def _bad_id(chance: random.Random, slot: int) -> int:
    """An id that may not come where `slot` is due. Never slot 0, which would start a frame."""
    code = chance.randrange(tokens.CODEBOOK_SIZE)
    return chance.choice(
        (
            chance.randrange(tokens.FIRST_SPECIAL_ID),
            tokens.audio_id(1 + slot % (tokens.CODES_PER_FRAME - 1), code),
            tokens.AUDIO_END + code,
        )
    )
