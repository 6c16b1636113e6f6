"""Under which licences the packages are that serving needs: `python -m tests.licences [PYTHON]`.

Rule: `pip-licenses` says what a package's licence is, and `requirements/licences.toml` which may be.
Tools of development are not looked at: nobody gets them from us.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
EXTRAS: Final = ("http", "codec", "pocket", "torch", "otel", "bench")
"""Those that run in an environment that is not somebody else's image."""
_NEEDED: Final = """
import json, sys
from importlib.metadata import PackageNotFoundError, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
open_, seen = [("orpheus-ws", extra) for extra in ("", *sys.argv[1:])], set()
while open_:
    name, extra = each = open_.pop()
    if each in seen:
        continue
    try:
        wanted = [Requirement(text) for text in requires(name) or ()]
    except PackageNotFoundError:
        continue
    seen.add(each)
    for one in wanted:
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            open_ += [(canonicalize_name(one.name), inner) for inner in ("", *one.extras)]
print(json.dumps(sorted({name for name, _ in seen})))
"""


def needed(python: str, extras: Iterable[str] = EXTRAS) -> list[str]:
    """Names of the packages in an environment that ours needs there, itself included."""
    ran = subprocess.run([python, "-c", _NEEDED, *extras], capture_output=True, check=True)
    found: list[str] = json.loads(ran.stdout)
    return found


def faults(python: str, packages: Iterable[str]) -> list[str]:
    """A line for each of these packages whose licence may not be."""
    rules = tomllib.loads((ROOT / "requirements" / "licences.toml").read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "piplicenses", "--python", python, "--format", "json"]
    ran = subprocess.run(
        [*command, "--with-system", "--packages", *packages], capture_output=True, check=True
    )
    found = {canonicalize_name(each["Name"]): each["License"] for each in json.loads(ran.stdout)}
    missing = set(packages) - found.keys()
    assert not missing, f"nothing is known of {sorted(missing)}"
    return [
        f"{name}: {licence}"
        for name, licence in sorted(found.items())
        if name not in rules["exceptions"] and not permitted(licence, rules)
    ]


def permitted(licence: str, rules: dict[str, Any]) -> bool:
    """Whether an expression of SPDX's, or a list of classifiers, asks for nothing that is not allowed."""
    if " OR " in licence:
        return any(permitted(part.strip("() "), rules) for part in licence.split(" OR "))
    parts = re.split(r" AND |;", licence)
    return all(rules["spelt"].get(part.strip(), part.strip()) in rules["allowed"] for part in parts)


@click.command()
@click.argument("python", default=sys.executable)
def main(python: str) -> None:
    """Name what is installed in the environment of PYTHON and must not be needed."""
    packages = needed(python)
    found = faults(python, packages)
    for line in found:
        click.echo(line)
    click.echo(f"{len(packages)} packages, {len(found)} under licences that are not allowed")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
