"""Builds the documentation site: `make site`, or `python -m docs.site FOLDER`.

Rule: the pages are the Markdown files of this folder as they are; a warning is an error. What lies
beside the folder and belongs to the site, the changelog and the guide for contributors, is put among
them for the build, with its links turned. Nothing is written but the site.
"""

import argparse
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
BESIDE: Final = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}
"""Pages that lie in the root of the repository, and what they are called in the site."""
KINDS: Final = (".md", ".svg", ".png", ".py", ".html", ".css")
"""What a page may show: other files of the folder stay out."""
PROGRAMS: Final = ("generate.py", "capacity_tables.py", "cli_pages.py", "site.py", "__init__.py")


EXAMPLE: Final = re.compile(r"^\[`docs/\S+`\]\((examples/\S+)\)$", re.MULTILINE)
LANGUAGES: Final = {".py": "python", ".html": "html"}


class NotBuilt(Exception):
    """The builder found something wrong; the message is what it said."""


def build(out: Path) -> None:
    """Build the site into `out`, which is replaced. Raises `NotBuilt`."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        _stage(folder)
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if built.returncode:
            raise NotBuilt(_plain(built.stdout + built.stderr))
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
            if file.suffix == ".md":
                target.write_text(_within(file.read_text(encoding="utf-8")), encoding="utf-8")
    for name, page in BESIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, lies in BESIDE.items():
            text = text.replace(f"]({other}", f"]({lies}")
        (pages / page).write_text(text, encoding="utf-8")
    source.mkdir()
    (source / "orpheus_ws").symlink_to(ROOT / "orpheus_ws")


def _within(text: str) -> str:
    """A page as it is in the site.

    Links to pages beside the folder lead to where those are; a link to an example that is a paragraph
    of its own is the example.
    """
    for name, page in BESIDE.items():
        text = text.replace(f"](../{name}", f"]({page}")
    return EXAMPLE.sub(lambda link: _code(link[1]), text)


def _code(name: str) -> str:
    content = (DOCS / name).read_text(encoding="utf-8")
    return f"```{LANGUAGES[Path(name).suffix]}\n{content}```"


def _plain(output: str) -> str:
    """What the builder says, without its colours and without the traceback that it ends with."""
    return re.sub(r"\x1b\[[\d;]*m", "", output.partition("Traceback (most recent call last)")[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("folder", type=Path, help="Where to; what is there is replaced.")
    try:
        build(parser.parse_args().folder)
    except NotBuilt as error:
        sys.exit(f"docs.site: the pages are not as they should be\n{error}")
