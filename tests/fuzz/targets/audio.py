"""Samples on the way to the wire: silence, joins, rates, encodings.

An input is a format, four bytes, and then runs of samples of three bytes each: how many, how loud, and
where chunks and segments end. Where a segment is cut into chunks makes no difference to a single bit;
there are as many samples as the rate says; nothing gets louder; and G.711 is what Python's own was.
"""

import warnings
from collections.abc import Iterator
from typing import Final

import numpy as np

from orpheus_ws.audio import AUDIBLE, Shaper
from orpheus_ws.pcm import ENCODINGS, SAMPLE_RATES, Chunk, Output, Samples
from orpheus_ws.tokens import SAMPLE_RATE

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import audioop

WORDS: tuple[str, ...] = ()
_SIZES: Final = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}
_LEVELS: Final = (
    0.0,
    0.0,
    0.009,
    0.0101,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    -2.0,
    1e-30,
    float("nan"),
    float("inf"),
)
_MOST_SAMPLES: Final = 20_000


def one(data: bytes) -> None:
    """See `Target`."""
    if len(data) < 2:
        return
    encoding = list(ENCODINGS)[data[0] % len(ENCODINGS)]
    rate = SAMPLE_RATES[data[1] % len(SAMPLE_RATES)]
    segments = list(_segments(data[2:]))
    finite = all(np.isfinite(chunk).all() for segment in segments for chunk in segment)
    cut = _shaped(segments)
    whole = _shaped([[np.concatenate(segment)] for segment in segments])
    _check_shape(segments, cut, whole)
    with np.errstate(invalid="ignore"):
        first = _encoded(cut, encoding, rate)
        second = _encoded(whole, encoding, rate)
    if finite:
        assert [chunk.pcm for chunk in first] == [chunk.pcm for chunk in second]
    for chunk, parts in zip(first, cut, strict=True):
        fed = sum(map(len, parts))
        assert chunk.samples == (2 * fed * rate + SAMPLE_RATE) // (2 * SAMPLE_RATE)
        assert len(chunk.pcm) == chunk.samples * _SIZES[encoding]
    if finite:
        _check_laws(np.concatenate([chunk for parts in cut for chunk in parts] or [_NOTHING]))


def _segments(data: bytes) -> Iterator[list[Samples]]:
    """Segments of chunks of samples; the last bits of a run say what ends with it."""
    segment: list[Samples] = []
    chunk: list[Samples] = []
    total = 0
    for at in range(0, len(data) - 2, 3):
        size, level, end = data[at] ** 2 // 16, _LEVELS[data[at + 1] % len(_LEVELS)], data[at + 2]
        total += size
        if total > _MOST_SAMPLES:
            break
        run = np.full(size, level, np.float32)
        if end & 4:
            with np.errstate(invalid="ignore"):  # of infinity, now and then
                run *= np.sin(np.arange(size, dtype=np.float32) * ((end >> 3) / 20))
        chunk.append(run)
        if end & 3:
            segment.append(np.concatenate(chunk))
            chunk = []
        if end & 2:
            yield segment
            segment = []
    segment.append(np.concatenate([*chunk, _NOTHING]))
    yield segment


def _shaped(segments: list[list[Samples]]) -> list[list[Samples]]:
    shaper = Shaper()
    shaped = [[*map(shaper.feed, segment), shaper.finish()] for segment in segments]
    everything = np.concatenate([chunk for segment in shaped for chunk in segment])
    audible = np.flatnonzero(np.abs(everything) >= AUDIBLE)
    assert shaper.first_sound == (int(audible[0]) if len(audible) else None)
    return shaped


def _check_shape(
    segments: list[list[Samples]], cut: list[list[Samples]], whole: list[list[Samples]]
) -> None:
    for given, parts, uncut in zip(segments, cut, whole, strict=True):
        joined, samples = np.concatenate(parts), np.concatenate(given)
        assert np.array_equal(joined, np.concatenate(uncut), equal_nan=True)
        if len(samples) and len(joined):
            with np.errstate(invalid="ignore"):
                assert not np.nanmax(np.abs(joined)) > np.nanmax(np.abs(samples))


def _encoded(segments: list[list[Samples]], encoding: str, rate: int) -> list[Chunk]:
    output = Output(encoding, rate)
    encoded: list[Chunk] = []
    for segment in segments:
        chunks = [output.feed(chunk) for chunk in segment]
        chunks.append(output.finish(_NOTHING))
        for chunk in chunks:
            assert len(chunk.pcm) == chunk.samples * _SIZES[encoding]
        encoded.append(
            Chunk(b"".join(chunk.pcm for chunk in chunks), sum(chunk.samples for chunk in chunks))
        )
    return encoded


def _check_laws(samples: Samples) -> None:
    """Python's µ-law rounds negative samples down; the ITU-T's and ours mirrors them."""
    linear = np.frombuffer(ENCODINGS["pcm_s16le"](samples), "<i2")
    mirrored = np.where(linear < 0, ~linear, linear).astype("<i2").tobytes()
    mulaw = np.frombuffer(ENCODINGS["mulaw"](samples), np.uint8)
    assert (mulaw | 0x80).tobytes() == audioop.lin2ulaw(mirrored, 2)
    assert np.array_equal(mulaw < 0x80, linear < 0)
    assert ENCODINGS["alaw"](samples) == audioop.lin2alaw(linear.tobytes(), 2)


_NOTHING: Final[Samples] = np.zeros(0, np.float32)
