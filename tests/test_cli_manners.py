"""How every command behaves: it teaches, ends in one line and one code, and spares programs its colours."""

import contextlib
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import engine_build.cli
import orpheus_ws
from docs import cli_pages
from orpheus_ws import cli
from orpheus_ws.cli.exits import Exit
from orpheus_ws.cli.progress import PATIENCE_SECONDS, advancing
from tests.test_cli import command, run, serving

PROGRAMS = {"orpheus-ws": cli.cli, "python -m engine_build": engine_build.cli.cli}


def contexts() -> Iterator[click.Context]:
    """Every command of both programs."""
    for name, group in PROGRAMS.items():
        yield from cli_pages.commands(group, name)


EVERY = [pytest.param(context, id=context.command_path) for context in contexts()]


def examples(context: click.Context) -> list[str]:
    """The lines below *Examples* in a command's help."""
    shown = context.command.get_help(context)
    _, found, lines = shown.partition("Examples:\n")
    assert found, shown
    return [line.strip() for line in lines.splitlines() if line.strip()]


def parse(line: str) -> click.Context:
    """The command that a line of shell would run, with its options parsed, or an error of click's."""
    ours = re.split(r"[|<>]|\)\"", re.sub(r"^eval \"\$\(", "", line))[0]
    program = next(name for name in PROGRAMS if ours.startswith(name))
    found: click.Command = PROGRAMS[program]
    words = shlex.split(ours.removeprefix(program))
    while isinstance(found, click.Group):
        found = found.commands[words.pop(0)]
    return found.make_context(program, words)


@pytest.mark.parametrize("context", EVERY)
def test_help_teaches(context: click.Context) -> None:
    """`--help` ends with 0 and says what the command is for, with examples of it that parse."""
    program = next(name for name in PROGRAMS if context.command_path.startswith(name))
    words = context.command_path.removeprefix(program).split()
    answered = CliRunner().invoke(PROGRAMS[program], [*words, "--help"])
    assert answered.exit_code == 0
    assert len((context.command.help or "").split()) >= 5
    lines = examples(context)
    assert lines
    for line in lines:
        assert parse(line).command is context.command, line


@pytest.mark.parametrize("context", EVERY)
def test_every_option_is_explained(context: click.Context) -> None:
    """No option is without a word on what it does, unless its name and its default say it."""
    for parameter in context.command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or parameter.show_default, parameter.name


def test_the_list_of_commands_is_whole() -> None:
    """On a terminal of 80 columns no command's line ends in dots."""
    for group in (cli.cli, cli.cli.commands["bench"]):
        shown = CliRunner().invoke(group, ["--help"], terminal_width=80).output
        assert "..." not in shown.replace("[ARGS]...", "")


