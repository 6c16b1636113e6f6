"""A real Prometheus with the rules of `deploy`, made quicker so that a test need not last an hour.

Rule: expressions are what an operator deploys. Only intervals are others: windows are shorter, and
alerts fire without waiting. That they wait as they should is what promtool is asked.
"""

import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests import promql
from tests.ports import free_port

WINDOWS: Final = {"5m": "15s", "10m": "120s", "15m": "180s"}
"""What a scrape every second makes of windows for one every five; longer where something must happen several times."""


def quicker(expression: str) -> str:
    """An expression with shorter windows."""
    return re.sub(r"\[(\w+)\]", lambda match: f"[{WINDOWS[match[1]]}]", expression)


class Prometheus:
    """A running Prometheus. Nothing is scraped until `scrape` says what."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port

    def scrape(self, targets: Mapping[str, int | Sequence[int]]) -> None:
        """Scrape each port of this machine under its job's name, and nothing else."""
        groups = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"job": job}}
            for job, ports in targets.items()
            for port in ([ports] if isinstance(ports, int) else ports)
        ]
        # Moved into place, so that it is never read half written.
        (self._folder / "new").write_text(json.dumps(groups))
        (self._folder / "new").rename(self._folder / "targets.json")

    def get(self, path: str, **parameters: str) -> Any:
        """What its API answers. Raises `HTTPError` for an expression that cannot be evaluated."""
        query = urllib.parse.urlencode(parameters)
        address = f"http://127.0.0.1:{self._port}/api/v1/{path}?{query}"
        with urllib.request.urlopen(address, timeout=30) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and values of an expression now."""
        data = self.get("query", query=expression)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def fired(self) -> set[tuple[str, str]]:
        """Alerts that have ever fired, each with its job."""
        expression = 'max_over_time(ALERTS{alertstate="firing"}[1h])'
        return {
            (labels["alertname"], labels.get("job", "")) for labels, _ in self.query(expression)
        }

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with how their evaluation went."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]


def _configure(folder: Path) -> None:
    """Our configuration and rules, with other intervals and targets."""
    config = promql.read(promql.PROMETHEUS / "prometheus.yml")
    config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), "1s")
    (job,) = config["scrape_configs"]
    del job["static_configs"]
    job["file_sd_configs"] = [{"files": ["targets.json"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    for name in config["rule_files"]:
        loaded = promql.read(promql.PROMETHEUS / name)
        for group in loaded["groups"]:
            for rule in group["rules"]:
                rule["expr"] = quicker(rule["expr"])
                rule.pop("for", None)
        (folder / name).write_text(yaml.safe_dump(loaded))


@contextlib.contextmanager
def prometheus(folder: Path) -> Iterator[Prometheus]:
    """Run one in this folder, which must be empty."""
    program = shutil.which("prometheus")
    assert program is not None, "install Debian's package prometheus"
    port = free_port()
    _configure(folder)
    running = Prometheus(folder, port)
    running.scrape({})
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            while not _is_ready(port):
                assert process.poll() is None
            yield running
        finally:
            process.terminate()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=10):
            return True
    except OSError:
        return False
