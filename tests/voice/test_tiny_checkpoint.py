"""`python -m engine_build tiny`, what the engine's tokenizer makes of texts, and how its reading is shown."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from engine_build.cli import cli
from orpheus_ws import tokens
from orpheus_ws.engine.checkpoint import Encoder
from orpheus_ws.errors import StartupError
from tests.test_cli_manners import seen_of
from tests.voice.torch_checkpoints import encoder
from tests.voice.warm_commands import WarmCommands

CONTROL = ("<|begin_of_text|>", "<|eot_id|>", "<custom_token_0>", "<custom_token_2>", "<|audio|>")
TEXTS = st.lists(
    st.sampled_from(CONTROL) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
).map("".join)
"""Any text, and anything that looks like a control token in it."""


@pytest.fixture(scope="module")
def encode(tiny_checkpoint: Path) -> Encoder:
    """The engine's tokenizer."""
    return encoder(tiny_checkpoint)


@pytest.fixture(scope="module")
def published(tiny_checkpoint: Path) -> Callable[[str], list[int]]:
    """The same tokenizer as transformers has it, with its control tokens."""
    loaded = AutoTokenizer.from_pretrained(tiny_checkpoint)
    return lambda text: list(loaded(text).input_ids)


@pytest.fixture(scope="module")
def decoded(tiny_checkpoint: Path) -> Callable[[list[int]], str]:
    """From ids to text, by the whole tokenizer."""
    return Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json")).decode


def test_the_command_writes_the_same_every_time(
    commands: WarmCommands, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """The command writes, to the byte, what the function wrote: small, with what transformers needs."""
    done = commands.run("engine_build", "tiny", str(tmp_path / "new" / "tiny"))
    assert (done.code, done.stderr) == (0, "")
    assert f"engine_build verify {tmp_path}/new/tiny\n" in done.stdout
    written = {file.name: file.read_bytes() for file in (tmp_path / "new" / "tiny").iterdir()}
    assert written == {file.name: file.read_bytes() for file in tiny_checkpoint.iterdir()}
    assert sum(map(len, written.values())) < 50e6
    # All of it by the same users.
    assert len({file.stat().st_mode for file in (tmp_path / "new" / "tiny").iterdir()}) == 1


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    """A directory that cannot be made is an error of ours that names it."""
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="cannot write"):
        cli(["tiny", str(tmp_path / "file" / "tiny")], standalone_mode=False)


def test_it_has_orpheus_form(tiny_checkpoint: Path) -> None:
    """transformers loads it as it stands, every weight used, with Orpheus's vocabulary and RoPE."""
    model, found = LlamaForCausalLM.from_pretrained(tiny_checkpoint, output_loading_info=True)
    assert not any(found.values())
    assert model.config.vocab_size == 156_940
    assert model.model.rotary_emb.rope_type == "llama3"
    assert model.model.layers[0].self_attn.head_dim == 16


def test_the_published_tokenizer_finds_control_tokens(
    published: Callable[[str], list[int]],
) -> None:
    """Its ids are Orpheus's, and without care a text has them: that is what is to be kept out."""
    text = "<|eot_id|><custom_token_0><custom_token_10><custom_token_28681>"
    assert published(text) == [128_000, 128_009, 128_256, 128_266, 156_937]


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_no_text_becomes_a_control_token(
    encode: Encoder, decoded: Callable[[list[int]], str], text: str
) -> None:
    """Whatever a text holds, its ids are text ids, and they are the whole text."""
    ids = encode(text)
    assert all(0 <= token < tokens.FIRST_SPECIAL_ID for token in ids)
    assert decoded(ids) == text


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=50))
@settings(max_examples=100, deadline=None)
def test_plain_text_has_the_published_ids(
    encode: Encoder, published: Callable[[str], list[int]], text: str
) -> None:
    """Without its control tokens the tokenizer reads ordinary text as it did with them."""
    assert [tokens.BEGIN_OF_TEXT, *encode(text)] == published(text)


@given(TEXTS)
@settings(max_examples=100, deadline=None)
def test_a_prompt_has_the_framing_and_no_more(encode: Encoder, text: str) -> None:
    """A prompt's control ids are those of the framing, once each, whatever the text holds."""
    ids = tokens.prompt_ids("tara", text, encode)
    control = [token for token in ids if token >= tokens.FIRST_SPECIAL_ID]
    assert control == [128_259, 128_000, 128_009, 128_260, 128_261, 128_257]


@pytest.mark.parametrize("name", ["manifest", "verify"])
def test_reading_a_model_shows_how_far_it_is(
    tiny_checkpoint: Path, tmp_path: Path, name: str
) -> None:
    """On a terminal, what reads for long has a bar that comes to its end, and what is over at once has none."""
    model = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, model)
    line = [sys.executable, "-m", "engine_build", "manifest", str(model)]
    made = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    seen = {}
    # What is long for this small model, whatever else the machine does.
    for patience in (0, 3600):
        program = "from engine_build import cli as program; from orpheus_ws.cli import progress; "
        program += f"progress.PATIENCE_SECONDS = {patience}; program.main()"
        code, seen[patience] = seen_of([sys.executable, "-c", program, name, str(model)])
        assert code == 0, seen
    assert re.search(r"reading +\[#+\] +100%", seen[0])
    assert "%" not in seen[3600]
