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
_STATISTICS: Final = re.compile(r"^stat::(\w+):\s+(\d+)", re.MULTILINE)
_FAULT: Final = re.compile(r"Test unit written to (\S+)")
_PROGRESS: Final = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")
_MOST_BYTES: Final = 8192
NOTHING: Final = "\\x00"
"""A word, as a dictionary without one is refused."""


class NotRun(Exception):
    """The fuzzer could not begin, or ended otherwise than by time or by a fault."""


def look(name: str, seconds: int, kept: Path = KEPT) -> dict[str, Any]:
    """Try inputs for so long, or until one is a fault; figures, and a fault's input and traceback.

    Raises `NotRun` with what the fuzzer said.
    """
    folder = kept / name
    folder.mkdir(parents=True, exist_ok=True)
    words = kept / f"{name}.dict"
    # A word is quoted with its bytes in hexadecimal, which every byte may be.
    quoted = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in load(name).WORDS)
    words.write_text("".join(f'"{word}"\n' for word in (*quoted, NOTHING)))
    seeds = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
    command = [
        sys.executable, "-m", "tests.fuzz.run", name, f"-max_total_time={seconds}", "-print_final_stats=1",
        f"-artifact_prefix={kept / name}-", f"-timeout={_DEADLINE_SECONDS}", f"-rss_limit_mb={_MEMORY_MB}",
        f"-dict={words}", f"-max_len={_MOST_BYTES}", str(folder), *seeds,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, check=False)
    said = (ran.stdout + ran.stderr).decode(errors="replace")
    faults = _FAULT.findall(said)
    if bool(ran.returncode) != bool(faults) or "number_of_executed_units" not in said:
        raise NotRun(said)
    figures: dict[str, Any] = {"target": name, "seconds": seconds}
    figures |= {key: int(number) for key, number in _STATISTICS.findall(said)}
    for edges, features, inputs in _PROGRESS.findall(said)[-1:]:
        figures |= {"edges": int(edges), "features": int(features), "inputs": int(inputs)}
    if faults:
        figures["fault"] = faults[0]
        figures["traceback"] = said.partition("=== Uncaught")[2].partition("\n\n")[0]
    return figures


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
            report.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(any("fault" in result for result in results))


if __name__ == "__main__":
    main()
