"""`orpheus-ws key new`: a fresh key, shown once, and what the server's key file needs of it."""

import click
import msgspec

from orpheus_ws.cli.options import examples
from orpheus_ws.keys import new_key


@click.group(
    short_help="Make keys of those who may connect.", epilog=examples("orpheus-ws key new alice")
)
def key() -> None:
    """Keys of those who may connect."""


@key.command("new", short_help="Make a key.", epilog=examples("orpheus-ws key new alice"))
@click.argument("name")
def new(name: str) -> None:
    """Print a fresh key for NAME on standard output, and on standard error what the server is told.

    The key is not kept anywhere: give it to whom it is for. The server's file has its hash alone.
    """
    if not name.strip():
        raise click.UsageError("a key needs a NAME, which shows in logs and metrics")
    secret, hashed = new_key()
    # A quoted key of TOML is a string of JSON, whatever is in the name.
    table = msgspec.json.encode(name).decode()
    click.echo(secret)
    click.echo(
        f"\nThis is the only time that the key is shown. In the server's key file, which\n"
        "auth.file names (`orpheus-ws serve --set auth.file=keys.toml`):\n\n"
        f'[{table}]\nkeys = ["{hashed}"]\n\n'
        "If the name has a table there already, add the hash to its list.",
        err=True,
    )
