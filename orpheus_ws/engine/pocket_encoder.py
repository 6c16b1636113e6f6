"""The pocket codec's encoder: samples → frames of seven codes, without torch.

Rule: everything here is local in time, so a block of frames computed with a little context on
either side equals the same frames of the whole, and all of it is done on the calling thread. Arrays
run over time first, so that a convolution is a matrix product. `data/pocket/README.md` defines the
encoder and says how it was trained.
"""

import importlib.resources
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial import KDTree
from scipy.special import erf

from orpheus_ws.tokens import CODES_PER_FRAME, LEVEL_SLOTS, SAMPLE_RATE, SAMPLES_PER_FRAME

# Double precision throughout: how numpy rounds may depend on the size of an array. In single
# precision a block's latents differ from the whole's by about 6e-6, which now and then decides
# between two codebook entries that are almost equally near.
Array = NDArray[np.float64]
Weights = Mapping[str, NDArray[np.float32]]

# The analysis that the weights were trained on.
HOP = 512
WINDOW = 2048
MEL_BANDS = 100
MEL_TOP_HZ = SAMPLE_RATE / 2
MEL_FLOOR = 1e-3
EDGE = (WINDOW - HOP) // 2
"""Zeros before and after the audio, so that there is one column for every `HOP` samples."""

COLUMNS_PER_FRAME = SAMPLES_PER_FRAME // HOP
DILATIONS = (1, 2, 1)
NORM_EPSILON = 1e-5
CONTEXT = 2 * SAMPLES_PER_FRAME
"""Samples of context for a block. A column sees 3328: five columns beside it and half a window."""

# Coarse to fine: how many columns share a code of that level, and its slots in a frame.
LEVELS = tuple(zip((4, 2, 1), LEVEL_SLOTS, strict=True))


