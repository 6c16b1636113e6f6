"""An Orpheus checkpoint in Hugging Face's format: what it is, and whether it is one.

Rule: the engines that run checkpoints and `engine_build` ask the same questions, here, without torch
and without reading the weights. Everything that is wrong is found at once, each fault in one line that
says what to do. The tokenizer is loaded without its added tokens, so that no text can become one.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from tokenizers import Tokenizer

from orpheus_ws import manifest as manifests
from orpheus_ws import tokens
from orpheus_ws.engine.checkpoint_files import Told, compare, nobody
from orpheus_ws.engine.checkpoint_weights import Shape, examine_weights
from orpheus_ws.errors import StartupError, unreadable
from orpheus_ws.manifest import Manifest, Quantization

EngineName = Literal["torch", "trtllm"]
Compared = Literal["nothing", "headers", "everything"]
Encoder = Callable[[str], list[int]]
Count = Annotated[int, Meta(ge=1)]

_ARCHITECTURE: Final = "LlamaForCausalLM"
_LARGEST_PADDING: Final = 64
"""Rows that are added to the vocabulary so that its size is a round number; 64 is the most in use."""
_ORPHEUS: Final = "give the directory of an Orpheus checkpoint"
_AGAIN: Final = "download the checkpoint again, or make it again"
_SAMPLE: Final = "tara: Größe, naïve – 東京 🎉 1234!\n<|eot_id|><custom_token_10>"
"""What any tokenizer of the model must be able to say, and must not take for control ids."""

_T = TypeVar("_T")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `config.json` that matter."""

    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    max_position_embeddings: Count
    head_dim: Count | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    quantization_config: dict[str, Any] | None = None
    transformers_version: str | None = None

    @property
    def head(self) -> int:
        """Dimensions of an attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


class Checkpoint(NamedTuple):
    """One that nothing is wrong with."""

    directory: Path
    config: Config
    quantization: Quantization
    weight_bytes: int
    encode: Encoder
    """From text to ids that are text's: below 128 000, and no others."""
    manifest: Manifest | None

    @property
    def kv_values_per_token(self) -> int:
        """Keys and values of all layers."""
        return (
            2 * self.config.num_hidden_layers * self.config.num_key_value_heads * self.config.head
        )


class Examined(NamedTuple):
    """What there is, if it is whole, and everything that is wrong."""

    checkpoint: Checkpoint | None
    faults: list[str]


def open_checkpoint(model: str | None, engine: EngineName) -> Checkpoint:
    """The checkpoint in the directory `model`. Blocking.

    Raises `StartupError` with the first of its faults.
    """
    if not model:
        raise StartupError(
            f"engine {engine!r} needs a checkpoint: set engine.options.model to its directory"
        )
    checkpoint, faults = examine(Path(model))
    if checkpoint is None or faults:
        raise StartupError(faults[0])
    return checkpoint


def examine(folder: Path, *, compared: Compared = "headers", told: Told = nobody) -> Examined:
    """Look at everything but the weights themselves. Blocking.

    Of the weights the headers are read. `compared` says how much of the files is compared with the
    manifest, if there is one (see `checkpoint_files.compare`), and `told` hears of what of them was read.
    """
    if fault := _folder_fault(folder):
        return Examined(None, [fault])
    faults: list[str] = []
    config = _try(faults, lambda: read_config(folder))
    quantization = None
    weight_bytes = 0
    if config is not None:
        faults += _config_faults(folder, config)
        quantization = _try(faults, lambda: _read_quantization(folder, config))
    encode = _try(faults, lambda: load_encoder(folder))
    if config is not None and quantization is not None:
        fp8 = quantization.weights == "FP8"
        weights = examine_weights(folder, _expected(config), _excluded(folder) if fp8 else None)
        weight_bytes = weights.size
        faults += weights.faults
    manifest = _try(faults, lambda: read_manifest(folder)) if compared != "nothing" else None
    if manifest is not None:
        differences = compare(folder, manifest, whole=compared == "everything", told=told)
        # A file that cannot be read is found by both.
        faults += [fault for fault in differences if fault not in faults]
        if quantization is not None and manifest.quantization != quantization:
            faults.append(
                f"the manifest in {str(folder)!r} has another quantisation than the checkpoint: "
                "make it again with `python -m engine_build manifest`"
            )
    if config is None or quantization is None or encode is None or faults:
        return Examined(None, faults)
    return Examined(
        Checkpoint(folder, config, quantization, weight_bytes, encode, manifest), faults
    )


