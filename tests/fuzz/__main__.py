"""Look for faults: `python -m tests.fuzz NAME … --seconds 600`. Without a name, in every target in turn.

What was found interesting is kept in `.fuzz/NAME`, from where the next run goes on; an input that is a
fault is kept as `.fuzz/NAME-crash-…`, and belongs into `corpus/NAME` once it is understood.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click

from tests.fuzz.targets import CORPUS, load, names

KEPT: Final = Path(".fuzz")
_DEADLINE_SECONDS: Final = 20
"""For one input: what takes longer is a fault."""
_MEMORY_MB: Final = 2048
_ROUND_SECONDS: Final = 60
"""A process is given up after so long: atheris forgets to free what comparing arrays gives."""
_EXECUTED: Final = re.compile(r"^stat::number_of_executed_units:\s+(\d+)", re.MULTILINE)
_FAULT: Final = re.compile(r"Test unit written to (\S+)")
_PROGRESS: Final = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")
_MOST_BYTES: Final = 8192
_NOTHING: Final = "\\x00"
"""A word, as a dictionary without one is refused."""


class NotRun(Exception):
    """The fuzzer could not begin, or ended otherwise than by time or by a fault."""


def look(name: str, seconds: int, kept: Path = KEPT) -> dict[str, Any]:
    """Try inputs for so long, or until one is a fault; figures, and a fault's input and traceback.

    Raises `NotRun` with what the fuzzer said.
    """
    command = _command(name, kept)
    figures: dict[str, Any] = {"target": name, "seconds": 0, "executions": 0}
    while figures["seconds"] < seconds and "fault" not in figures:
        turn = min(_ROUND_SECONDS, seconds - figures["seconds"])
        ran = subprocess.run(
            [*command, f"-max_total_time={turn}", str(kept / name), *_seeds(name)],
            capture_output=True,
            check=False,
        )
        said = (ran.stdout + ran.stderr).decode(errors="replace")
        faults, executed = _FAULT.findall(said), _EXECUTED.findall(said)
        if bool(ran.returncode) != bool(faults) or not executed:
            raise NotRun(said)
        figures["seconds"] += turn
        figures["executions"] += int(executed[0])
        for edges, features, inputs in _PROGRESS.findall(said)[-1:]:
            figures |= {"edges": int(edges), "features": int(features), "inputs": int(inputs)}
        if faults:
            figures["fault"] = faults[0]
            figures["traceback"] = said.partition("=== Uncaught")[2].partition("\n\n")[0]
    return figures


def _command(name: str, kept: Path) -> list[str]:
    """A round's, but for how long it takes and where inputs are."""
    (kept / name).mkdir(parents=True, exist_ok=True)
    words = kept / f"{name}.dict"
    # A word is quoted with its bytes in hexadecimal, which every byte may be.
    quoted = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in load(name).WORDS)
    words.write_text("".join(f'"{word}"\n' for word in (*quoted, _NOTHING)))
    return [
        sys.executable, "-m", "tests.fuzz.run", name, "-print_final_stats=1", f"-max_len={_MOST_BYTES}",
        f"-artifact_prefix={kept / name}-", f"-timeout={_DEADLINE_SECONDS}", f"-rss_limit_mb={_MEMORY_MB}",
        f"-dict={words}",
    ]  # fmt: skip


def _seeds(name: str) -> list[str]:
    return [str(CORPUS / name)] if (CORPUS / name).is_dir() else []


@click.command()
@click.argument("targets", nargs=-1, metavar="[NAME …]")
@click.option("--seconds", default=600, help="For each target.")
@click.option(
    "--kept", default=KEPT, type=click.Path(path_type=Path), help="Where inputs are kept."
)
@click.option("--report", type=click.Path(path_type=Path), help="Where to write figures, in JSON.")
def main(targets: tuple[str, ...], seconds: int, kept: Path, report: Path | None) -> None:
    """Look for faults in these targets, or in all."""
    results = []
    for name in targets or names():
        results.append(look(name, seconds, kept))
        click.echo(json.dumps(results[-1], indent=2))
        if report is not None:
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(any("fault" in result for result in results))


if __name__ == "__main__":
    main()
