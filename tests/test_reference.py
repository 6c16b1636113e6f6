"""The pages that are made of the code are what the code makes."""

from itertools import pairwise

from docs import capacity_tables, cli_pages, generate
from tests.harness import server


def committed(name: str) -> str:
    """A page as it is in the repository."""
    return (generate.FOLDER / name).read_text(encoding="utf-8")


def test_the_metrics_page() -> None:
    """`docs/metrics.md` is what `make docs` makes of the instruments."""
    page = generate.metrics_page()
    assert committed("metrics.md") == page, "docs/metrics.md is out of date: run `make docs`"


def test_the_tables_of_the_capacity_page() -> None:
    """The tables of `docs/capacity.md` are what `make docs` makes of the arithmetic, all of them used."""
    page = capacity_tables.capacity_page()
    assert committed("capacity.md") == page, "docs/capacity.md is out of date: run `make docs`"
    for name in capacity_tables.TABLES:
        assert f"<!-- table {name} -->" in page


def test_the_page_of_the_command_line() -> None:
    """`docs/cli.md` is what `make docs` makes of the commands' help."""
    page = cli_pages.cli_page()
    assert committed("cli.md") == page, "docs/cli.md is out of date: run `make docs`"


async def test_every_metric_of_a_server_is_on_the_page() -> None:
    """Whatever a running server shows on `/metrics` has a line on the page, under that very name."""
    async with server() as started:
        families = list(started.metrics.registry.collect())
    assert len(families) > 20
    page = committed("metrics.md")
    for family in families:
        suffix = "_total" if family.type == "counter" else ""
        assert f"\n| `{family.name}{suffix}` |" in page


def test_every_instrument_says_what_it_means() -> None:
    """No instrument is without a meaning; buckets grow."""
    found = list(generate.instruments())
    assert len({instrument.name for instrument in found}) == len(found)
    for instrument in found:
        assert instrument.meaning
        bounds = [float(bound) for bound in instrument.buckets]
        assert all(low < high for low, high in pairwise(bounds))
        assert bool(bounds) == (instrument.kind == "histogram")


def test_meanings_are_read_from_the_source() -> None:
    """The text below a field is its meaning, on one line; a field without one has none."""

    class Example:
        """Not a meaning."""

        plain: int = 1
        """One line."""
        bare: int = 2
        wrapped: int = 3
        """Two
        lines."""

    assert generate.meanings(Example) == {"plain": "One line.", "wrapped": "Two lines."}
