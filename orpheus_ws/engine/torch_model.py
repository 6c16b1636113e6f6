"""Llama over a fixed number of slots: each has its own keys and values and its own position.

Rule: what a slot gets is a function of what was fed to it. Every step has the same shape, whoever takes
part: all slots are computed, idle ones for nothing. Keys are read in blocks of one size, and what is
masked in them adds exactly nothing. On CPUs this is exact to the last bit, which the tests check; on
other devices torch may choose a kernel by how many blocks the longest slot has.

The layers are transformers'. Its attention interface lets a function of ours put keys and values where
they belong; its caches have one length for a whole batch.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn import functional
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from orpheus_ws.engine import torch_fp8
from orpheus_ws.errors import StartupError

ATTENTION: Final = "orpheus_slots"
"""The name under which transformers knows `_attend`."""

BLOCK: Final = 512
"""Positions; torch's attention on CPUs takes as many at a time."""


def load_model(folder: str, *, device: str, dtype: str, attention: str) -> LlamaForCausalLM:
    """The model on its device, frozen. `attention` is a name known to transformers.

    Raises `StartupError`.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        model, found = _from_pretrained(folder, getattr(torch, dtype), attention)
    except Exception as error:
        # What a broken file raises depends on where it is broken.
        raise StartupError(
            f"cannot load the model from {folder!r} ({type(error).__name__}): is a shard missing or "
            "cut short? Download the checkpoint again"
        ) from error
    if any(found[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise StartupError(
            f"the weights in {folder!r} do not fit its config.json: download the checkpoint again"
        )
    # A newer transformers writes the parameters under a name that an older one does not read; then
    # the model would speak, and badly.
    if model.model.rotary_emb.rope_type != "llama3":
        raise StartupError(
            f"config.json in {folder!r} has no RoPE of Llama 3 that this transformers reads: give it "
            "`rope_scaling` and `rope_theta` as published"
        )
    try:
        placed = model.to(device)
    except Exception as error:
        raise StartupError(
            f"the model in {folder!r} cannot be put on {device!r} ({type(error).__name__}): name "
            "a device that has room for it, or set engine.options.dtype to bfloat16"
        ) from error
    return placed.eval().requires_grad_(requires_grad=False)


def _from_pretrained(
    folder: str, dtype: torch.dtype, attention: str
) -> tuple[LlamaForCausalLM, dict[str, Any]]:
    """The model on the CPU, and what was amiss. What transformers and safetensors raise comes out."""
    config = LlamaConfig.from_pretrained(folder, local_files_only=True)
    how = {
        "config": config,
        "dtype": dtype,
        "attn_implementation": attention,
        "local_files_only": True,
        "use_safetensors": True,
        "output_loading_info": True,
    }
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        model, found = LlamaForCausalLM.from_pretrained(folder, **how)
        return model, found
    # transformers does not know this kind, and would take the bare weights for the model's.
    weights, scales = torch_fp8.read(folder, dtype)
    del config.quantization_config
    model, found = LlamaForCausalLM.from_pretrained(None, state_dict=weights, **how)
    model.config.quantization_config = quantization
    torch_fp8.round_inputs(model, scales)
    return model, found


class SlotModel:
    """A model and the keys and values of its slots. Blocking, and used by one thread."""

    def __init__(self, model: LlamaForCausalLM, slots: int, context: int, columns: range) -> None:
        """`context` positions a slot are room for its ids; `columns` are the ids to give logits of.

        What torch raises when memory is short comes out.
        """
        self._model = model.model
        head = model.lm_head.weight
        # Of the output head only those rows are read that can be chosen.
        self._head = head[columns.start : columns.stop]
        self._device = head.device
        self._cache = _Cache(model.config, slots, context, head)

    @torch.inference_mode()
    def prefill(self, slot: int, ids: Sequence[int]) -> None:
        """Begin anew in `slot` with these ids; no logits come of it."""
        if ids:
            self._run(slice(slot, slot + 1), [list(ids)], [list(range(len(ids)))])

    @torch.inference_mode()
    def step(self, ids: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Feed one id at its position to every slot; the logits of what comes next.

        float32, (slots, columns). To an idle slot feed anything at position 0.
        """
        hidden = self._run(
            slice(len(ids)), [[each] for each in ids], [[each] for each in positions]
        )
        return functional.linear(hidden[:, -1], self._head).float()

    def _run(self, slots: slice, ids: list[list[int]], positions: list[list[int]]) -> torch.Tensor:
        places = torch.tensor(positions, device=self._device)
        longest = max(each[-1] for each in positions) + 1
        output = self._model(
            input_ids=torch.tensor(ids, device=self._device),
            position_ids=places,
            use_cache=False,
            slot_cache=self._cache.window(slots, places, -(-longest // BLOCK) * BLOCK),
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden


class _Cache:
    """Keys and values: (layer, slot, head, position, dimension)."""

    def __init__(self, config: Any, slots: int, context: int, like: torch.Tensor) -> None:
        size = -(-context // BLOCK) * BLOCK
        shape = (
            config.num_hidden_layers,
            slots,
            config.num_key_value_heads,
            size,
            config.head_dim,
        )
        # Zeros, because nothing times what memory happens to hold need not be nothing.
        self.keys = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.values = torch.zeros_like(self.keys)
        self.fp8 = torch_fp8.has_fp8_cache(config)

    def window(self, slots: slice, positions: torch.Tensor, length: int) -> "_Window":
        return _Window(self, slots, positions, length)


class _Window:
    """The part of the cache that a pass writes to and reads: the first `length` positions."""

    def __init__(self, cache: _Cache, slots: slice, positions: torch.Tensor, length: int) -> None:
        device = positions.device
        self._cache = cache
        self._slots = slots
        self._rows = torch.arange(len(positions), device=device)[:, None]
        self._positions = positions
        self._length = length
        self.mask = torch.arange(length, device=device) <= positions[:, None, :, None]
        """What each id may look at: (slot, 1, id, position)."""

    def store(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put in what is new, (slot, head, id, dimension), and return all there is."""
        found = []
        for table, new in ((self._cache.keys, key), (self._cache.values, value)):
            rows = table[layer, self._slots]
            kept = torch_fp8.rounded(new) if self._cache.fp8 else new
            rows[self._rows, :, self._positions] = kept.transpose(1, 2)
            found.append(rows[:, :, : self._length])
        return found[0], found[1]


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    slot_cache: _Window,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, as transformers calls it."""
    layer: Any = module.layer_idx
    keys, values = slot_cache.store(layer, key, value)
    attended = functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=slot_cache.mask, scale=scaling, enable_gqa=True
    )
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, _attend)
