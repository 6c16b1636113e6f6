"""`orpheus-ws completion`: what a shell needs to complete our commands."""

import click
from click.shell_completion import get_completion_class

from orpheus_ws.cli.exits import PROGRAM
from orpheus_ws.cli.options import examples


@click.command(
    short_help="Print the completion script of a shell.",
    epilog=examples(
        'eval "$(orpheus-ws completion bash)"',
        "orpheus-ws completion zsh > ~/.zfunc/_orpheus-ws",
        "orpheus-ws completion fish > ~/.config/fish/completions/orpheus-ws.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands, options and their choices.

    Let the shell read it when it starts: a line of ~/.bashrc, a file in a folder of zsh's fpath, or one
    of fish's completions.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, PROGRAM, "_ORPHEUS_WS_COMPLETE").source())
