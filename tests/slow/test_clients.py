"""Other people's clients, unmodified, do with our server what the documentation says."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import pytest

from tests.slow.clients import BY_NAME, CLIENTS, Client, Findings, find_out, recorded

pytestmark = pytest.mark.slow

AT_ONCE = 3
"""They mostly wait for speech, which the server sends little faster than it is heard."""


Found = Mapping[Client, Future[Findings]]


@pytest.fixture(scope="module")
def findings(request: pytest.FixtureRequest) -> Iterator[Found]:
    """What is found of each client that is to be tested, as it becomes known."""
    asked = [
        cast(Client, item.callspec.params["client"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and "findings" in item.fixturenames
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {client: pool.submit(find_out, client) for client in asked}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("client", CLIENTS, ids=BY_NAME)
def test_what_is_documented_is_so(client: Client, findings: Found) -> None:
    """Words, turns, barge-in, silence, refusals and a restart go as `found.json` has it."""
    assert findings[client].result() == recorded()[client.name]


@pytest.mark.parametrize("name", BY_NAME)
def test_what_everybody_can_rely_on(name: str) -> None:
    """All words are heard, also after a barge-in, a silence and a restart."""
    found = recorded()[name]
    for promise in ("all_words", "after_barge_in", "after_silence"):
        assert found[promise], promise
    assert found["restart"] == "spoken"
