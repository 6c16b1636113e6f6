"""The command line: the only reader of arguments and environment.

Rule: commands parse, call, and print; what they do is elsewhere. One module a command. What a
program may read goes to standard output, logs and what is for people to standard error. Exit codes
are in `exits`.
"""

import sys

import click

import orpheus_ws
from orpheus_ws.cli.access_token import access_token
from orpheus_ws.cli.bench import bench
from orpheus_ws.cli.calibrate import calibrate
from orpheus_ws.cli.doctor import doctor
from orpheus_ws.cli.exits import open_standard_streams, report
from orpheus_ws.cli.key import key
from orpheus_ws.cli.load import load
from orpheus_ws.cli.say import say
from orpheus_ws.cli.serve import serve
from orpheus_ws.errors import OrpheusError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(orpheus_ws.__version__, prog_name="orpheus-ws")
def cli() -> None:
    """Real-time Orpheus speech over WebSockets."""


for command in (serve, say, load, calibrate, key, access_token, bench, doctor):
    cli.add_command(command)


def main() -> None:
    """Run the command line; errors of ours become one line and exit code 1."""
    open_standard_streams()
    try:
        cli(standalone_mode=True)
    except OrpheusError as error:
        sys.exit(report(error))
