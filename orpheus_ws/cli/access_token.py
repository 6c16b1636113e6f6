"""`orpheus-ws token`: a short-lived token for a browser, made from one of the server's keys."""

import os
import time
from pathlib import Path
from typing import Final

import click

from orpheus_ws import config as configuration
from orpheus_ws.access_tokens import make_token
from orpheus_ws.cli.options import configured, examples
from orpheus_ws.errors import StartupError
from orpheus_ws.keys import read_keys

MAX_TTL_SECONDS: Final = 86_400
"""A day. It cannot be taken back but by changing the key, so a page fetches a new one instead."""


@click.command(
    "token",
    short_help="Print a token for a browser.",
    epilog=examples("orpheus-ws token web --ttl 60 --config server.toml"),
)
@click.argument("name")
@click.option(
    "--ttl",
    type=click.IntRange(1, MAX_TTL_SECONDS),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long a socket may be opened with it.",
)
@configured()
def access_token(name: str, ttl: int, file: Path | None, settings: tuple[str, ...]) -> None:
    """Print a token that lets a browser connect as the key NAME, in ?token=TOKEN.

    The key comes from the server's configuration, read as `serve` reads it. It must stand there
    itself: a hash signs nothing.
    """
    config = configuration.load(file=file, environment=os.environ, flags=settings)
    keys = read_keys(config.auth)
    if not len(keys):
        raise StartupError(
            "there are no keys to make a token from: name the server's --config, or set "
            "auth.keys.NAME=SECRET"
        )
    if name not in keys.tenants:
        known = ", ".join(keys.tenants)
        raise StartupError(f"there is no key {name!r} in auth.keys or auth.file; there is {known}")
    if not (secrets := keys.secrets_of(name)):
        raise StartupError(
            f"of {name!r} the server has hashes alone, which sign nothing: give that name a key of its "
            "own for tokens, not hashed"
        )
    click.echo(make_token(name, secrets[0], expires=int(time.time()) + ttl))
