"""Virtual environments of other people's clients, made once per machine.

Rule: an environment is a function of its file in `tests/clients/environments` and of Python, and is
kept outside the tree, where a fresh clone finds it again.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FILES: Final = ROOT / "tests" / "clients" / "environments"


def cache() -> Path:
    """Where environments are kept: about a gigabyte in all."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "orpheus-ws" / "clients"


def python_of(environment: str) -> Path:
    """The Python of an environment, which is made if it is not there yet: a minute of pip."""
    requirements = FILES / f"{environment}.txt"
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache() / f"{environment}-{key}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Others may run these tests at the same time.
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder / "complete"
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            subprocess.run(
                [python, *install, "--requirement", requirements], capture_output=True, check=True
            )
            complete.touch()
    return python


def version_of(environment: str, package: str) -> str:
    """The version of a package in an environment."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    said = subprocess.run(
        [python_of(environment), "-c", code], capture_output=True, text=True, check=True
    )
    return said.stdout.strip()
