"""promtool, Prometheus' own, accepts our rules and finds that they fire when they should."""

import shutil
import subprocess

import pytest

from tests import promql

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "config", "prometheus-dns.yml"),
        ("check", "rules", "recording.yml", "alerts.yml"),
        ("test", "rules", "alerts.test.yml"),
    ],
    ids=" ".join,
)
def test_promtool(arguments: tuple[str, ...]) -> None:
    """Configurations and rules are valid; each alert fires after its time, and not otherwise."""
    program = shutil.which("promtool")
    assert program is not None, "install Debian's package prometheus"
    result = subprocess.run(
        [program, *arguments],
        cwd=promql.PROMETHEUS,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "SUCCESS" in result.stdout
