"""The page of the command line, made of the commands themselves: part of `make docs`."""

import inspect
from collections.abc import Iterator
from typing import Final

import click

import engine_build.cli
from orpheus_ws import cli
from orpheus_ws.cli.exits import PROGRAM

INTRODUCTION: Final = """\
<!-- Made by `make docs` from the commands' own help: change it there. -->

# Command line

`orpheus-ws` does what a user or an operator needs, `python -m engine_build` prepares checkpoints. Each says
what is on this page with `--help`, and a group says what commands it has.

- What a program may read is on standard output, and nothing else: with `--json`, one JSON document.
- Standard error has what is for people: progress where it is a terminal, and what went wrong, in one line
  that says what to do.
- Colours are for terminals; none with `NO_COLOR=1`.
- How it ended is in the [exit code](operations.md#exit-codes).
- `orpheus-ws completion SHELL` prints what bash, zsh or fish need to complete commands and options:
  `eval "$(orpheus-ws completion bash)"` in `~/.bashrc` is enough.
"""


def cli_page() -> str:
    """`docs/cli.md`."""
    page = [INTRODUCTION]
    groups = ((PROGRAM, cli.cli), ("python -m engine_build", engine_build.cli.cli))
    for name, group in groups:
        for context in commands(group, name):
            page += _command(context)
    return "\n".join(page)


def commands(command: click.Command, name: str) -> Iterator[click.Context]:
    """The commands of a group and of those below, each as it is called; groups themselves are left out."""
    yield from _below(command, click.Context(command, info_name=name))


def _below(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    if not isinstance(command, click.Group):
        yield context
        return
    for name, below in command.commands.items():
        yield from _below(below, click.Context(below, info_name=name, parent=context))


def _command(context: click.Context) -> Iterator[str]:
    command = context.command
    yield f"## `{context.command_path}`\n"
    yield _text(command.help or "")
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    rows = [
        tuple(_cell(text) for text in record)
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context))
        and record[1]
        and "--help" not in record[0]
    ]
    if rows:
        yield "| option | meaning |\n| --- | --- |"
        yield "".join(
            f"| `{option}` | {meaning.replace('[', chr(92) + '[')} |\n" for option, meaning in rows
        )
    lines = (command.epilog or "").splitlines()[2:]
    yield "```sh\n" + "\n".join(line.strip() for line in lines) + "\n```\n"


def _text(help_text: str) -> str:
    """A command's help. What click is told to leave as it is, a table of words, is code here."""
    paragraphs = []
    for paragraph in inspect.cleandoc(help_text).split("\n\n"):
        kept = paragraph.removeprefix("\b\n")
        paragraphs.append(f"```text\n{kept}\n```" if kept != paragraph else kept)
    return "\n\n".join(paragraphs) + "\n"


def _cell(text: str) -> str:
    """Text in a table, where brackets beside each other are not a link."""
    return " ".join(text.split()).replace("|", "\\|")
