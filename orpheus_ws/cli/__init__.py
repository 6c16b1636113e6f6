"""The command line: the only reader of arguments, and of our variables in the environment.

Rule: commands parse, call, and print; what they do is elsewhere. One module a command. What a
program may read goes to standard output, logs and what is for people to standard error: progress only
where that is a terminal, colours too, and none if NO_COLOR is set. Every command has examples in its
help. Exit codes are in `exits`.
"""

import os
import sys

import click

import orpheus_ws
from orpheus_ws.cli.access_token import access_token
from orpheus_ws.cli.bench import bench
from orpheus_ws.cli.calibrate import calibrate
from orpheus_ws.cli.completion import completion
from orpheus_ws.cli.doctor import doctor
from orpheus_ws.cli.exits import PROGRAM, open_standard_streams, run
from orpheus_ws.cli.key import key
from orpheus_ws.cli.load import load
from orpheus_ws.cli.options import CONTEXT, examples
from orpheus_ws.cli.say import say
from orpheus_ws.cli.serve import serve


@click.group(
    context_settings=CONTEXT,
    epilog=examples(
        'orpheus-ws say --local "Hello there." -o hello.wav',
        "orpheus-ws doctor",
        "orpheus-ws serve",
    ),
)
@click.version_option(orpheus_ws.__version__, prog_name=PROGRAM)
@click.pass_context
def cli(context: click.Context) -> None:
    """Real-time Orpheus speech over WebSockets."""
    if os.environ.get("NO_COLOR"):
        context.color = False


for command in (serve, say, load, calibrate, key, access_token, bench, doctor, completion):
    cli.add_command(command)


def main() -> None:
    """Run the command line; what goes wrong is one line on standard error and an exit code."""
    open_standard_streams()
    sys.exit(run(cli, PROGRAM))
