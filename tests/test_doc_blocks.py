"""Every block of code on every page: what can run here runs, and what cannot says so and is checked.

A Python block below a comment `<!-- not run: REASON -->` needs what is not here; it must be Python all
the same. Of shell blocks the grammar is checked, and of our own commands every option and value.
"""

import ast
import asyncio
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import pytest

import engine_build.cli
from orpheus_ws import cli, config
from tests import harness
from tests.pages import ROOT
from tests.test_docs import PAGES

PROGRAMS = {"orpheus-ws": cli.cli, "python -m engine_build": engine_build.cli.cli}
URL = "ws://127.0.0.1:8765/v1/tts"


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    language: str
    source: str
    excuse: str | None
    """Why it is not run."""


def blocks(*languages: str) -> list[Block]:
    """All blocks in these languages."""
    fence = re.compile(
        r"^(?:<!-- not run: (?P<excuse>.*?) -->\n)?```(?P<language>\w+)\n(?P<source>.*?)^```",
        re.MULTILINE | re.DOTALL,
    )
    return [
        Block(page, found["language"], found["source"], found["excuse"])
        for page in PAGES
        for found in fence.finditer(page.read_text(encoding="utf-8"))
        if found["language"] in languages
    ]


def identified(found: list[Block]) -> list[object]:
    """Parameters of a test, by page and number."""
    return [
        pytest.param(block, id=f"{block.page.stem}-{number}") for number, block in enumerate(found)
    ]


def test_every_block_says_its_language() -> None:
    """No block is without one, or in one that nobody checks."""
    checked = {"python", "sh", "toml", "json", "text"}
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(fences[::2]) <= checked, page.name
        assert set(fences[1::2]) <= {""}, page.name


@pytest.mark.parametrize("block", identified([b for b in blocks("python") if b.excuse is None]))
async def test_python_blocks_run(block: Block, tmp_path: Path) -> None:
    """Saved as a file and run beside a server, each ends well."""
    file = tmp_path / "example.py"
    async with harness.server() as started:
        file.write_text(block.source.replace(URL, started.address.url), encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            file,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


@pytest.mark.parametrize("block", identified([b for b in blocks("python") if b.excuse]))
def test_python_blocks_that_are_not_run(block: Block) -> None:
    """Each says why, and is Python: it may await, as in the middle of a program."""
    assert len((block.excuse or "").split()) >= 3
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    assert compile(block.source, block.page.name, "exec", flags)


@pytest.mark.parametrize("block", identified(blocks("toml")))
def test_configurations_are_accepted(block: Block) -> None:
    """Every TOML block is a configuration whose keys there are, or else a file of keys."""
    content = tomllib.loads(block.source)
    if set(content) & set(config.Config.__struct_fields__):
        assert msgspec.convert(content, config.Config)
    else:
        assert all("keys" in table for table in content.values())


@pytest.mark.parametrize("block", identified(blocks("json")))
def test_json_parses(block: Block) -> None:
    """A JSON block is a document, or one in each line."""
    for line in block.source.splitlines():
        assert json.loads(line)


def lines(block: Block) -> list[list[str]]:
    """Commands of a shell block, in words."""
    # A comment's end is that of its line, which the lexer would swallow with it.
    joined = re.sub(r"(?m)(?:^|\s)#.*$", "", block.source.replace("\\\n", " "))
    whole = shlex.shlex(joined, posix=True, punctuation_chars="|<>&;()\n")
    whole.whitespace = " \t"
    whole.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in whole:
        if re.fullmatch(r"[\n|&;()]+", word):
            found.append([])
        else:
            found[-1].append(word)
    return [_ours(words) for words in found if words]


def _ours(words: list[str]) -> list[str]:
    """A command without the variables before it, the folder it is in, and where its output goes."""
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    if words:
        words = [re.sub(r"^\S*bin/(?=python|pip|orpheus-ws)", "", words[0]), *words[1:]]
    ends = [n for n, word in enumerate(words) if word in ("<", ">")]
    return words[: ends[0]] if ends else words


@pytest.mark.parametrize("block", identified(blocks("sh")))
def test_shell_blocks(block: Block) -> None:
    """Each is shell; our programs take what they are told; targets, extras and modules are there."""
    checked = subprocess.run(
        ["bash", "-n"], input=block.source, text=True, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    for words in lines(block):
        _check(words)


def _check(words: list[str]) -> None:
    text = " ".join(words)
    for program, group in PROGRAMS.items():
        if text.startswith(f"{program} "):
            parse(group, words[len(program.split()) :])
            return
    match words:
        case ["make", target, *_]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        case ["pip", "install", *_, package] if package.startswith("."):
            file = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
            known = tomllib.loads(file)["project"]["optional-dependencies"]
            assert set(re.findall(r"\w+", package)) <= set(known)
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None, module
        case _:  # programs of others
            pass


def parse(group: click.Command, words: list[str]) -> None:
    """Have click read a command line of ours; nothing is run."""
    while isinstance(group, click.Group):
        group = group.commands[words[0]]
        words = words[1:]
    group.make_context("x", list(words))


def test_what_is_quick_runs() -> None:
    """Commands that only compute are run: every `engine_build plan` on the pages."""
    found = [
        tuple(words)
        for block in blocks("sh")
        for words in lines(block)
        if words[:4] == ["python", "-m", "engine_build", "plan"]
    ]
    assert len(set(found)) >= 4
    for words in set(found):
        subprocess.run(
            [sys.executable, *words[1:]], check=True, capture_output=True, timeout=60, cwd=ROOT
        )
