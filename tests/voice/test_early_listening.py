"""What an early beginning is worth to a listener: at which pace of the engine it leaves no gap."""

import pytest

from orpheus_ws.audio import Player
from orpheus_ws.codec import Work
from orpheus_ws.tokens import FRAME_SECONDS, SAMPLE_RATE, SAMPLES_PER_FRAME
from tests.voice.codec_models import random_frames, small_model, streaming

FRAMES = 60


class Strict(Player):
    """A player that counts the shortest gap."""

    TOLERANCE = 0.0


def arrivals(early_frames: int) -> list[tuple[int, int]]:
    """(frames that have come, samples that are given then) of a stream, frame by frame."""
    decoder = streaming(small_model(), early_frames=early_frames)
    decoder.reset(0, seed=0, early=early_frames > 0)
    frames = random_frames(FRAMES)
    given = []
    for number, frame in enumerate(frames, 1):
        (samples,) = decoder.step([Work(0, [frame], last=number == FRAMES)])
        given.append((number, len(samples)))
    assert sum(count for _, count in given) == FRAMES * SAMPLES_PER_FRAME
    return [(number, count) for number, count in given if count]


def underruns(player: Player, given: list[tuple[int, int]], pace: float) -> int:
    """How often the player ran dry when frames come `pace` times as fast as they are played."""
    for number, samples in given:
        player.receive(samples / SAMPLE_RATE, number * FRAME_SECONDS / pace)
    return player.underruns


@pytest.mark.parametrize(
    ("early_frames", "first", "second"),
    [
        (0, (3, 1387), (4, 2048)),
        (1, (1, 1024), (3, 363)),
        (2, (2, 2048), (4, 1387)),
        (3, (3, 4096), (5, 1387)),
    ],
)
def test_when_samples_come(
    early_frames: int, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """The early samples come with the frame that they were asked for after, the next ones when 4757
    samples have come after them."""
    assert arrivals(early_frames)[:2] == [first, second]


@pytest.mark.parametrize(
    ("early_frames", "pace", "slower"),
    [(0, 1.0, 0.97), (1, 1.86, 1.84), (2, 1.15, 1.14), (3, 1.0, 0.97)],
)
def test_pace_without_a_gap(early_frames: int, pace: float, slower: float) -> None:
    """With 80 ms in its buffer a player runs dry below a certain pace, and not from it on."""
    given = arrivals(early_frames)
    assert underruns(Strict(), given, pace) == 0
    assert underruns(Strict(), given, pace + 0.5) == 0
    assert underruns(Strict(), given, slower) > 0


@pytest.mark.parametrize(("early_frames", "pace", "slower"), [(1, 1.74, 1.72), (2, 1.10, 1.09)])
def test_pace_without_an_underrun(early_frames: int, pace: float, slower: float) -> None:
    """An underrun is a gap of more than 10 ms, which takes a slower engine still."""
    given = arrivals(early_frames)
    assert underruns(Player(), given, pace) == 0
    assert underruns(Player(), given, slower) > 0
