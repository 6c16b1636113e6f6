"""What was found of other people's clients, and the page that says so."""

import pytest

from tests.clients_list import BY_NAME, PAGE, TABLE, recorded, table


@pytest.mark.parametrize("name", BY_NAME)
def test_what_everybody_can_rely_on(name: str) -> None:
    """With every client all words are heard, also after a barge-in, a silence and a restart.

    And a turn that is left stops by itself, told of or not.
    """
    found = recorded()[name]
    for promise in ("all_words", "after_barge_in", "barge_in_stops", "after_silence"):
        assert found[promise], promise
    assert found["restart"] == "spoken"


def test_the_page_has_what_was_found() -> None:
    """The table is what `python -m tests.clients_list` writes."""
    (shown,) = TABLE.findall(PAGE.read_text(encoding="utf-8"))
    assert shown == table(recorded())