def _folder_fault(folder: Path) -> str | None:
    """What keeps this user from looking into the directory, if anything does."""
    try:
        there = stat.S_ISDIR(folder.stat().st_mode)
        allowed = os.access(folder, os.R_OK | os.X_OK)
    except PermissionError:
        there, allowed = True, False
    except (OSError, ValueError):
        there, allowed = False, True
    if not there:
        return f"{str(folder)!r} is not a directory: {_ORPHEUS}"
    if not allowed:
        return (
            f"{str(folder)!r} cannot be read (Permission denied): let this user read it, and enter "
            "the directories that it is in"
        )
    return None


def _try(faults: list[str], read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except StartupError as error:
        faults.append(str(error))
        return None


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest beside the model, if there is one. Blocking. Raises `StartupError`."""
    path = folder / manifests.NAME
    return manifests.read(path) if path.exists() else None


# config.json --------------------------------------------------------------------------------------


def read_config(folder: Path) -> Config:
    """Read `config.json`. Blocking. Raises `StartupError` unless it is a Llama's."""
    content = read_object(folder, "config.json")
    if content.get("architectures") != [_ARCHITECTURE]:
        raise StartupError(
            f"the checkpoint in {str(folder)!r} is not a {_ARCHITECTURE}: {_ORPHEUS}"
        )
    try:
        return msgspec.convert(content, Config)
    except msgspec.ValidationError as error:
        where = manifests.describe_fault(error)
        raise StartupError(f"config.json in {str(folder)!r}: {where}; {_AGAIN}") from error


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object from a file. Blocking. Raises `StartupError`."""
    try:
        content = msgspec.json.decode((folder / name).read_bytes())
    except OSError as error:
        what = f"{str(folder / name)!r} cannot be read"
        if not (folder / name).is_file():
            what = f"no {name} can be read in {str(folder)!r}"
        why = unreadable(error, f"{_ORPHEUS}, with its tokenizer")
        raise StartupError(f"{what} {why}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StartupError(f"{str(folder / name)!r} is not valid JSON: {_AGAIN}") from error
    if not isinstance(content, dict):
        raise StartupError(f"{str(folder / name)!r} is not a JSON object: {_AGAIN}")
    return content


def _config_faults(folder: Path, config: Config) -> Iterator[str]:
    size = config.vocab_size
    # Rows beyond the ids are never chosen on purpose; they let a GPU multiply in whole blocks.
    padded = size % 8 == 0 and 0 < size - tokens.VOCABULARY < _LARGEST_PADDING
    if size != tokens.VOCABULARY and not padded:
        yield (
            f"the checkpoint in {str(folder)!r} has a vocabulary of {size}, and Orpheus's is "
            f"{tokens.VOCABULARY}, or padded to a multiple of 8 a little above: give a model that "
            "was trained for speech"
        )
    if config.num_attention_heads % config.num_key_value_heads:
        yield f"config.json in {str(folder)!r}: heads that cannot share keys; {_AGAIN}"
    yield from _rope_faults(folder, config)


def _rope_faults(folder: Path, config: Config) -> Iterator[str]:
    """transformers 5 writes `rope_parameters` alone, without which others take the defaults."""
    scaling, newer = config.rope_scaling or {}, config.rope_parameters or {}
    if config.rope_theta is None or not scaling:
        yield (
            f"config.json in {str(folder)!r} has no RoPE that every reader finds, so that every "
            "position would be wrong: give it `rope_theta` and `rope_scaling` as published "
            "(transformers 5 writes only `rope_parameters`; export with 4.57)"
        )
        return
    differs = newer.get("rope_theta", config.rope_theta) != config.rope_theta or any(
        scaling.get(key, newer[key]) != newer[key] for key in newer if key != "rope_theta"
    )
    if scaling.get("rope_type", scaling.get("type")) != "llama3" or differs:
        yield (
            f"config.json in {str(folder)!r} has not the RoPE of Llama 3, or two that differ: give "
            "it `rope_theta` and `rope_scaling` as published"
        )


# Quantisation -------------------------------------------------------------------------------------


def _read_quantization(folder: Path, config: Config) -> Quantization:
    """What both files say. Raises `StartupError` if they differ or no engine can run it."""
    stated = _section(folder)
    said = Quantization(
        weights=_name(stated.get("quant_algo")), kv_cache=_name(stated.get("kv_cache_quant_algo"))
    )
    again = config.quantization_config or {}
    cache = again.get("kv_cache_scheme")
    if isinstance(cache, Mapping):
        eight = cache.get("num_bits") == 8 and cache.get("type") == "float"
        cache = "FP8" if eight else "another"
    if said != Quantization(weights=_name(again.get("quant_algo")), kv_cache=_name(cache)):
        raise StartupError(
            f"hf_quant_config.json and quantization_config in config.json differ in {str(folder)!r}, "
            "or one is missing: copy both files from the export, or quantise the model again"
        )
    if {said.weights, said.kv_cache} - {"FP8", None}:
        raise StartupError(
            f"the checkpoint in {str(folder)!r} is quantized otherwise than to FP8, which no engine "
            "here was written for: quantise it with `python -m engine_build quantize`"
        )
    return said


def _section(folder: Path) -> dict[str, Any]:
    if not (folder / "hf_quant_config.json").exists():
        return {}
    section = read_object(folder, "hf_quant_config.json").get("quantization")
    if not isinstance(section, dict):
        raise StartupError(
            f"hf_quant_config.json in {str(folder)!r} has no `quantization`: copy it from the "
            "export, or quantise the model again"
        )
    return section


def _excluded(folder: Path) -> tuple[str, ...]:
    """Patterns of the modules that are not quantised."""
    excluded = _section(folder).get("exclude_modules") or []
    return tuple(map(str, excluded)) if isinstance(excluded, list) else ()


def _name(value: object) -> str | None:
    return None if value is None else str(value)


# Tensors ------------------------------------------------------------------------------------------


def _expected(config: Config) -> dict[str, Shape]:
    """Name and shape of every tensor that the architecture has."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head
    keys = config.num_key_value_heads * config.head
    linear = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    embedding = (config.vocab_size, hidden)
    found: dict[str, Shape] = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        found["lm_head.weight"] = embedding
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}{norm}.weight"] = (hidden,)
        for name, shape in linear.items():
            found[f"{prefix}{name}.weight"] = shape
            if config.attention_bias if name.startswith("self_attn") else config.mlp_bias:
                found[f"{prefix}{name}.bias"] = shape[:1]
    return found