class _Convolution(NamedTuple):
    """Taps of shape (kernel, in, out), `dilation` columns apart, with zeros beyond the edges."""

    taps: Array
    bias: Array
    dilation: int = 1

    def __call__(self, columns: Array) -> Array:
        reach = self.dilation * (len(self.taps) // 2)
        padded = np.pad(columns, ((reach, reach), (0, 0)))
        result = np.tile(self.bias, (len(columns), 1))
        for index, tap in enumerate(self.taps):
            start = index * self.dilation
            shifted = padded[start : start + len(columns)]
            # One product for each frame. OpenBLAS would share one of more than 65 536 × 4
            # multiplications (`interface/gemm.c`) among threads that wait by spinning, which costs
            # far more than it brings where the codec wants the same cores.
            product = shifted.reshape(-1, COLUMNS_PER_FRAME, shifted.shape[1]) @ tap
            result += product.reshape(result.shape)
        return result


class _Block(NamedTuple):
    """Residual block: normalise each column, look around, mix."""

    scale: Array
    shift: Array
    around: _Convolution
    mix: _Convolution

    def __call__(self, columns: Array) -> Array:
        centred = columns - columns.mean(axis=1, keepdims=True)
        variance = np.square(centred).mean(axis=1, keepdims=True)
        normed = centred / np.sqrt(variance + NORM_EPSILON) * self.scale + self.shift
        return columns + self.mix(_gelu(self.around(normed)))


class _Projection(NamedTuple):
    """A convolution of one tap, (in, out)."""

    matrix: Array
    bias: Array

    def __call__(self, rows: Array) -> Array:
        result: Array = rows @ self.matrix + self.bias
        return result


class _Level(NamedTuple):
    """One codebook, the projections into its space and back, and how many columns share a code."""

    stride: int
    into: _Projection
    back: _Projection
    codebook: Array
    tree: Any
    """Finds the nearest entry by Euclidean distance, at a twentieth of the cost of trying all."""

    def quantise(self, residual: Array) -> tuple[NDArray[np.intp], Array]:
        """Return the nearest entries, (frames, codes), and what they account for.

        `residual` is (frames, columns, channels), and so is the second result.
        """
        frames, columns, channels = residual.shape
        runs = residual.reshape(frames, columns // self.stride, self.stride, channels)
        codes: NDArray[np.intp] = self.tree.query(self.into(runs.mean(axis=2)))[1]
        return codes, np.repeat(self.back(self.codebook[codes]), self.stride, axis=1)


class PocketEncoder:
    """The encoder with its weights, which come with the package.

    Keeps no state between calls. Raises `OSError` or `safetensors.SafetensorError` when the weights
    cannot be read.
    """

    def __init__(self) -> None:
        encoder, codec = _read("encoder"), _read("decoder")
        self._first = _convolution(encoder, "i")
        self._blocks = [
            _block(encoder, f"b.{index}", dilation) for index, dilation in enumerate(DILATIONS)
        ]
        self._last = _convolution(encoder, "o")
        self._levels = [
            _level(codec, f"quantizer.quantizers.{index}", stride)
            for index, (stride, _) in enumerate(LEVELS)
        ]
        # Periodic: the first sample of the next window would continue it.
        self._window = np.hanning(WINDOW + 1)[:-1]
        # Sparse, as a frequency bin lies in two triangles.
        self._bands = csr_array(_mel_bands())

    def encode(self, audio: NDArray[np.float32]) -> NDArray[np.intp]:
        """Encode mono samples (N,) at 24 kHz: codes (ceil(N / 2048), 7) in slot order.

        The last frame is completed with silence.
        """
        return self.encode_block(audio, 0, frame_count(len(audio)))

    def encode_block(
        self, audio: NDArray[np.float32], first_frame: int, n_frames: int
    ) -> NDArray[np.intp]:
        """Return what `encode` gives from `first_frame` on, (n_frames, 7), at the cost of the block.

        Fewer frames come back when the audio has no more.
        """
        stop_frame = min(first_frame + n_frames, frame_count(len(audio)))
        if stop_frame <= first_frame:
            return np.empty((0, CODES_PER_FRAME), np.intp)
        origin = max(0, first_frame * SAMPLES_PER_FRAME - CONTEXT)
        latents = self.latents(audio[origin : stop_frame * SAMPLES_PER_FRAME + CONTEXT])
        skip = first_frame * COLUMNS_PER_FRAME - origin // HOP
        count = (stop_frame - first_frame) * COLUMNS_PER_FRAME
        return self._quantise(latents[skip : skip + count])

    def log_mel(self, audio: NDArray[np.float32]) -> Array:
        """Natural logarithm of the mel magnitudes, (columns, 100), one column per 512 samples.

        `audio` is (N,), not empty, and completed with silence to whole frames.
        """
        missing = -len(audio) % SAMPLES_PER_FRAME
        padded = np.pad(audio.astype(np.float64), (EDGE, EDGE + missing))
        windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
        magnitudes = np.abs(np.fft.rfft(windows * self._window))
        mel: Array = np.log(np.maximum(self._bands @ magnitudes.T, MEL_FLOOR)).T
        return mel

    def latents(self, audio: NDArray[np.float32]) -> Array:
        """What is quantised, (columns, 192), of samples as `log_mel` takes them."""
        columns = self._first((self.log_mel(audio) + 4) / 2)
        for block in self._blocks:
            columns = block(columns)
        return self._last(columns)

    def _quantise(self, latents: Array) -> NDArray[np.intp]:
        residual = latents.reshape(-1, COLUMNS_PER_FRAME, latents.shape[1])
        frames = np.empty((len(residual), CODES_PER_FRAME), np.intp)
        for level, (_, slots) in zip(self._levels, LEVELS, strict=True):
            frames[:, slots], explained = level.quantise(residual)
            residual = residual - explained
        return frames


def frame_count(samples: int) -> int:
    """Frames that so many samples fill; the last one perhaps in part."""
    return -(-samples // SAMPLES_PER_FRAME)


def _gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + erf(x * 0.5**0.5))
    return result


def _mel_bands() -> Array:
    """Triangles of height 1, evenly spaced in mel from 0 Hz to the top: (bands, bins)."""
    edges_mel = np.linspace(0, 2595 * np.log10(1 + MEL_TOP_HZ / 700), MEL_BANDS + 2)
    edges = 700 * (10 ** (edges_mel / 2595) - 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bins = np.fft.rfftfreq(WINDOW, 1 / SAMPLE_RATE)
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    bands: Array = np.maximum(0, np.minimum(rising, falling))
    return bands


def _read(name: str) -> Weights:
    file = importlib.resources.files("orpheus_ws") / "data" / "pocket" / f"{name}.safetensors"
    return safetensors.numpy.load(file.read_bytes())


def _convolution(weights: Weights, name: str, dilation: int = 1) -> _Convolution:
    """Take a convolution as PyTorch stores it, (out, in, kernel)."""
    taps = np.ascontiguousarray(weights[f"{name}.weight"].transpose(2, 1, 0), np.float64)
    return _Convolution(taps, weights[f"{name}.bias"].astype(np.float64), dilation)


def _projection(weights: Weights, name: str) -> _Projection:
    """Take one that is stored as the length (`original0`) and direction of each output's row."""
    prefix = f"{name}.parametrizations.weight"
    length = weights[f"{prefix}.original0"][:, :, 0].astype(np.float64)
    direction = weights[f"{prefix}.original1"][:, :, 0].astype(np.float64)
    matrix = length * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    return _Projection(np.ascontiguousarray(matrix.T), weights[f"{name}.bias"].astype(np.float64))


def _block(weights: Weights, name: str, dilation: int) -> _Block:
    return _Block(
        weights[f"{name}.n.weight"].astype(np.float64),
        weights[f"{name}.n.bias"].astype(np.float64),
        _convolution(weights, f"{name}.a", dilation),
        _convolution(weights, f"{name}.b"),
    )


def _level(weights: Weights, name: str, stride: int) -> _Level:
    codebook = weights[f"{name}.codebook.weight"].astype(np.float64)
    return _Level(
        stride,
        _projection(weights, f"{name}.in_proj"),
        _projection(weights, f"{name}.out_proj"),
        codebook,
        KDTree(codebook),
    )
