"""A tiny checkpoint in Orpheus's format, for engines, servers and tests without the real one.

Rule: everything around the weights is as published (ids, RoPE, file formats, a byte-level tokenizer
that parses control tokens unless it is told not to); the weights are random and a function of the seed,
but for the few that make it stop. They give end of speech a chance that grows with the share of speech
in all that was read, so that a text is spoken in noise for two to five ids for each of its prompt's.
"""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from orpheus_ws import tokens

VOCABULARY: Final = tokens.VOCABULARY
LAYERS: Final = 2
HIDDEN: Final = 64
INNER: Final = 128
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD: Final = HIDDEN // HEADS

CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    # As Llama 3.2 has it, under the names that transformers 4 and 5 and TensorRT-LLM all read.
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": tokens.BEGIN_OF_TEXT,
    "eos_token_id": tokens.END_OF_SPEECH,
    "torch_dtype": "bfloat16",
}

# What the hidden dimensions that are not random hold.
_STOP: Final = 0  # how much of what was read is text: 1 at the start, near -1 after much speech
_ONE: Final = 1  # 1 for every id
_TEXT: Final = 2  # 1 for text and control ids, -1 for audio ids

# End of speech has the logit -40 x - 8, with x in `_STOP`, over the root mean square of the hidden
# state (about 1.4); the best of 4096 random codes has about 8.
_STOP_SLOPE: Final = 40.0
_STOP_BIAS: Final = 8.0
# Gives the logits of a slot's codes a standard deviation of about 2: noise, but not uniform.
_HEAD_SCALE: Final = 0.25

# What the merges are learnt from; any text will do.
_SAMPLE: Final = (
    "tara: The quick brown fox jumps over the lazy dog, and then it sleeps in the warm sun.",
    "leo: Thank you for calling; how can I help you today? I would like to hear the weather.",
    "zoe: There is nothing that they could have said or done about the other thing, is there?",
)
_WORDS: Final = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write(folder: Path, *, seed: int = 0) -> None:
    """Write the checkpoint, about 28 MB, into `folder`, which is made. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    # `save_file` would let its maker alone read the file, and raises errors of its own.
    content = save(weights(seed), metadata={"format": "pt"})
    (folder / "model.safetensors").write_bytes(content)
    generation = {"bos_token_id": tokens.BEGIN_OF_TEXT, "eos_token_id": tokens.END_OF_SPEECH}
    described = {
        "config.json": CONFIG,
        "generation_config.json": generation | {"do_sample": True},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|eot_id|>",
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, written in described.items():
        (folder / name).write_text(json.dumps(written), encoding="utf-8")


def weights(seed: int) -> dict[str, torch.Tensor]:
    """The state of `LlamaForCausalLM`, in bfloat16."""
    chance = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(*shape, generator=chance) * scale

    state = {"model.embed_tokens.weight": _embedding(normal(VOCABULARY, HIDDEN, scale=1.0))}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        state[attention + "q_proj.weight"] = normal(HEADS * HEAD, HIDDEN, scale=0.2)
        state[attention + "k_proj.weight"] = normal(KV_HEADS * HEAD, HIDDEN, scale=0.2)
        state[attention + "v_proj.weight"] = normal(KV_HEADS * HEAD, HIDDEN, scale=0.2)
        state[attention + "o_proj.weight"] = normal(HIDDEN, HEADS * HEAD, scale=0.1)
        state[mlp + "gate_proj.weight"] = normal(INNER, HIDDEN, scale=0.1)
        state[mlp + "up_proj.weight"] = normal(INNER, HIDDEN, scale=0.1)
        state[mlp + "down_proj.weight"] = normal(HIDDEN, INNER, scale=0.1)
        # Nothing random writes into what is not random.
        state[attention + "o_proj.weight"][: _TEXT + 1] = 0.0
        state[mlp + "down_proj.weight"][: _TEXT + 1] = 0.0
        state[prefix + "input_layernorm.weight"] = torch.ones(HIDDEN)
        state[prefix + "post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    _measure_speech(state, "model.layers.0.self_attn.")
    state["model.norm.weight"] = torch.full((HIDDEN,), _HEAD_SCALE)
    state["model.norm.weight"][[_STOP, _ONE]] = 1.0
    return {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in state.items()}


def _embedding(rows: torch.Tensor) -> torch.Tensor:
    """Input and output embedding in one, of random `rows`."""
    rows[:, _STOP] = 0.0
    rows[:, _ONE] = 1.0
    rows[:, _TEXT] = 1.0
    rows[tokens.AUDIO_BASE : tokens.AUDIO_END, _TEXT] = -1.0
    # It is never read, only chosen.
    rows[tokens.END_OF_SPEECH] = 0.0
    rows[tokens.END_OF_SPEECH, [_STOP, _ONE]] = torch.tensor([-_STOP_SLOPE, -_STOP_BIAS])
    return rows


def _measure_speech(state: dict[str, torch.Tensor], attention: str) -> None:
    """Let the first head look at everything alike, and write the mean of `_TEXT` into `_STOP`."""
    state[attention + "q_proj.weight"][:HEAD] = 0.0
    state[attention + "v_proj.weight"][0] = 0.0
    state[attention + "v_proj.weight"][0, _TEXT] = 1.0
    state[attention + "o_proj.weight"][_STOP, 0] = 1.0


def tokenizer() -> dict[str, Any]:
    """The content of `tokenizer.json`: 128 000 text ids, then the control and audio ids."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_WORDS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    begin = ("<|begin_of_text|>", tokens.BEGIN_OF_TEXT)
    made.post_processor = processors.TemplateProcessing(
        single=f"{begin[0]} $A", pair=f"{begin[0]} $A {begin[0]}:1 $B:1", special_tokens=[begin]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, initial_alphabet=sorted(alphabet), show_progress=False
    )
    made.train_from_iterator(_SAMPLE, trainer)
    content: dict[str, Any] = json.loads(made.to_str())
    vocabulary = content["model"]["vocab"]
    # Ids that exist and that no merge leads to.
    for unused in range(len(vocabulary), tokens.FIRST_SPECIAL_ID):
        vocabulary[f"<unused {unused}>"] = unused
    content["added_tokens"] = [
        _added(token, name) for token, name in enumerate(_special_names(), tokens.FIRST_SPECIAL_ID)
    ]
    return content


def _special_names() -> list[str]:
    """Names of the ids from 128 000 on: Llama 3's 256, then Orpheus's."""
    named = {
        0: "begin_of_text",
        1: "end_of_text",
        4: "finetune_right_pad_id",
        6: "start_header_id",
        7: "end_header_id",
        8: "eom_id",
        9: "eot_id",
        10: "python_tag",
    }
    reserved = iter(range(256))
    names = [
        f"<|{named[n] if n in named else f'reserved_special_token_{next(reserved)}'}|>"
        for n in range(256)
    ]
    custom = VOCABULARY - tokens.FIRST_SPECIAL_ID - len(names)
    return names + [f"<custom_token_{n}>" for n in range(custom)]


def _added(token: int, name: str) -> dict[str, Any]:
    return {
        "id": token,
        "content": name,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        # Orpheus's were added as ordinary words, which "no special tokens" does not keep out.
        "special": name.startswith("<|"),
    }
