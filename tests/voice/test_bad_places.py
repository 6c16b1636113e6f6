"""Files that this user may not read and disks that are full, as a user meets them: one line each."""

from pathlib import Path

import pytest

from orpheus_ws import manifest as manifests
from tests.voice.test_bad_models import ENGINES, GPU, assert_refused, serve
from tests.voice.torch_checkpoints import cut_short
from tests.voice.warm_commands import WarmCommands

UNPRIVILEGED = """
import ctypes
# Root, as whom tests may run, gives up what lets it read and write everything: capset, version 3.
ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
"""
FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)
"""
"""No file may become larger: an error of the system, as when a disk is full."""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name", [".", "config.json", "tokenizer.json", "model.safetensors", manifests.NAME]
)
def test_what_may_not_be_read(
    commands: WarmCommands, tiny_checkpoint: Path, tmp_path: Path, engine: str, name: str
) -> None:
    """A model that is there and may not be read is no reason to download it again."""
    model = tmp_path / "model"
    model.mkdir()
    cut_short(tiny_checkpoint, model, "config.json", 1.0)
    assert commands.run("engine_build", "manifest", str(model)).code == 0
    forbidden = model / name
    if forbidden.is_symlink():
        forbidden.unlink()
        forbidden.write_bytes((tiny_checkpoint / name).read_bytes())
    forbidden.chmod(0)
    prelude = f"{GPU}\n{UNPRIVILEGED}"
    assert_refused(serve(commands, engine, model, prelude=prelude), "let this user read it")
    verified = commands.run("engine_build", "verify", str(model), prelude=prelude)
    model.chmod(0o700)
    assert verified.code == 1
    (line,) = [line for line in verified.stderr.splitlines() if "(Permission denied)" in line]
    assert "let this user read it" in line


def test_a_directory_that_may_not_be_entered(
    commands: WarmCommands, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Also one above the model's, behind which nobody can say whether there is a model."""
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0)
    model = str(above / "model")
    refused = commands.run("engine_build", "manifest", model, prelude=UNPRIVILEGED)
    above.chmod(0o700)
    assert_refused(refused, "enter the directories that it is in")


def test_what_may_not_be_written(
    commands: WarmCommands, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A directory that only lets itself be read gets no checkpoint and no manifest."""
    model, empty = tmp_path / "model", tmp_path / "empty"
    for folder in (model, empty):
        folder.mkdir()
    cut_short(tiny_checkpoint, model, "config.json", 1.0)
    for folder, command, advice in (
        (empty, "tiny", "cannot write"),
        (model, "manifest", "let this user write"),
    ):
        before = sorted(folder.iterdir())
        folder.chmod(0o500)
        refused = commands.run("engine_build", command, str(folder), prelude=UNPRIVILEGED)
        assert_refused(refused, advice)
        assert sorted(folder.iterdir()) == before


def test_a_full_disk(commands: WarmCommands, tmp_path: Path) -> None:
    """A checkpoint that does not fit is said to be none."""
    refused = commands.run("engine_build", "tiny", str(tmp_path / "tiny"), prelude=FULL)
    assert_refused(refused, "cannot write")
