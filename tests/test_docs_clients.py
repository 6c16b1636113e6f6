"""What the page about clients says is so in the client."""

import re

from orpheus_ws import errors
from orpheus_ws import messages as m
from orpheus_ws.client import Backoff
from orpheus_ws.client.backoff import PATIENCE_SECONDS
from orpheus_ws.client.lasting import OPEN_SECONDS
from tests.pages import CLIENTS, names, table


def test_client_errors_are_documented() -> None:
    """The clients' page has every error that the client raises, and what it says of trying again."""
    rows = {names(row[0])[0]: row[2] for row in table("error", CLIENTS)}
    kinds = {kind.__name__: kind for kind in errors.ClientError.__subclasses__()}
    assert set(rows) == {"ClientError", *kinds}
    assert [name for name, cell in rows.items() if cell == "yes"] == [
        name for name in rows if name in kinds and kinds[name].retryable
    ]
    for status in (408, 429, 500, 503):
        assert errors.Refused("", status=status).retryable
    for status in map(int, re.findall(r"\d{3}", rows["Refused"].partition("not")[2])):
        assert not errors.Refused("", status=status).retryable


def test_numbers_of_the_client() -> None:
    """Numbers that the clients' page mentions are those of the code."""
    backoff = Backoff()
    assert f"`patience` seconds ({PATIENCE_SECONDS:g})" in CLIENTS
    assert f"from {backoff.first:g} s to {backoff.cap:g} s" in CLIENTS
    assert f"first={backoff.first}, cap={backoff.cap}" in CLIENTS
    assert f"`open_timeout` seconds ({OPEN_SECONDS:g})" in CLIENTS


def test_results_of_the_client() -> None:
    """The clients' page has every field of a chunk and of a result."""
    rows = {names(row[0])[0]: names(row[2]) for row in table("result", CLIENTS)}
    assert set(rows) == {"Done", "Cancelled", "None"}
    for kind in (m.Done, m.Cancelled):
        assert set(kind.__struct_fields__) - {"context"} <= set(rows[kind.__name__])
    (chunk,) = re.findall(r"^A chunk has .*?\n\n", CLIENTS, re.MULTILINE | re.DOTALL)
    assert set(names(chunk)) == {*m.Audio.__struct_fields__, "started"}
