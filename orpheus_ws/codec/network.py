"""SNAC's decoder as a network that computes each sample once.

Rule: equal to decoding the whole utterance, `DELAY` samples late. Every convolution keeps the inputs
that it needs again; the residual branch around it waits as long as its output does. A 'same'
convolution pads its own input with zeros, so at every layer what lies before the stream's start or
after its end is forced to zero. Streams are rows: each has a position and a length of its own, and
its state is one row of numbers that can be kept anywhere between steps.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from snac.layers import DecoderBlock, NoiseBlock, ResidualUnit, Snake1d
from torch import nn
from torch.nn import functional

from orpheus_ws.codec import noise
from orpheus_ws.errors import StartupError
from orpheus_ws.tokens import LEVEL_SLOTS, SAMPLES_PER_FRAME

DELAY: Final = 4757
"""Samples by which the output lags, from the strides and kernels of SNAC's 24 kHz decoder:
1536 + 256 + 2496 + 32 + 312 + 4 + 78 + 1 + 39 + 3, layer by layer."""

LATENTS_PER_FRAME: Final = 4
ENDLESS: Final = 1 << 40
"""Length, in frames, of a stream whose end is not known yet."""


class Rows(NamedTuple):
    """What a step is about, a row for each stream."""

    codes: torch.Tensor
    """(B, n, 7) integers; anything past the end of the stream."""
    frames: torch.Tensor
    """(B,) frames that the stream had before."""
    lengths: torch.Tensor
    """(B,) frames of the whole stream, or `ENDLESS`."""
    offsets: torch.Tensor
    """(B,) where each stream begins in the table of noise."""
    state: torch.Tensor
    """(B, width) what each stream has kept; zeros at its start."""


class _Step:
    """One pass: hands out the kept inputs in order and collects the new ones."""

    def __init__(self, rows: Rows, *, edges: bool) -> None:
        self._rows = rows
        self._edges = edges
        self._kept: list[torch.Tensor] = []
        self._at = 0
        self._masks: dict[tuple[int, int, int], torch.Tensor] = {}

    def extend(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """(B, C, T) → (B, C, width + T): what was kept of it before, then `x`; keeps the end."""
        batch, channels, _ = x.shape
        size = channels * width
        before = self._rows.state[:, self._at : self._at + size].view(batch, channels, width)
        self._at += size
        extended = torch.cat((before, x), dim=2)
        self._kept.append(extended[:, :, extended.shape[2] - width :].reshape(batch, size))
        return extended

    def masked(self, x: torch.Tensor, rate: int, delay: int) -> torch.Tensor:
        """Zero `x`, which has `rate` samples a frame and lags by `delay`, outside its stream."""
        if not self._edges:
            return x
        key = (rate, delay, x.shape[2])
        if key not in self._masks:
            positions = self.positions(x, rate, delay)
            inside = (positions >= 0) & (positions < self._rows.lengths[:, None] * rate)
            self._masks[key] = inside[:, None].to(x.dtype)
        return x * self._masks[key]

    def positions(self, x: torch.Tensor, rate: int, delay: int) -> torch.Tensor:
        """(B, T) the place of each sample of `x` in its stream."""
        start = self._rows.frames * rate - delay
        return start[:, None] + torch.arange(x.shape[2], device=x.device)

    def noise(self, deviates: torch.Tensor, layer: int, positions: torch.Tensor) -> torch.Tensor:
        """(B, T) the noise of a layer."""
        return noise.values(deviates, self._rows.offsets, layer, positions)

    def state(self) -> torch.Tensor:
        """(B, width) what every stream has to keep now."""
        return torch.cat(self._kept, dim=1)


class _Layer(NamedTuple):
    """A function of a step, and the rate (samples a frame) and delay of what comes out."""

    apply: Callable[[torch.Tensor, _Step], torch.Tensor]
    rate: int
    delay: int
    kept: int
    """Numbers that it keeps of each stream."""


class StreamingNetwork(nn.Module):
    """A prepared SNAC model, run incrementally. `width` is the size of a stream's state."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.deviates: torch.Tensor
        self._layers = list(_layers(model, self))
        self.width = sum(layer.kept for layer in self._layers)
        assert self._layers[-1].delay == DELAY
        weight = next(model.decoder.parameters())
        self.register_buffer("deviates", noise.table(weight.device, weight.dtype))
        for level, quantizer in enumerate(model.quantizer.quantizers):
            # A code's contribution is fixed: look it up projected, instead of projecting each time.
            with torch.inference_mode():
                projected = quantizer.out_proj(quantizer.codebook.weight.T[None])[0].T
            self.register_buffer(f"level_{level}", projected.contiguous())

    def forward(self, rows: Rows, *, edges: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Advance each stream by n frames: (B, n × 2048) samples and the new (B, width) state.

        The samples are those from `frames × 2048 − DELAY` on; what lies outside the stream is
        meaningless. `edges` may be false only if no row is within `DELAY` of its start or at its
        end.
        """
        step = _Step(rows, edges=edges)
        x = self._latents(rows.codes)
        for layer in self._layers:
            x = layer.apply(x, step)
        return x[:, 0], step.state()

    def _latents(self, codes: torch.Tensor) -> torch.Tensor:
        """(B, n, 7) codes → (B, channels, 4n)."""
        batch = len(codes)
        total: torch.Tensor | None = None
        for level, slots in enumerate(LEVEL_SLOTS):
            # Not indexed with a list: that is copied from the host, which no CUDA graph can repeat.
            index = torch.stack([codes[:, :, slot] for slot in slots], dim=2).view(batch, -1)
            vectors = functional.embedding(index, getattr(self, f"level_{level}"))
            vectors = vectors.repeat_interleave(LATENTS_PER_FRAME // len(slots), dim=1)
            total = vectors if total is None else total + vectors
        assert total is not None
        return total.transpose(1, 2).contiguous()


# Layers -------------------------------------------------------------------------------------------


def _layers(model: Any, network: StreamingNetwork) -> Iterator[_Layer]:
    """The decoder's layers in order, each with its rate and delay."""
    rate, delay, noises = LATENTS_PER_FRAME, 0, 0
    for module in _flat(model.decoder.model):
        if isinstance(module, NoiseBlock):
            layer = _noise(module, rate, delay, noises, network)
            noises += 1
        else:
            layer = _layer(module, rate, delay)
        yield layer
        rate, delay = layer.rate, layer.delay
    assert rate == SAMPLES_PER_FRAME


def _flat(modules: nn.Sequential) -> Iterator[nn.Module]:
    for module in modules:
        if isinstance(module, DecoderBlock):
            yield from module.block
        else:
            yield module


def _layer(module: nn.Module, rate: int, delay: int) -> _Layer:
    if isinstance(module, nn.ConvTranspose1d):
        return _transposed(module, rate, delay)
    if isinstance(module, nn.Conv1d) and module.kernel_size[0] > 1:
        return _convolution(module, rate, delay)
    if isinstance(module, ResidualUnit):
        return _residual(module, rate, delay)
    if isinstance(module, Snake1d | nn.Conv1d | nn.Tanh | nn.Identity):
        return _Layer(lambda x, _: module(x), rate, delay, 0)
    raise StartupError(
        f"the codec has a layer ({type(module).__name__}) that cannot be run incrementally: use the "
        "weights of SNAC's 24 kHz model and snac 1.2"
    )


def _convolution(module: nn.Conv1d, rate: int, delay: int) -> _Layer:
    """A 'same' convolution: it keeps what its kernel overlaps, and lags by half of that."""
    width = (module.kernel_size[0] - 1) * module.dilation[0]

    def apply(x: torch.Tensor, step: _Step) -> torch.Tensor:
        extended = step.extend(step.masked(x, rate, delay), width)
        convolved: torch.Tensor = functional.conv1d(
            extended, module.weight, module.bias, dilation=module.dilation, groups=module.groups
        )
        return convolved

    return _Layer(apply, rate, delay + width // 2, module.in_channels * width)


def _residual(module: ResidualUnit, rate: int, delay: int) -> _Layer:
    """x + pointwise(convolution(x)), where x waits for the convolution."""
    before, convolution, after, pointwise = module.block
    inner = _convolution(convolution, rate, delay)
    lag = inner.delay - delay

    def apply(x: torch.Tensor, step: _Step) -> torch.Tensor:
        y: torch.Tensor = pointwise(after(inner.apply(before(x), step)))
        return step.extend(x, lag)[:, :, : x.shape[2]] + y

    return _Layer(apply, rate, inner.delay, inner.kept + convolution.in_channels * lag)


def _transposed(module: nn.ConvTranspose1d, rate: int, delay: int) -> _Layer:
    """Kernel of two strides: an output needs two inputs, and the first half-stride comes late."""
    stride = module.stride[0]
    assert module.kernel_size[0] == 2 * stride
    lag = int(module.padding[0])

    def apply(x: torch.Tensor, step: _Step) -> torch.Tensor:
        extended = step.extend(step.masked(x, rate, delay), 1)
        return functional.conv_transpose1d(
            extended,
            module.weight,
            module.bias,
            stride=stride,
            padding=stride,
            groups=module.groups,
        )

    return _Layer(apply, rate * stride, delay * stride + lag, module.in_channels)


def _noise(
    module: NoiseBlock, rate: int, delay: int, number: int, network: StreamingNetwork
) -> _Layer:
    """x + noise · linear(x), with the noise of each sample's place."""

    def apply(x: torch.Tensor, step: _Step) -> torch.Tensor:
        values = step.noise(network.deviates, number, step.positions(x, rate, delay))
        scaled: torch.Tensor = module.linear(x)
        return x + values[:, None] * scaled

    return _Layer(apply, rate, delay, 0)
