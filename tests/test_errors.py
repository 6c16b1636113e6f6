"""The tree of errors: what every class in it can do."""

import copy
import pickle
from collections.abc import Callable

import pytest

from orpheus_ws import errors
from orpheus_ws.errors import OrpheusError
from orpheus_ws.metrics import _REFUSALS


def tree(kind: type[OrpheusError]) -> list[type[OrpheusError]]:
    """A class and those below it."""
    return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]


MORE: dict[type[OrpheusError], dict[str, object]] = {
    errors.BadMessage: {"context": "a", "cancels": True},
    errors.RateLimited: {"retry_after_ms": 20},
    errors.Overloaded: {"retry_after_ms": 20},
    errors.Refused: {"status": 429, "reason": "key_limit", "retry_after": 1.5},
    errors.Disconnected: {"close_code": 1001},
    errors.UtteranceFailed: {"code": "overloaded", "retryable": True, "retry_after_ms": 20},
}
"""What can be said of an error besides its text."""


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize(
    "kind", [kind for kind in tree(OrpheusError) if "orpheus" in kind.__module__]
)
def test_an_error_is_the_same_in_another_process(
    kind: type[OrpheusError], copied: Callable[[OrpheusError], OrpheusError]
) -> None:
    """An error that is copied or sent to another process keeps its class, its text and all it carries."""
    error = kind("say it again", **MORE.get(kind, {}))  # type: ignore[arg-type]
    again = copied(error)
    assert type(again) is kind
    assert str(again) == "say it again"
    assert vars(again) == vars(error)
    assert (again.code, again.retryable) == (error.code, error.retryable)


def test_every_reason_of_a_refusal_is_named() -> None:
    """Whoever reads of `Refused` learns every word that a server has for why."""
    documented = errors.Refused.__doc__ or ""
    assert [reason for reason in _REFUSALS if f"`{reason}`" not in documented] == []
