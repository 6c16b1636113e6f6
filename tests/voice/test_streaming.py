"""The SNAC decoder: streams equal to the whole, N frames for N × 2048 samples."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import snac
import torch
from safetensors.numpy import load_file
from torch import nn

from orpheus_ws.codec import Work, open_decoder
from orpheus_ws.codec.streaming import (
    RADIUS,
    WindowDecoder,
    decode_whole,
    load_model,
    prepare,
)
from orpheus_ws.config import CodecConfig
from orpheus_ws.errors import StartupError
from orpheus_ws.pcm import Samples
from orpheus_ws.tokens import SAMPLES_PER_FRAME, Frame

GOLDEN = load_file(Path(__file__).parents[1] / "data" / "pocket" / "golden.safetensors")


@pytest.fixture(scope="module")
def pocket() -> nn.Module:
    """The embedded voice's codec."""
    return load_model("pocket")


def random_frames(count: int, seed: int = 0) -> list[Frame]:
    """Frames of any codes, code 0 and 4095 among them."""
    chance = random.Random(seed)
    frames = [tuple(chance.randrange(4096) for _ in range(7)) for _ in range(count)]
    return [(0,) * 7, (4095,) * 7, *frames][:count]


def golden_frames() -> list[Frame]:
    """The golden utterance as frames."""
    level_0, level_1, level_2 = (GOLDEN[f"codes_{level}"][0] for level in range(3))
    return [
        (
            int(level_0[n]),
            int(level_1[2 * n]),
            int(level_2[4 * n]),
            int(level_2[4 * n + 1]),
            int(level_1[2 * n + 1]),
            int(level_2[4 * n + 2]),
            int(level_2[4 * n + 3]),
        )
        for n in range(len(level_0))
    ]


def test_golden_utterance(pocket: nn.Module) -> None:
    """The embedded codec decodes the golden codes to the golden samples."""
    decoded = decode_whole(pocket, golden_frames())
    np.testing.assert_allclose(decoded, GOLDEN["decoded"][0][: len(decoded)], atol=1e-4)


@pytest.mark.parametrize("count", range(1, 41))
def test_head_and_tail(pocket: nn.Module, count: int) -> None:
    """head-and-tail: N frames in pieces give N × 2048 samples equal to the whole decode."""
    frames = random_frames(count, seed=count)
    chance = random.Random(count)
    decoder = WindowDecoder(pocket, slots=1)
    decoder.reset(0)
    pieces: list[Samples] = []
    position = 0
    while position < count:
        size = chance.randrange(1, 6)
        piece = frames[position : position + size]
        position += size
        pieces += decoder.step([Work(0, piece, last=False)])
    pieces += decoder.step([Work(0, [], last=True)])
    streamed = np.concatenate(pieces)
    assert len(streamed) == count * SAMPLES_PER_FRAME
    np.testing.assert_allclose(streamed, decode_whole(pocket, frames), atol=1e-5)


def test_streams_in_one_batch(pocket: nn.Module) -> None:
    """Streams that join, leave and reuse slots in one batch each equal their own whole decode."""
    chance = random.Random(5)
    decoder = WindowDecoder(pocket, slots=3)
    streams = [random_frames(chance.randrange(1, 15), seed) for seed in range(9)]
    pieces: list[list[Samples]] = [[] for _ in streams]
    position = [0] * len(streams)
    waiting = list(range(len(streams)))
    running: dict[int, int] = {}  # slot → stream
    while waiting or running:
        for slot in set(range(decoder.slots)) - set(running):
            if waiting and chance.random() < 0.7:
                running[slot] = waiting.pop()
                decoder.reset(slot)
        batch = []
        for slot, stream in running.items():
            begin, end = position[stream], position[stream] + chance.randrange(1, 5)
            position[stream] = end
            batch.append(Work(slot, streams[stream][begin:end], last=end >= len(streams[stream])))
        for work, samples in zip(batch, decoder.step(batch), strict=True):
            pieces[running[work.slot]].append(samples)
            if work.last:
                del running[work.slot]
    for frames, streamed in zip(streams, pieces, strict=True):
        np.testing.assert_allclose(
            np.concatenate(streamed), decode_whole(pocket, frames), atol=1e-5
        )


