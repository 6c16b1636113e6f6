"""What `engine_build quantize` refuses before anything is loaded; tests/slow has what it does."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from engine_build import tiny
from engine_build.quantize import write
from orpheus_ws.errors import StartupError
from tests.voice.torch_checkpoints import cut_short, fp8, spoilt

QUANTISED = {"quant_method": "modelopt", "quant_algo": "FP8"}
DAMAGE: dict[str, tuple[str, dict[str, Any], str]] = {
    "another architecture": ("config.json", {"architectures": ["GPT2LMHeadModel"]}, "Llama"),
    "the vocabulary of Llama": ("config.json", {"vocab_size": 128_256}, "vocabulary of 128256"),
    "half quantised": ("config.json", {"quantization_config": QUANTISED}, "quantise"),
    "no rope_theta": ("config.json", {"rope_theta": None}, "rope_theta"),
    "no rope_scaling": ("config.json", {"rope_scaling": None}, "rope_scaling"),
    "a rope_scaling that is none": ("config.json", {"rope_scaling": "llama3"}, "rope_scaling"),
    "values of another kind": ("config.json", {"max_position_embeddings": "many"}, "again"),
    "another tokenizer": ("tokenizer.json", {"added_tokens": []}, "tokenizer.json"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where results are to appear, and do not."""
    made = tmp_path / "results"
    made.mkdir()
    yield made
    assert list(made.iterdir()) == []


@pytest.fixture
def _transformers_4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both keys are kept, as transformers 4 does it, whatever version is installed."""
    monkeypatch.setattr(LlamaConfig, "to_dict", lambda _: dict(tiny.CONFIG))


@pytest.mark.parametrize(("name", "changes", "advice"), DAMAGE.values(), ids=DAMAGE)
def test_a_checkpoint_that_is_none(
    tiny_checkpoint: Path,
    tmp_path: Path,
    folder: Path,
    name: str,
    changes: dict[str, Any],
    advice: str,
) -> None:
    """A checkpoint that does not fit is refused in one line, and nothing is written."""
    source = tmp_path / "source"
    source.mkdir()
    with pytest.raises(StartupError, match=advice) as caught:
        write(spoilt(tiny_checkpoint, source, name, **changes), folder / "out")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_is_quantised(
    tiny_checkpoint: Path, tmp_path: Path, folder: Path
) -> None:
    """It is to be made of the original."""
    source = tmp_path / "source"
    source.mkdir()
    with pytest.raises(StartupError, match="quantised already"):
        write(fp8(tiny_checkpoint, source), folder / "out")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_is_missing(
    tiny_checkpoint: Path, tmp_path: Path, folder: Path, name: str
) -> None:
    """A directory without it is no checkpoint."""
    source = tmp_path / "source"
    source.mkdir()
    cut_short(tiny_checkpoint, source, name, None)
    with pytest.raises(StartupError, match=name):
        write(source, folder / "out")


@pytest.mark.parametrize("lost", ["rope_theta", "rope_scaling"])
def test_a_transformers_that_loses_rope(
    tiny_checkpoint: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """A version that would write either of them not, or otherwise, is refused with what to install."""
    for value in (None, 10_000.0 if lost == "rope_theta" else {"rope_type": "default"}):
        written = tiny.CONFIG | {lost: value}
        monkeypatch.setattr(LlamaConfig, "to_dict", lambda _, written=written: written)
        with pytest.raises(StartupError, match=r"transformers>=4\.57,<5"):
            write(tiny_checkpoint, folder / "out")


@pytest.mark.usefixtures("_transformers_4")
def test_without_modelopt(
    tiny_checkpoint: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the library it says what to install, before it loads anything."""
    monkeypatch.setitem(sys.modules, "modelopt", None)
    with pytest.raises(StartupError, match=r"orpheus-ws\[quantize\]"):
        write(tiny_checkpoint, folder / "out")


@pytest.mark.usefixtures("_transformers_4")
def test_where_nothing_can_be_written(tiny_checkpoint: Path, tmp_path: Path, folder: Path) -> None:
    """A directory that has something in it is left as it is; one that cannot be made is named."""
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "precious").touch()
    with pytest.raises(StartupError, match="not empty"):
        write(tiny_checkpoint, taken)
    assert [file.name for file in taken.iterdir()] == ["precious"]
    for out in (taken / "precious", taken / "precious" / "out", folder / "none" / "out"):
        with pytest.raises(StartupError, match="cannot write"):
            write(tiny_checkpoint, out)


@pytest.mark.usefixtures("_transformers_4")
def test_what_else_is_wrong(tiny_checkpoint: Path, folder: Path) -> None:
    """A device that is not there and a list of prompts that is missing are found first."""
    with pytest.raises(StartupError, match="device 'cuda:9'"):
        write(tiny_checkpoint, folder / "out", device="cuda:9")
    with pytest.raises(StartupError, match="cannot read"):
        write(tiny_checkpoint, folder / "out", prompts=folder / "prompts")


@pytest.mark.parametrize(
    ("arguments", "code", "advice"),
    [
        (("none", "out"), 1, "is not a directory"),
        (("none", "out", "--calibration", "a", "--prompts", "b"), 2, "not both"),
    ],
)
def test_the_command_says_it_in_one_line(
    arguments: tuple[str, ...], code: int, advice: str
) -> None:
    """An error of ours is one line on stderr and exit code 1; wrong usage is 2."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "engine_build", "quantize", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert advice in done.stderr
    assert code == 2 or done.stderr.count("\n") == 1
