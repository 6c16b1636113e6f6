"""Every fault that people met in the field has a test here."""

import json
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CASES = [
    json.loads(line)
    for line in (TESTS / "data" / "field-cases.jsonl").read_text(encoding="utf-8").splitlines()
]
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for path in TESTS.rglob("test_*.py")
    if path != Path(__file__)
}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_field_case_is_tested(case: dict[str, str]) -> None:
    """The docstring of at least one test names the case."""
    assert [
        path
        for path, source in SOURCES.items()
        if f'"""{case["id"]}' in source
        or f", {case['id']}:" in source
        or f", {case['id']}," in source
    ]