def test_radius(pocket: nn.Module) -> None:
    """Changing one frame changes nothing further away than the radius, and something within it."""
    frames = random_frames(12)
    changed = [*frames[:6], (7, 7, 7, 7, 7, 7, 7), *frames[7:]]
    differs = np.flatnonzero(
        np.abs(decode_whole(pocket, frames) - decode_whole(pocket, changed)) > 0
    )
    first, last = 6 * SAMPLES_PER_FRAME, 7 * SAMPLES_PER_FRAME - 1
    assert first - RADIUS <= differs[0] < first
    assert last < differs[-1] <= last + RADIUS


def full_size(tmp_path: Path) -> Path:
    """A checkpoint of the released codec's shape with random weights, as it is published."""
    config = {
        "sampling_rate": 24_000,
        "encoder_dim": 48,
        "encoder_rates": [2, 4, 8, 8],
        "decoder_dim": 1024,
        "decoder_rates": [8, 8, 4, 2],
        "attn_window_size": None,
        "codebook_size": 4096,
        "codebook_dim": 8,
        "vq_strides": [4, 2, 1],
        "noise": True,
        "depthwise": True,
    }
    torch.manual_seed(0)
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.save(snac.SNAC(**config).state_dict(), tmp_path / "pytorch_model.bin")
    return tmp_path


def test_full_size_checkpoint(tmp_path: Path) -> None:
    """A checkpoint as published loads, without noise, and streams equal its whole decode."""
    model = load_model(str(full_size(tmp_path)))
    frames = random_frames(6)
    whole = decode_whole(model, frames)
    np.testing.assert_array_equal(whole, decode_whole(model, frames))
    decoder = WindowDecoder(model, slots=1)
    decoder.reset(0)
    pieces = [*decoder.step([Work(0, frames[:4], last=False)])]
    pieces += decoder.step([Work(0, frames[4:], last=True)])
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-5)


def test_folding_changes_nothing() -> None:
    """Folding weight norm leaves what the model computes as it was."""
    torch.manual_seed(1)
    model = snac.SNAC(
        sampling_rate=24_000,
        encoder_dim=4,
        encoder_rates=[2, 4, 8, 8],
        decoder_dim=32,
        decoder_rates=[8, 8, 4, 2],
        attn_window_size=None,
        codebook_dim=4,
        vq_strides=[4, 2, 1],
        noise=False,
    ).eval()
    codes = [torch.randint(4096, (1, 2 * scale)) for scale in (1, 2, 4)]
    with torch.inference_mode():
        before = model.decode(codes)
        after = prepare(model).decode(codes)  # type: ignore[operator]  # snac has no types
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize("content", [None, "{}", "not json", '{"sampling_rate": 24000}'])
def test_a_checkpoint_that_is_none(tmp_path: Path, content: str | None) -> None:
    """A folder without a checkpoint, or with a broken one, is a start-up error that says so."""
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(StartupError, match=r"config\.json"):
        open_decoder(CodecConfig(weights=str(tmp_path)))


def test_a_checkpoint_of_another_codec(tmp_path: Path) -> None:
    """A SNAC model with other levels is refused by name."""
    folder = full_size(tmp_path)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["vq_strides"] = [8, 4, 2, 1]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(StartupError):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("options", "advice"),
    [({"threads": 0}, "threads"), ({"device": "cuda:99"}, "codec.options.device")],
)
def test_options_that_cannot_be(options: dict[str, object], advice: str) -> None:
    """A device or a number of threads that does not exist is a start-up error that names the key."""
    with pytest.raises(StartupError, match=advice):
        open_decoder(CodecConfig(options=options))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\xff" * 100])
def test_a_corrupt_checkpoint(tmp_path: Path, name: str, content: bytes) -> None:
    """A broken file of weights is a start-up error like a missing one."""
    folder = full_size(tmp_path)
    (folder / "pytorch_model.bin").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(StartupError, match="cannot load the codec"):
        load_model(str(folder))
