"""Fuzzing: every target for some seconds, guided by what inputs reach, and proof that faults are found."""

from pathlib import Path

import pytest

from tests.fuzz.__main__ import look
from tests.fuzz.targets import CORPUS, PLANTED, names

pytestmark = pytest.mark.slow

SECONDS = 5
PLANTED_SECONDS = 120
"""At most: it is found within one on an idle machine."""


@pytest.mark.parametrize("name", names())
def test_no_input_is_a_fault(name: str, tmp_path: Path) -> None:
    """Starting from the inputs written by hand, nothing is found that does not hold."""
    found = look(name, SECONDS, tmp_path)
    assert "fault" not in found, found["traceback"]
    assert found["executions"] > len(list((CORPUS / name).iterdir()))
    assert found["inputs"] > 0


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    """Of a target that fails for four certain bytes and has no inputs, they are found and kept."""
    found = look(PLANTED, PLANTED_SECONDS, tmp_path)
    assert "Planted" in found["traceback"]
    assert Path(found["fault"]).read_bytes().startswith(b"fuzz")
