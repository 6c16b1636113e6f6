"""Streams of token ids: frames, counts and loops, against the plainest program that does the same.

An input is a stream: a byte 0 to 6 and two more are an audio id of that slot, 7 is end of speech, 8 and
four bytes any id, and 9 cuts the stream into groups as an engine gives them.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from orpheus_ws.errors import Internal
from orpheus_ws.tokens import (
    AUDIO_BASE,
    AUDIO_END,
    CODEBOOK_SIZE,
    CODES_PER_FRAME,
    END_OF_SPEECH,
    FIRST_SPECIAL_ID,
    Frame,
    FrameAssembler,
    LoopDetector,
    audio_id,
    frame_ids,
    prompt_ids,
)

WORDS: tuple[str, ...] = ()
_LIMIT: Final = 5
_PERIOD: Final = 4


def one(data: bytes) -> None:
    """See `Target`."""
    groups = list(_groups(iter(data)))
    ids = list(chain.from_iterable(groups))
    frames = _check_frames(groups, ids)
    _check_loops(frames, data)
    try:
        prompt = prompt_ids("tara", "Hello.", lambda _text: ids)
    except Internal:
        assert any(not 0 <= each < FIRST_SPECIAL_ID for each in ids)
    else:
        assert all(0 <= each < FIRST_SPECIAL_ID for each in prompt[2:-4])


def _groups(data: Iterator[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for kind in data:
        match kind % 10:
            case 7:
                group.append(END_OF_SPEECH)
            case 8:
                group.append(int.from_bytes(bytes(islice(data, 4)), "little", signed=True))
            case 9:
                yield group
                group = []
            case slot:
                code = int.from_bytes(bytes(islice(data, 2)), "little") % CODEBOOK_SIZE
                group.append(audio_id(slot, code))
    yield group


def _check_frames(groups: Sequence[list[int]], ids: Sequence[int]) -> list[Frame]:
    grouped, single = FrameAssembler(), FrameAssembler()
    frames = [frame for group in groups for frame in grouped.push(group)]
    assert [frame for each in ids for frame in single.push([each])] == frames
    assert frames == list(_plainly(ids))
    grouped.finish()
    single.finish()
    for assembler in (grouped, single):
        stop = END_OF_SPEECH in ids
        assert assembler.tokens == (ids.index(END_OF_SPEECH) + 1 if stop else len(ids))
        told = CODES_PER_FRAME * len(frames) + assembler.dropped + assembler.invalid
        assert told + stop == assembler.tokens
    assert (grouped.dropped, grouped.invalid) == (single.dropped, single.invalid)
    for frame in frames:
        assert FrameAssembler().push(frame_ids(frame)) == [frame]
    return frames


def _plainly(ids: Sequence[int]) -> Iterator[Frame]:
    """Seven audio ids in slot order, whatever is between that is none."""
    partial: list[int] = []
    for each in ids:
        if each == END_OF_SPEECH:
            return
        if not AUDIO_BASE <= each < AUDIO_END:
            continue
        slot, code = divmod(each - AUDIO_BASE, CODEBOOK_SIZE)
        if slot != len(partial):
            partial = []
        if slot == len(partial):
            partial.append(code)
        if len(partial) == CODES_PER_FRAME:
            yield tuple(partial)
            partial = []


def _check_loops(frames: Sequence[Frame], data: bytes) -> None:
    """Against looking back through all frames, for every period."""
    detector = LoopDetector(limit_frames=_LIMIT, max_period=_PERIOD)
    loud = [bool(data[index % len(data)] & 1) for index in range(len(frames))]
    for index, frame in enumerate(frames):
        assert detector.push(frame, audible=loud[index]) == _loops(frames, loud, index)


def _loops(frames: Sequence[Frame], loud: Sequence[bool], last: int) -> bool:
    if not loud[last]:
        return False
    for period in range(1, _PERIOD + 1):
        at, run = last, 0
        while at >= period and frames[at] == frames[at - period]:
            run += loud[at]
            at -= 1
        if run >= _LIMIT:
            return True
    return False
