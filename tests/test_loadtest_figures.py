"""What a load's turns come to: no more is said of them than so many turns can tell."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_ws.loadtest import Harness, Plan, Result
from orpheus_ws.loadtest.pool import verdict
from orpheus_ws.loadtest.report import TOO_FEW, page, rows
from orpheus_ws.loadtest.tally import GAP_EDGES_MS, Batch, Tally
from orpheus_ws.loadtest.turn import FEWEST, Percentiles, Turn

PLAN = Plan(url="ws://127.0.0.1:1/v1/tts", objective_ms=150)


def heard(*first_bytes: float) -> Tally:
    """Turns at full load with these times to the first byte, and as many gaps."""
    tally = Tally(PLAN.objective_ms)
    turns = [
        Turn(
            stream=number,
            size="short",
            begun=number,
            ended=number + 1,
            sounded=number,
            heard=number + 1,
            outcome="done",
            first_byte_ms=ms,
        )
        for number, ms in enumerate(first_bytes)
    ]
    tally.add(Batch(turns=turns, first_bytes=list(first_bytes), gaps={3: len(first_bytes)}))
    return tally


def reported(tally: Tally) -> str:
    """The page of a run with these turns."""
    harness = Harness(processes=1, cpu_share=0.1, lag_ms_p99=1.0, lag_ms_highest=2.0)
    return page(
        Result(
            plan=PLAN,
            began=0.0,
            seconds=1.0,
            stopped=None,
            figures=tally.figures(),
            harness=harness,
            gaps=tally.gaps(),
            turns=(),
        )
    )


@given(st.lists(st.floats(1, 5000), min_size=1, max_size=250))
def test_a_percentile_takes_its_values(values: list[float]) -> None:
    """p90 and p99 are told of as many values as have one beyond them, and are null of fewer."""
    tally = heard(*values)
    figures = tally.figures()
    for found in (figures.first_byte_ms, figures.gap_ms):
        assert found is not None
        assert (found.p90 is None) == (len(values) < 10)
        assert (found.p99 is None) == (len(values) < 100)
        known = [value for value in (found.p50, found.p90, found.p99) if value is not None]
        assert [found.lowest, *known, found.highest] == sorted(
            [found.lowest, *known, found.highest]
        )
        assert found.tail == (
            ("highest", found.highest) if found.p99 is None else ("p99", found.p99)
        )
    decoded = msgspec.json.decode(msgspec.json.encode(figures.first_byte_ms))
    assert (decoded["p99"] is None) == (len(values) < FEWEST[99])
    assert (TOO_FEW in reported(tally)) == (len(values) < FEWEST[99])


@pytest.mark.parametrize("count", [1, 3, 99, 100, 1000])
def test_the_objective_of_few_turns(count: int) -> None:
    """Of turns too few for a p99 every one must be in time; of a thousand, one in a hundred may be late."""
    slow = heard(*[10.0] * (count - 1), 200.0)
    lines = verdict(PLAN, slow.figures())
    if count < FEWEST[99]:
        assert lines == ("time to first byte: highest 200 ms, above the objective of 150 ms",)
        assert f"first byte, highest of {count}<" in reported(slow)
    else:
        assert lines == ()
        assert "first byte, p99<" in reported(slow)


def test_nothing_is_said_of_too_few() -> None:
    """In a row of the table what too few turns cannot tell is a dash, and all else is there."""
    ((name, *cells), *_) = rows(heard(10.0, 20.0, 30.0).figures())
    assert (name, cells) == (
        "time to first byte, ms",
        ["10.0", "20.0", "–", "–", "30.0", "3"],
    )


def test_gaps_are_known_by_their_bucket() -> None:
    """A gap's figures are the upper edge of its bucket."""
    found = heard(*[1.0] * 100).figures().gap_ms
    assert isinstance(found, Percentiles)
    edge = round(GAP_EDGES_MS[3], 3)
    assert (found.lowest, found.p50, found.p99, found.highest) == (edge, edge, edge, edge)


def test_a_page_says_which_is_which() -> None:
    """Each figure of the table stands below its name, also where it is as narrow as a telephone."""
    html = reported(heard(*[10.0] * 20))
    (table,) = re.findall(r'<div class="figures"><table>(.*?)</table>', html, re.DOTALL)
    head, *body = re.findall(r"<tr>(.*?)</tr>", table)
    assert re.findall(r"<th>(.*?)</th>", head)[1:] == [
        "lowest",
        "p50",
        "p90",
        "p99",
        "highest",
        "of",
    ]
    for row in body:
        assert len(re.findall(r"<td>", row)) == 6
