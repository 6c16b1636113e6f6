"""What an installation brings: exactly what the lock says, under known licences, and no more than it needs."""

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.licences import faults, needed
from tests.locks import LOCKS, ROOT, pins

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOOLS = {"pip", "setuptools"}
"""What a new environment has by itself."""
IMPORTED = """
import sys
import orpheus_ws.client, orpheus_ws.server
print(sorted({"torch", "snac", "transformers"} & {name.partition(".")[0] for name in sys.modules}))
"""
CLIENT = IMPORTED.replace(", orpheus_ws.server", "").replace('"transformers"', '"numpy"')


def run(*command: str | Path) -> str:
    """What a command says; it must succeed."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(params=LOCKS, scope="module")
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A lock's name, and the Python of an environment with what is in it and this package."""
    name: str = request.param
    folder = tmp_path_factory.mktemp(name) / "venv"
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--require-hashes", "-r", ROOT / LOCKS[name])
    run(python, "-m", "pip", "install", "-q", "--no-deps", ROOT)
    return name, python


def test_a_locked_installation(installed: tuple[str, Path]) -> None:
    """With hashes required it installs, holds together, and is what the lock says and nothing else."""
    name, python = installed
    run(python, "-m", "pip", "check")
    listed = run(python, "-m", "pip", "list", "--format", "freeze").split()
    pairs = (each.split("==") for each in listed)
    there: dict[str, str] = {canonicalize_name(package): version for package, version in pairs}
    expected = pins(
        name, python=run(python, "-c", "import platform as p; print(p.python_version())")
    )
    assert there.keys() - TOOLS == expected.keys() | {"orpheus-ws"}
    assert {each: there[each] for each in expected} == expected


def test_a_locked_installation_needs_no_model(installed: tuple[str, Path]) -> None:
    """Client and server are imported without torch, and the client without numpy."""
    _, python = installed
    assert run(python, "-c", IMPORTED) == "[]\n"
    assert run(python, "-c", CLIENT) == "[]\n"


def test_licences_of_a_locked_installation(installed: tuple[str, Path]) -> None:
    """All that it brings may be used by anybody for anything, or is an exception with a reason."""
    _, python = installed
    assert faults(str(python), needed(str(python))) == []


def test_licences_of_every_extra() -> None:
    """So may what the extras bring, as far as it is installed here."""
    assert faults(sys.executable, needed(sys.executable)) == []
