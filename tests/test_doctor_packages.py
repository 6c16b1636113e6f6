"""What the doctor says of packages and certificates."""

import re
from pathlib import Path

import pytest

from orpheus_ws.doctor import packages
from orpheus_ws.doctor.check import Status
from tests.certificates import Authority
from tests.doctor_runs import doctor, settings

SIMULATED = settings("engine.name=simulated", "codec.name=simulated")
FREE_PORTS = settings("server.port=0", "server.metrics_port=0")
METADATA = """Metadata-Version: 2.4
Name: orpheus-ws
Version: 9.0
Requires-Dist: pytest
Requires-Dist: {base}
Requires-Dist: never-needed; python_version < "3"
Provides-Extra: codec
Requires-Dist: pytest-nothing>=2; extra == 'codec'
Provides-Extra: pocket
Requires-Dist: Orpheus_WS[codec]; extra == "pocket"
Requires-Dist: pytest<1; extra == 'pocket'
"""


def examined_packages(
    base: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[Status, str, str]]:
    """What is said of a distribution that needs `base`, and strange things for its extras."""
    (folder / "orpheus_ws-9.0.dist-info").mkdir()
    (folder / "orpheus_ws-9.0.dist-info" / "METADATA").write_text(METADATA.format(base=base))
    monkeypatch.syspath_prepend(folder)
    return {c.name: (c.status, c.found, c.advice) for c in packages.examine()}


def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the base that is missing is a problem; one that is too old a warning."""
    status, found, advice = examined_packages("pytest-nothing", tmp_path, monkeypatch)["packages"]
    assert status is Status.PROBLEM
    assert re.fullmatch(r"pytest [\d.]+; missing: pytest-nothing", found)
    assert "pip install" in advice


def test_packages_of_wrong_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extras are followed into each other; what is missing in them and what is too old is named."""
    checks = examined_packages("pytest-asyncio>1000", tmp_path, monkeypatch)
    assert checks["packages"][0] is Status.WARNING
    assert re.search(r"does not fit: pytest-asyncio [\d.]+ \(not >1000\)", checks["packages"][1])
    codec, pocket = checks["extra_codec"], checks["extra_pocket"]
    assert codec[:2] == (Status.ABSENT, "missing: pytest-nothing")
    assert "pip install 'orpheus-ws[codec]'" in codec[2]
    assert pocket[0] is Status.WARNING
    assert re.fullmatch(
        r"missing: pytest-nothing; does not fit: pytest [\d.]+ \(not <1\)", pocket[1]
    )


def test_extras_that_were_not_installed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code newer than what pip knows of it: an extra that pip has not heard of is told as such."""
    torch = examined_packages("pytest", tmp_path, monkeypatch)["extra_torch"]
    assert torch[0] is Status.WARNING
    assert "older than its code" in torch[1]
    assert "install it again" in torch[2]


@pytest.mark.parametrize(
    ("days", "status", "found"),
    [
        (90, "ok", "valid until "),
        (14.1, "ok", "valid until "),
        (13.9, "warning", "valid until "),
        (-1, "warning", "not valid now"),
        (400, "warning", "not valid now"),
    ],
)
def test_a_certificate(tmp_path: Path, days: float, status: str, found: str) -> None:
    """It is tried, and one that ends within two weeks, has ended or has not begun is a warning."""
    authority = Authority(tmp_path)
    authority.issue(days=days)
    (certificate,) = certificates(authority)
    assert certificate["status"] == status
    assert certificate["found"].startswith(found)


def test_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    """The key of another, or half a configuration, is the problem that `serve` would stop at."""
    authority = Authority(tmp_path)
    authority.issue()
    good = authority.certificate.read_bytes()
    authority.issue()
    authority.put(authority.certificate, good)
    for given in (authority.settings, authority.settings[:1]):
        (certificate,) = certificates(authority, *given)
        assert certificate["status"] == "problem"
        assert "PRIVATE" not in str(certificate)


def certificates(authority: Authority, *given: str) -> list[dict[str, str]]:
    """The check of the certificate."""
    examined = doctor(*SIMULATED, *FREE_PORTS, *settings(*(given or authority.settings)))
    return [examined.checks["certificate"]]
