"""Pages of the documentation, and tables in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


PROTOCOL = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


CLIENTS = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")


def table(first_column: str, page: str = PROTOCOL) -> list[list[str]]:
    """Rows of all tables of a page whose first heading is this, as cells."""
    rows: list[list[str]] = []
    for block in re.findall(rf"^\| {first_column} \|.*\n(?:\|.*\n)+", page, re.MULTILINE):
        lines = block.splitlines()[2:]
        rows += [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows
    return rows


def names(cell: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)
