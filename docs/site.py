"""Builds the documentation site: `make site`, or `python -m docs.site FOLDER`.

Rule: the pages are the Markdown files of this folder as they are; a warning is an error. What lies
beside the folder and belongs to the site, the changelog and the guide for contributors, is put among
them for the build, with its links turned. Nothing is written but the site.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
CONFIGURATION: Final = ROOT / "zensical.toml"
BESIDE: Final = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages that lie in the root of the repository, and what they are called in the site."""
KINDS: Final = (".md", ".svg", ".png", ".py", ".html", ".css")
"""What a page may show: other files of the folder stay out."""
PROGRAMS: Final = ("generate.py", "capacity_tables.py", "site.py", "__init__.py")


class NotBuilt(Exception):
    """The builder found something wrong; what, it has said itself."""


def build(out: Path) -> None:
    """Build the site into `out`, which is replaced. Raises `NotBuilt`."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        _stage(folder)
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        # It says in colours what it found, also to those who are no terminal.
        environment = {**os.environ, "NO_COLOR": "1"}
        if subprocess.run(command, cwd=folder, env=environment, check=False).returncode:
            raise NotBuilt
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder / "site", out)


def _stage(folder: Path) -> None:
    """Lay out configuration, pages, and the package whose docstrings are read."""
    shutil.copy(CONFIGURATION, folder)
    pages, source = folder / "pages", folder / "source"
    for file in DOCS.rglob("*"):
        if file.suffix in KINDS and file.name not in PROGRAMS:
            target = pages / file.relative_to(DOCS)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    for name, page in BESIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        (pages / page).write_text(_from_the_root(text), encoding="utf-8")
    source.mkdir()
    (source / "orpheus_ws").symlink_to(ROOT / "orpheus_ws")


def _from_the_root(text: str) -> str:
    """A page of the root as one of this folder."""
    return re.sub(r"\]\(docs/", "](", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("folder", type=Path, help="Where to; what is there is replaced.")
    try:
        build(parser.parse_args().folder)
    except NotBuilt:
        sys.exit("docs.site: the builder found something wrong, see above")
