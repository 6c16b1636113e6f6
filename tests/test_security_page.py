"""The page on security names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_is_named(file: str, test: str) -> None:
    """Each is in its file; a file that is named alone has tests."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert test in functions if test else any(name.startswith("test_") for name in functions)


def test_every_promise_has_a_test() -> None:
    """No promise stands there without one."""
    promises = re.search(r"\n## Promises\n(.*?)\n## ", PAGE, re.DOTALL)
    assert promises is not None
    items = re.split(r"\n- ", promises[1])[1:]
    assert len(items) > 15
    for item in items:
        assert "`tests/" in item, item


def test_nothing_is_named_otherwise() -> None:
    """Whatever looks like a test on the page is written so that this file finds it."""
    found = set(re.findall(r"test_\w+(?:\.py)?(?:::\w+)?", PAGE))
    assert found == {f"{Path(file).name}{'::' + test if test else ''}" for file, test in NAMED}


def test_where_to_report() -> None:
    """The page and the policy lead to each other."""
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "(docs/security.md)" in policy
    assert "(../SECURITY.md)" in PAGE