# The tokenizer ------------------------------------------------------------------------------------


def load_encoder(folder: Path) -> Encoder:
    """The part of the tokenizer that reads text, as a function. Blocking. Raises `StartupError`.

    Half a surrogate pair, which JSON can hold, is read as a question mark.
    """
    content = read_object(folder, "tokenizer.json")
    try:
        named = {token["id"]: token["content"] for token in content["added_tokens"]}
        # With them it would find `<custom_token_9>` in a text, also with "special tokens" disabled if
        # Orpheus's were added as ordinary ones.
        content |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        tokenizer = Tokenizer.from_buffer(msgspec.json.encode(content))
        largest = max(content["model"]["vocab"].values())
        sample = tokenizer.encode(_SAMPLE, add_special_tokens=False).ids
        spoken = tokenizer.decode(sample, skip_special_tokens=False)
    except Exception as error:
        # The library raises plain exceptions.
        raise StartupError(
            f"the tokenizer in {str(folder)!r} cannot be loaded ({type(error).__name__}): download "
            "its tokenizer.json again"
        ) from error
    _check_tokenizer(folder, named, largest, unchanged=spoken == _SAMPLE)

    def encode(text: str) -> list[int]:
        whole = text.encode(errors="replace").decode()
        ids: list[int] = tokenizer.encode(whole, add_special_tokens=False).ids
        return ids

    return encode


def _check_tokenizer(
    folder: Path, named: Mapping[int, str], largest: int, *, unchanged: bool
) -> None:
    """Of its control tokens, its largest id of text, and what comes back of a text."""
    if any(named.get(token) != name for token, name in tokens.NAMES.items()):
        raise StartupError(
            f"the tokenizer in {str(folder)!r} is not Llama 3's with Orpheus's ids: give the "
            "tokenizer.json that was published with the model"
        )
    if largest >= tokens.FIRST_SPECIAL_ID:
        raise StartupError(
            f"the tokenizer in {str(folder)!r} has text ids among the control ids, from "
            f"{tokens.FIRST_SPECIAL_ID}: give the tokenizer.json that was published with the model"
        )
    if not unchanged:
        raise StartupError(
            f"the tokenizer in {str(folder)!r} loses text: give the tokenizer.json that was "
            "published with the model"
        )
