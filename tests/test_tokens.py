"""Vocabulary: the prompt's framing, frames from any stream of ids, loops of frames."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    audio_id,
    frame_ids,
    prompt_ids,
)

CODES = st.integers(0, CODEBOOK_SIZE - 1)
FRAMES = st.tuples(*[CODES] * CODES_PER_FRAME)
AUDIO_IDS = st.integers(AUDIO_BASE, AUDIO_END - 1)
OTHER_IDS = st.one_of(
    st.sampled_from([-1, 0, 1234, 128_000, 128_009, 128_257, 128_263, AUDIO_BASE - 1, AUDIO_END]),
    st.integers(-(2**40), AUDIO_BASE - 1),
    st.integers(AUDIO_END, 2**40),
).filter(lambda token: token != END_OF_SPEECH)


def frame(seed: int) -> Frame:
    """A frame of its own for every seed."""
    return (seed % CODEBOOK_SIZE, seed // CODEBOOK_SIZE, 1, 2, 3, 4, 5)


def ids_of(frames: Sequence[Frame]) -> list[int]:
    """The ids of these frames, one after the other."""
    return [token for item in frames for token in frame_ids(item)]


def grouped(ids: Sequence[int], data: st.DataObject) -> list[Sequence[int]]:
    """`ids` cut into groups anywhere, empty ones included."""
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=8).map(sorted))
    edges = [0, *cuts, len(ids)]
    return [ids[a:b] for a, b in pairwise(edges)]


def accounted(assembler: FrameAssembler, frames: Sequence[Frame]) -> int:
    """How many ids the counts of a finished segment explain, its end of speech left out."""
    return CODES_PER_FRAME * len(frames) + assembler.dropped + assembler.invalid


# Field cases of area tokens -----------------------------------------------------------------------


def test_code_zero() -> None:
    """code-zero: a frame with code 0 in every slot is kept."""
    assembler = FrameAssembler()
    zeros = [AUDIO_BASE + slot * CODEBOOK_SIZE for slot in range(7)]
    assert assembler.push(zeros) == [(0, 0, 0, 0, 0, 0, 0)]
    assert (assembler.invalid, assembler.dropped) == (0, 0)


@pytest.mark.parametrize("position", range(6))
def test_code_4096(position: int) -> None:
    """code-4096: such an id is code 0 of the next slot, so it is out of turn, and is counted."""
    codes = list(frame_ids(frame(1)))
    codes[position] = AUDIO_BASE + position * CODEBOOK_SIZE + 4096
    assert codes[position] == audio_id(position + 1, 0)
    assembler = FrameAssembler()
    assert assembler.push(codes + frame_ids(frame(2))) == [frame(2)]
    assert assembler.invalid == 1


@pytest.mark.parametrize("code", [-1, CODEBOOK_SIZE])
@pytest.mark.parametrize("position", range(7))
def test_code_4096_in_a_group_of_seven(position: int, code: int) -> None:
    """In a group of just seven ids, too, a code beyond 4095 or below 0 belongs to no frame."""
    codes = list(frame_ids(frame(1)))
    codes[position] = AUDIO_BASE + position * CODEBOOK_SIZE + code
    assembler = FrameAssembler()
    assert assembler.push(codes) == []
    assert assembler.push(frame_ids(frame(2))) == [frame(2)]
    assembler.finish()
    assert accounted(assembler, [frame(2)]) == assembler.tokens == 14
    assert assembler.invalid >= 1


@pytest.mark.parametrize("code", [0, CODEBOOK_SIZE - 1])
def test_the_first_and_the_last_code(code: int) -> None:
    """Codes 0 and 4095 are like any other, in a group of seven ids and one by one."""
    ids = frame_ids([code] * CODES_PER_FRAME)
    alone = FrameAssembler()
    assert FrameAssembler().push(ids) == [(code,) * CODES_PER_FRAME]
    assert [item for token in ids for item in alone.push([token])] == [(code,) * CODES_PER_FRAME]


def test_code_4096_of_the_last_slot() -> None:
    """code-4096: after slot 6 there is no slot; the id is outside the range, skipped and counted."""
    codes = list(frame_ids(frame(1)))
    assembler = FrameAssembler()
    assert assembler.push([*codes[:6], AUDIO_END, codes[6]]) == [frame(1)]
    assert (assembler.invalid, assembler.dropped) == (1, 0)


def test_out_of_turn_token() -> None:
    """out-of-turn-token: one id of slot 3 between slots 0 and 1 costs one frame and shifts none."""
    ids = ids_of([frame(n) for n in range(5)])
    ids.insert(7 * 2 + 1, audio_id(3, 99))
    assembler = FrameAssembler()
    assert assembler.push(ids) == [frame(0), frame(1), frame(3), frame(4)]
    assert assembler.invalid == 1
    assert assembler.dropped == 7


def test_text_token_in_speech() -> None:
    """text-token-in-speech: id 1234 inside a frame is counted and skipped; the frame survives."""
    ids = frame_ids(frame(7))
    ids.insert(3, 1234)
    assembler = FrameAssembler()
    assert assembler.push(ids) == [frame(7)]
    assert (assembler.invalid, assembler.dropped) == (1, 0)


def test_partial_last_frame() -> None:
    """partial-last-frame: five ids before end of speech are counted as dropped, not padded."""
    frames = [frame(n) for n in range(4)]
    assembler = FrameAssembler()
    ids = ids_of([*frames, frame(9)])[: 4 * 7 + 5]
    assert assembler.push([*ids, END_OF_SPEECH]) == frames
    assert (assembler.invalid, assembler.dropped) == (0, 5)
    assert assembler.ended


# The prompt ---------------------------------------------------------------------------------------


def encode(text: str) -> list[int]:
    """A tokenizer with special tokens disabled: one id per byte."""
    return list(text.encode())


def test_prompt_framing() -> None:
    """The prompt is the published framing, as ids, with one BOS and `voice: text` inside."""
    assert prompt_ids("tara", "Hi", encode) == [
        *(128_259, 128_000),
        *b"tara: Hi",
        *(128_009, 128_260, 128_261, 128_257),
    ]


SPECIALS = {
    "<|begin_of_text|>": 128_000,
    "<|eot_id|>": 128_009,
    "<custom_token_1>": 128_257,
    "<custom_token_9>": 128_265,
    "<custom_token_10>": AUDIO_BASE,
    "<custom_token_28681>": AUDIO_END - 1,
    "<custom_token_28683>": 156_939,
}


def hostile(text: str) -> list[int]:
    """A tokenizer that turns special strings into control and audio ids."""
    for special, token in SPECIALS.items():
        before, found, after = text.partition(special)
        if found:
            return [*hostile(before), token, *hostile(after)]
    return encode(text)


@pytest.mark.parametrize("special", SPECIALS)
def test_token_injection(special: str) -> None:
    """token-injection: text that became a control or audio id never reaches the model."""
    with pytest.raises(Internal) as caught:
        prompt_ids("tara", f"Hello {special} world", hostile)
    assert special not in str(caught.value)
    with pytest.raises(Internal):
        prompt_ids(special, "Hello", hostile)


@given(text=st.text(max_size=40), special=st.sampled_from([*SPECIALS, ""]))
@settings(deadline=None)
def test_between_the_framing_ids_is_text_only(text: str, special: str) -> None:
    """token-injection: a prompt is refused, or no id of its text is 128000 or more."""
    try:
        ids = prompt_ids("tara", text + special + text, hostile)
    except Internal:
        assert special
        return
    assert ids[:2] == [128_259, 128_000]
    assert ids[-4:] == [128_009, 128_260, 128_261, 128_257]
    assert all(0 <= token < FIRST_SPECIAL_ID for token in ids[2:-4])


@pytest.mark.parametrize(("token", "legal"), [(-1, False), (0, True), (127_999, True)])
def test_prompt_id_bounds(token: int, *, legal: bool) -> None:
    """Text ids are 0 … 127999; one below them is refused too."""
    if legal:
        assert prompt_ids("tara", "x", lambda _: [token])[2:-4] == [token]
    else:
        with pytest.raises(Internal):
            prompt_ids("tara", "x", lambda _: [token])


# Frames -------------------------------------------------------------------------------------------


def test_ids_of_a_frame() -> None:
    """Slot s, code c is 128266 + 4096 s + c; the last audio id is 156937."""
    assert frame_ids((0, 0, 0, 0, 0, 0, 0))[:2] == [128_266, 132_362]
    assert audio_id(6, 4095) == 156_937 == AUDIO_END - 1


@given(frames=st.lists(FRAMES, max_size=8), data=st.data())
@settings(deadline=None)
def test_frames_round_trip_in_any_grouping(frames: list[Frame], data: st.DataObject) -> None:
    """Frames come back from their ids whatever groups the engine reports them in."""
    assembler = FrameAssembler()
    result: list[Frame] = []
    for group in grouped([*ids_of(frames), END_OF_SPEECH], data):
        result += assembler.push(group)
    assert result == frames
    assert (assembler.invalid, assembler.dropped) == (0, 0)
    assert assembler.tokens == 7 * len(frames) + 1


@given(ids=st.lists(st.one_of(AUDIO_IDS, OTHER_IDS, st.just(END_OF_SPEECH))), data=st.data())
@settings(deadline=None)
def test_grouping_never_matters(ids: list[int], data: st.DataObject) -> None:
    """For any ids at all, frames and counts are those of one single group."""
    whole, parts = FrameAssembler(), FrameAssembler()
    expected = whole.push(ids)
    assert [f for group in grouped(ids, data) for f in parts.push(group)] == expected
    whole.finish()
    parts.finish()
    assert (parts.tokens, parts.invalid, parts.dropped) == (
        whole.tokens,
        whole.invalid,
        whole.dropped,
    )


@given(frames=st.lists(FRAMES, max_size=6), strays=st.lists(st.tuples(st.integers(0), OTHER_IDS)))
@settings(deadline=None)
def test_ids_outside_the_range_cost_nothing(
    frames: list[Frame], strays: list[tuple[int, int]]
) -> None:
    """However many ids that are no audio come in between, all frames survive and each is counted."""
    ids = ids_of(frames)
    for position, token in strays:
        ids.insert(position % (len(ids) + 1), token)
    assembler = FrameAssembler()
    assert assembler.push(ids) == frames
    assembler.finish()
    assert (assembler.invalid, assembler.dropped) == (len(strays), 0)


@given(
    pieces=st.lists(
        st.tuples(FRAMES, st.dictionaries(st.integers(0, 6), st.lists(AUDIO_IDS, max_size=3))),
        max_size=6,
    )
)
@settings(max_examples=150, deadline=None)
def test_strays_cost_only_the_frames_they_fall_into(
    pieces: list[tuple[Frame, dict[int, list[int]]]],
) -> None:
    """Audio ids anywhere cost at most the frames they fall into and never shift later ones.

    Strays at position 0 are between two frames and cost neither.
    """
    ids: list[int] = []
    whole: list[Frame] = []
    for item, strays in pieces:
        for position, token in enumerate(frame_ids(item)):
            ids += [*strays.get(position, ()), token]
        if not any(tokens for position, tokens in strays.items() if position > 0):
            whole.append(item)
    result = iter(FrameAssembler().push(ids))
    assert all(item in result for item in whole)


# Few slots, so that runs in and out of turn both come up often.
MOSTLY_IN_TURN = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 7), st.integers(0, 7)).map(
            lambda part: [audio_id(slot, 5) for slot in range(part[0], min(part[1], 7))]
        ),
        st.just([audio_id(slot, 5) for slot in range(7)]),
        OTHER_IDS.map(lambda token: [token]),
    ),
    max_size=12,
).map(lambda parts: [token for part in parts for token in part])


@given(ids=MOSTLY_IN_TURN, ends=st.booleans())
@settings(max_examples=150, deadline=None)
def test_counts_add_up(ids: list[int], *, ends: bool) -> None:
    """Every id is in a frame, dropped, invalid, or the end of speech, and in one of them only."""
    assembler = FrameAssembler()
    frames = assembler.push([*ids, END_OF_SPEECH] if ends else ids)
    assembler.finish()
    assert accounted(assembler, frames) + ends == assembler.tokens == len(ids) + ends


def test_an_early_slot_0_is_counted_once() -> None:
    """A frame that begins before the last one was complete is kept and not counted as invalid too.

    What it cuts off is counted as dropped.
    """
    assembler = FrameAssembler()
    assert assembler.push(frame_ids(frame(1))[:2] + frame_ids(frame(2))) == [frame(2)]
    assert accounted(assembler, [frame(2)]) == assembler.tokens == 9


def test_nothing_after_the_end_counts() -> None:
    """Ids after end of speech are ignored, in the same group and in later ones."""
    assembler = FrameAssembler()
    assert assembler.push([*ids_of([frame(1)]), END_OF_SPEECH, *ids_of([frame(2)])]) == [frame(1)]
    assert assembler.push(ids_of([frame(3)])) == []
    assert assembler.tokens == 8


def test_finish_is_idempotent() -> None:
    """Finishing a segment again, as the caller does after end of speech, counts nothing twice."""
    assembler = FrameAssembler()
    assembler.push([*frame_ids(frame(1))[:3], END_OF_SPEECH])
    assembler.finish()
    assembler.finish()
    assert assembler.dropped == 3