@pytest.mark.parametrize("group", PROGRAMS.values(), ids=PROGRAMS)
def test_the_examples_of_a_group_are_of_its_commands(group: click.Group) -> None:
    """What `--help` of the whole program shows can be typed."""
    for line in examples(click.Context(group, info_name="x")):
        parse(line)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("speak",), "see `orpheus-ws --help`"),
        (("say", "--prot", "1"), "see `orpheus-ws say --help`"),
        (("load",), "Missing argument 'URL'; see `orpheus-ws load --help`"),
        (("load", "ws://127.0.0.1:1", "--traffic", "heavy"), "'conversation', 'steady'"),
        (("load", "ws://127.0.0.1:1", "--streams", "0"), "--streams"),
        (("bench", "gateway", "--seconds", "x"), "see `orpheus-ws bench gateway --help`"),
        (("completion", "tcsh"), "'bash', 'zsh', 'fish'"),
        (("doctor", "--config"), "'--config' requires an argument"),
        (("say", "-o", "x.wav", "  "), "there is nothing to say"),
        (("say", "-o", "x.MP3", "Hello."), "something.wav"),
    ],
)
def test_a_wrong_command_line(arguments: tuple[str, ...], said: str) -> None:
    """It is one line on standard error with where to look, exit code 2, and nothing else."""
    finished = run(*arguments, text="")
    assert finished.returncode == Exit.USAGE
    assert finished.stdout == ""
    (line,) = finished.stderr.splitlines()
    assert line.startswith("orpheus-ws: ")
    assert said in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan",), "Missing option '--gpu'"),
        (("plan", "--gpu", "abacus"), "see `python -m engine_build plan --help`"),
    ],
)
def test_a_wrong_command_line_of_engine_build(arguments: tuple[str, ...], said: str) -> None:
    """The other program ends in the same way."""
    finished = subprocess.run(
        [sys.executable, "-m", "engine_build", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == Exit.USAGE
    assert finished.stdout == ""
    (line,) = finished.stderr.splitlines()
    assert line.startswith("engine_build: ")
    assert said in line


def test_a_group_alone_shows_its_help() -> None:
    """Without a command there is nothing to do: what there is is shown, on standard error."""
    for arguments in ((), ("bench",)):
        finished = run(*arguments)
        assert finished.returncode == Exit.USAGE
        assert finished.stdout == ""
        assert "Commands:" in finished.stderr


def test_the_version() -> None:
    """`--version` says whose it is and nothing else."""
    finished = run("--version")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.split()[0] == "orpheus-ws,"
    assert orpheus_ws.__version__ in finished.stdout


def test_json_is_all_there_is_on_standard_output(tmp_path: Path) -> None:
    """With --json, `say`, `load`, `doctor`, `bench` and `plan` print one JSON document."""
    with serving() as (_, announced):
        url = announced["url"]
        outputs = [
            run("say", "--url", url, "-o", str(tmp_path / "x.wav"), "--json", "Hello.").stdout,
            run("load", url, "--utterances", "1", "--streams", "1", "--ramp", "0", "--json").stdout,
        ]
    outputs += [
        run("doctor", "--json").stdout,
        run("bench", "codec-queue", "--arrivals", "500", "--json").stdout,
        subprocess.run(
            [sys.executable, "-m", "engine_build", "plan", "--gpu", "h100", "--json"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout,
    ]
    for output in outputs:
        assert isinstance(json.loads(output), dict)


def test_who_has_json() -> None:
    """Every command whose figures a program may want has --json."""
    having = {
        context.command_path.split()[-1]
        for context in contexts()
        if any("--json" in parameter.opts for parameter in context.command.params)
    }
    wanted = "say load calibrate doctor gateway storm codec codec-queue gpu-check plan verify"
    assert having == set(wanted.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    """The script for a shell asks our program, by the variable that it answers to."""
    script = run("completion", shell)
    assert script.returncode == 0, script.stderr
    assert f"_ORPHEUS_WS_COMPLETE={shell}_complete" in script.stdout


def test_a_shell_is_answered() -> None:
    """What bash would ask after `orpheus-ws lo` is answered with `load`."""
    asked = {
        "COMP_WORDS": "orpheus-ws lo",
        "COMP_CWORD": "1",
        "_ORPHEUS_WS_COMPLETE": "bash_complete",
    }
    answered = subprocess.run(
        command(), capture_output=True, text=True, timeout=60, check=False, env=os.environ | asked
    )
    assert answered.stdout == "plain,load\n"


def on_a_terminal(*arguments: str, **environment: str) -> tuple[int, str]:
    """Run a command whose standard output and error are a terminal: its code, and what is seen."""
    return seen_of(command(*arguments), **environment)


def seen_of(line: list[str], **environment: str) -> tuple[int, str]:
    """The same of any program."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", **environment},
    ) as process:
        os.close(theirs)
        seen = b""
        # What a terminal says when nobody has its other end any more.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 65536):
                seen += part
        process.wait(timeout=60)
    os.close(ours)
    return process.returncode, seen.decode()


def test_colours_are_for_terminals() -> None:
    """`doctor` is coloured on a terminal, and neither elsewhere nor where NO_COLOR is set."""
    coloured = re.compile(r"\x1b\[[\d;]*m")
    wrong = ("doctor", "--set", "server.port=many")
    code, seen = on_a_terminal(*wrong)
    assert code == Exit.FAILED
    assert coloured.search(seen)
    assert not coloured.search(on_a_terminal(*wrong, NO_COLOR="1")[1])
    assert not coloured.search(run(*wrong).stdout)


def test_a_long_speech_shows_how_far_it_is(tmp_path: Path) -> None:
    """From two seconds on a terminal has a bar; one that is read by a program has none."""
    slow = ("--set", "engine.options.step_seconds=0.006")
    text = "This sentence takes about a second. " * 6
    with serving(*slow) as (_, announced):
        said = ("say", "--url", announced["url"], "-o", str(tmp_path / "x.wav"))
        code, seen = on_a_terminal(*said, text)
        assert code == 0
        assert "speaking" in seen
        assert "%" in seen
        assert "%" not in run(*said, text).stderr


class Terminal(io.StringIO):
    """Standard error that somebody looks at."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_what_is_over_at_once_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none before two seconds are over, and one from then on."""
    for seconds, shown in ((PATIENCE_SECONDS - 0.001, False), (PATIENCE_SECONDS, True)):
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        moments = iter((10.0, 10.0, 10.0 + seconds))
        with advancing(3, "speaking", moments.__next__) as advance:
            advance(1)
            assert terminal.getvalue() == ""
            advance(2)
        assert ("speaking" in terminal.getvalue()) == shown


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("orpheus-ws", command("doctor")),
        ("engine_build", [sys.executable, "-m", "engine_build", "plan"]),
    ],
)
def test_an_interrupted_start(tmp_path: Path, program: str, arguments: list[str]) -> None:
    """Ctrl-C while a program is still being imported is one line and the same code; where it is ignored it is."""
    begun = tmp_path / "begun"
    slow = "import pathlib, sys; pathlib.Path(sys.argv[-1]).touch(); sys.stdin.read(); sys.exit(9)"
    (tmp_path / "click.py").write_text(slow)
    cases = (("", Exit.INTERRUPTED, f"{program}: interrupted\n"), ("trap '' INT; ", 9, ""))
    for before, code, said in cases:
        line = shlex.join([*arguments, str(begun)])
        starting = subprocess.Popen(
            ["sh", "-c", f"{before}exec {line}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        with starting:
            while not begun.exists():
                assert starting.poll() is None
            starting.send_signal(signal.SIGINT)
            _, errors = starting.communicate(timeout=60)
        assert (starting.returncode, errors) == (code, said)
        begun.unlink()


@pytest.mark.parametrize("arguments", [("--help",), ("doctor",), ("completion", "bash")])
def test_no_space_for_the_output(arguments: tuple[str, ...]) -> None:
    """Output that cannot be written is told of in one line, with the code of what did not work."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(*arguments),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == Exit.FAILED
    assert done.stderr == "orpheus-ws: cannot write the output: No space left on device\n"


def test_an_interrupted_command(tmp_path: Path) -> None:
    """Ctrl-C ends `say` in one line, with a code of its own, the same as before it is imported."""
    slow = ("--set", "engine.options.step_seconds=0.05")
    with serving(*slow) as (_, announced):
        file = tmp_path / "x.wav"
        saying = subprocess.Popen(
            command("say", "--url", announced["url"], "-o", str(file), "A sentence. " * 50),
            stderr=subprocess.PIPE,
            text=True,
        )
        with saying:
            while not file.exists():
                assert saying.poll() is None
            saying.send_signal(signal.SIGINT)
            _, said = saying.communicate(timeout=60)
    assert saying.returncode == Exit.INTERRUPTED
    assert said.strip() == "orpheus-ws: interrupted"
