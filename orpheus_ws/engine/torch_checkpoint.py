"""An Orpheus checkpoint in Hugging Face's format: is it one, its voices, tokenizer and model.

Rule: what is wrong with a directory or a device is a `StartupError` that says what to do, and is found
before anything of a model is loaded where that can be. The tokenizer is left without its control
tokens, so that no text can become one.
"""

from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from orpheus_ws import tokens
from orpheus_ws.engine import torch_fp8
from orpheus_ws.errors import StartupError

MANIFEST: Final = "manifest.json"
"""A file beside the model that may list its voices: `{"voices": ["tara", "leah"]}`."""

_NAMES: Final = {tokens.BEGIN_OF_TEXT: "<|begin_of_text|>", tokens.END_OF_TURN: "<|eot_id|>"}
"""Control ids that prompts have, and what Llama 3's tokenizer calls them."""


def check_config(folder: str, context: int) -> None:
    """Raise `StartupError` unless `folder` has the configuration of an Orpheus model.

    `context` is how many ids it is to read at once.
    """
    config = _read(folder, "config.json")
    architectures = config.get("architectures")
    if architectures != ["LlamaForCausalLM"]:
        raise StartupError(
            f"the checkpoint in {folder!r} is not a LlamaForCausalLM: set engine.options.model to "
            "an Orpheus checkpoint"
        )
    vocabulary = config.get("vocab_size")
    if not isinstance(vocabulary, int) or vocabulary < tokens.AUDIO_END:
        raise StartupError(
            f"the checkpoint in {folder!r} has a vocabulary of {vocabulary!r}, and Orpheus's ids go "
            f"up to {tokens.AUDIO_END - 1}: give a model that was trained for speech"
        )
    if "quantization_config" in config and not torch_fp8.is_fp8(config["quantization_config"]):
        raise StartupError(
            f"the checkpoint in {folder!r} is quantized, and not to FP8 by ModelOpt, which is all that "
            "this engine runs: give the checkpoint that it was made from"
        )
    limit = config.get("max_position_embeddings")
    if isinstance(limit, int) and context > limit:
        raise StartupError(f"the model reads {limit} ids: lower engine.options.context to that")


def check_device(device: str) -> None:
    """Raise `StartupError` unless torch can use the device."""
    try:
        torch.empty(0, device=device)
    except Exception as error:
        # torch raises an AssertionError, among others.
        raise StartupError(
            f"torch cannot use the device {device!r} ({type(error).__name__}): set "
            "engine.options.device to one that it sees, such as 'cpu' or 'cuda'"
        ) from error


def read_voices(folder: str) -> tuple[str, ...]:
    """The voices that the manifest lists, or the released model's. Raises `StartupError`."""
    if not Path(folder, MANIFEST).exists():
        return tokens.VOICES
    voices = _read(folder, MANIFEST).get("voices", list(tokens.VOICES))
    if not (isinstance(voices, list) and voices and all(_is_name(voice) for voice in voices)):
        raise StartupError(
            f"`voices` in {Path(folder, MANIFEST)} must be a list of names, at least one"
        )
    return tuple(voices)


def load_tokenizer(folder: str) -> Tokenizer:
    """The part of the tokenizer that reads text: it gives ids below 128 000 and no others.

    Raises `StartupError`.
    """
    content = _read(folder, "tokenizer.json")
    try:
        named = {token["id"]: token["content"] for token in content["added_tokens"]}
        # With them it would find `<custom_token_9>` in a text, also with "special tokens" disabled if
        # Orpheus's were added as ordinary ones.
        content |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        tokenizer = Tokenizer.from_buffer(msgspec.json.encode(content))
        largest = max(content["model"]["vocab"].values())
    except Exception as error:
        # The library raises plain exceptions.
        raise StartupError(
            f"the tokenizer in {folder!r} cannot be loaded ({type(error).__name__}): download its "
            "tokenizer.json again"
        ) from error
    if any(named.get(token) != name for token, name in _NAMES.items()):
        raise StartupError(
            f"the tokenizer in {folder!r} is not Llama 3's with Orpheus's ids: give the "
            "tokenizer.json that was published with the model"
        )
    if largest >= tokens.FIRST_SPECIAL_ID:
        raise StartupError(
            f"the tokenizer in {folder!r} has text ids among the control ids, from "
            f"{tokens.FIRST_SPECIAL_ID}: give the tokenizer.json that was published with the model"
        )
    return tokenizer


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
            f"the model in {folder!r} cannot be put on {device!r} ({type(error).__name__}): set "
            "engine.options.device to one that has room for it, or engine.options.dtype to bfloat16"
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


def _read(folder: str, name: str) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(Path(folder, name).read_bytes())
    except OSError as error:
        raise StartupError(
            f"no {name} can be read in {folder!r} ({error.strerror}): set engine.options.model to "
            "the directory of an Orpheus checkpoint, with its tokenizer"
        ) from error
    except msgspec.DecodeError as error:
        raise StartupError(f"{Path(folder, name)} is not valid JSON: download it again") from error
    if not isinstance(content, dict):
        raise StartupError(f"{Path(folder, name)} is not a JSON object: download it again")
    return content


def _is_name(voice: object) -> bool:
    return isinstance(voice, str) and bool(voice.strip())
