"""Other people's clients, unmodified, do with our server what the documentation says."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import pytest

from tests.clients_list import BY_NAME, Findings, recorded
from tests.slow.clients import finding_out

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def findings(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[Findings]]]:
    """What is found of the clients that are to be tested."""
    asked = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and "findings" in item.fixturenames
    ]
    with finding_out(BY_NAME[name] for name in asked) as found:
        yield found


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_documented_is_so(name: str, findings: Mapping[str, Future[Findings]]) -> None:
    """Words, turns, barge-in, silence, refusals and a restart go as `found.json` has it."""
    assert findings[name].result() == recorded()[name]
