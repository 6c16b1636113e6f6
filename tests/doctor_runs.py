"""`orpheus-ws doctor` and `serve`, run as a user runs them, for tests that compare what they say."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

MAIN = "import sys; sys.argv[0] = 'orpheus-ws'; from orpheus_ws.cli import main; main()"


class Examined(NamedTuple):
    """What a doctor said: its exit code, its report, the checks by name, and all it printed."""

    code: int
    report: dict[str, Any]
    checks: dict[str, dict[str, str]]
    printed: str


def command(*arguments: str, prelude: str = "") -> list[str]:
    """The command line of `orpheus-ws`, after a line of Python of the test's own."""
    return [sys.executable, "-W", "ignore", "-c", f"{prelude}\n{MAIN}", *arguments]


def without(*modules: str) -> str:
    """A prelude that makes these modules impossible to import."""
    return f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def settings(*values: str) -> list[str]:
    """These values as options."""
    return [argument for value in values for argument in ("--set", value)]


WITHOUT_TORCH = without("torch")
"""Saves the second that importing it takes."""


def doctor(
    *arguments: str, prelude: str = WITHOUT_TORCH, environment: Mapping[str, str] | None = None
) -> Examined:
    """`doctor --json` to its end."""
    done = subprocess.run(
        command("doctor", "--json", *arguments, prelude=prelude),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    report = json.loads(done.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    return Examined(done.returncode, report, checks, done.stdout + done.stderr)


def serve_starts(*arguments: str) -> bool:
    """Whether `serve` announces itself with these arguments; it is stopped at once."""
    with subprocess.Popen(
        command("serve", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        announced = process.stdout.readline()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return bool(announced)
