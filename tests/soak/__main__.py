"""`python -m tests.soak`: soak a server, and say whether it is the worse for it."""

import asyncio
import sys
import time
from pathlib import Path

import click

from tests.soak import verdict
from tests.soak.run import Soak
from tests.soak.server import SIMULATED, subject


@click.command()
@click.option("--minutes", type=float, default=30.0, show_default=True)
@click.option("--round-seconds", type=float, default=180.0, show_default=True, help="Of traffic.")
@click.option("--clients", type=int, default=16, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--set", "settings", multiple=True, help="More settings of the server's.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("soak"), show_default=True)
def soak(
    minutes: float,
    round_seconds: float,
    clients: int,
    seed: int,
    out: Path,
    settings: tuple[str, ...],
) -> None:
    """Soak a server; the exit code is 1 if anything was lost or left behind, or if memory grows.

    The directory gets `soak.json`, `soak.svg` and the server's log.
    """
    out.mkdir(parents=True, exist_ok=True)
    given = [*SIMULATED, *settings]
    with subject(given, out / "server.log") as server:
        run = Soak(server, out, given, seed)
        asyncio.run(run.run(seconds=minutes * 60, round_seconds=round_seconds, clients=clients))
    run.read_log(out / "server.log")
    result = run.result
    grown = run.judge_memory()
    result.save(out)
    day = time.strftime("%-d %B %Y")
    title = f"A server with a simulated engine under {clients} clients, half of whom make trouble, {day}"
    (out / "soak.svg").write_text(verdict.draw(result.samples, result.quiet, title))
    click.echo(
        f"{result.seconds / 60:.1f} minutes, {result.rounds} rounds, "
        f"{sum(result.acts.values())} clients, {sum(result.whole.values())} utterances whole, "
        f"{result.lost_samples} samples lost\n"
        f"memory in the second half: {grown.bytes_per_second * 3.6e-3:+.2f} MB/h, "
        f"from {grown.first_bytes / 1e6:.1f} to {grown.last_bytes / 1e6:.1f} MB\n"
        f"held when idle: {result.baseline}"
    )
    for fault in result.faults:
        click.echo(f"fault: {fault}", err=True)
    sys.exit(1 if result.faults else 0)


if __name__ == "__main__":
    soak()
