"""SNAC's weights: what loads decodes as it should, what does not is refused with what to do."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orpheus_ws.codec import open_decoder
from orpheus_ws.codec.network import StreamingNetwork
from orpheus_ws.codec.weights import load_model, prepare
from orpheus_ws.codec.window import decode_whole
from orpheus_ws.config import CodecConfig
from orpheus_ws.errors import StartupError
from orpheus_ws.tokens import SAMPLES_PER_FRAME
from tests.voice.codec_models import (
    GOLDEN,
    RELEASED,
    SMALL,
    assert_same,
    golden_frames,
    play_one,
    pocket_model,
    random_frames,
    random_model,
)


def checkpoint(folder: Path, config: dict[str, Any]) -> Path:
    """A checkpoint of random weights in the form in which the released one is published."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.save(random_model(config).state_dict(), folder / "pytorch_model.bin")
    return folder


def test_golden_utterance() -> None:
    """The embedded codec decodes the golden codes to the golden samples."""
    decoded = decode_whole(pocket_model(), golden_frames())
    np.testing.assert_allclose(decoded, GOLDEN["decoded"][0][: len(decoded)], atol=1e-4)


@pytest.mark.parametrize("name", ["streaming", "window"])
def test_a_full_size_checkpoint(tmp_path: Path, name: str) -> None:
    """A checkpoint as published opens by name, and its streams equal snac's whole decode."""
    folder = checkpoint(tmp_path, RELEASED)
    options = {"noise": False, "early_frames": 0} if name == "streaming" else {}
    decoder = open_decoder(CodecConfig(name=name, weights=str(folder), slots=2, options=options))
    assert decoder.slots == 2
    frames = random_frames(6)
    whole = decode_whole(load_model(str(folder), noise=False), frames)
    assert len(whole) == 6 * SAMPLES_PER_FRAME
    assert_same(play_one(decoder, frames, [4, 1]), whole)


@pytest.mark.parametrize("depthwise", [True, False])
def test_preparing_changes_nothing(depthwise: bool) -> None:
    """Folding weight norm and dropping the encoder leave what the model decodes as it was."""
    model = random_model(SMALL | {"noise": False, "depthwise": depthwise}).eval()
    frames = random_frames(3)
    before = decode_whole(model, frames)
    after = prepare(model, noise=False)
    assert not any("parametrizations" in name for name, _ in after.named_parameters())
    assert not any(name.startswith("encoder") for name, _ in after.named_parameters())
    assert_same(decode_whole(after, frames), before)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_smaller_number_format(dtype: str) -> None:
    """Computed in 16 bits the embedded voice is as long and sounds much the same."""
    options = {"dtype": dtype, "early_frames": 0}
    decoder = open_decoder(CodecConfig(weights="pocket", options=options))
    frames = golden_frames()[:8]
    whole = decode_whole(pocket_model(), frames)
    samples = play_one(decoder, frames, [4])
    assert samples.dtype == np.float32
    assert len(samples) == len(whole)
    assert np.square(samples - whole).mean() < np.square(whole).mean() / 100


@pytest.mark.parametrize("content", [None, "{}", "not json", '{"sampling_rate": 24000}'])
def test_a_checkpoint_that_is_none(tmp_path: Path, content: str | None) -> None:
    """A folder without a checkpoint, or with a broken one, is a start-up error that says so."""
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(StartupError, match=r"config\.json"):
        open_decoder(CodecConfig(weights=str(tmp_path)))


@pytest.mark.parametrize(
    "other",
    [
        {"vq_strides": [8, 4, 2, 1]},
        {"sampling_rate": 32_000},
        {"codebook_size": 1024},
        {"decoder_rates": [8, 8, 4, 4]},
        {"attn_window_size": 32},
    ],
)
def test_a_checkpoint_of_another_codec(tmp_path: Path, other: dict[str, Any]) -> None:
    """A SNAC model of another shape is refused as such, whole as its checkpoint is."""
    folder = checkpoint(tmp_path, SMALL | other)
    with pytest.raises(StartupError, match="not SNAC's 24 kHz model"):
        load_model(str(folder), noise=False)


def test_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    """Weights of another configuration than the one beside them are refused as such."""
    folder = checkpoint(tmp_path, SMALL)
    without = json.dumps(SMALL | {"noise": False})
    (folder / "config.json").write_text(without, encoding="utf-8")
    with pytest.raises(StartupError, match="does not fit"):
        load_model(str(folder), noise=False)


def test_a_layer_that_looks_everywhere() -> None:
    """A network with a layer that cannot be run piece by piece is refused by that layer's name."""
    model: nn.Module = prepare(random_model(SMALL | {"attn_window_size": 32}), noise=False)
    with pytest.raises(StartupError, match="LocalMHA"):
        StreamingNetwork(model)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"threads": 0}, "threads"),
        ({"device": "cuda:99"}, "codec.options.device"),
        ({"early_frames": 4}, "early_frames"),
        ({"dtype": "float64"}, "dtype"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], advice: str) -> None:
    """An option that cannot be what it is set to is a start-up error that names the key."""
    with pytest.raises(StartupError, match=advice):
        open_decoder(CodecConfig(options=options))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\xff" * 100])
def test_a_corrupt_checkpoint(tmp_path: Path, name: str, content: bytes) -> None:
    """A broken file of weights is a start-up error like a missing one."""
    folder = checkpoint(tmp_path, SMALL)
    (folder / "pytorch_model.bin").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(StartupError, match="cannot load the codec"):
        load_model(str(folder), noise=False)
