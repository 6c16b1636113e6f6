"""The queries of `deploy`, read from the files that Prometheus and Grafana load.

Rule: tests see what an operator deploys, never the program that made it.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).parents[1]
PROMETHEUS: Final = ROOT / "deploy" / "prometheus"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "dashboards" / "orpheus.json"


class Expression(NamedTuple):
    """A query and where it stands."""

    where: str
    text: str


def read(file: Path) -> Any:
    """A file in YAML."""
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def rules(name: str) -> list[dict[str, Any]]:
    """The rules of a file, in order."""
    return [rule for group in read(PROMETHEUS / name)["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts by name."""
    return {rule["alert"]: rule for rule in rules("alerts.yml")}


def dashboard() -> dict[str, Any]:
    """What Grafana loads."""
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return loaded


def panels() -> list[dict[str, Any]]:
    """The panels, without the titles of rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def variables() -> dict[str, dict[str, Any]]:
    """The dashboard's variables by name."""
    return {variable["name"]: variable for variable in dashboard()["templating"]["list"]}


def chosen(interval: str) -> dict[str, str]:
    """What each variable is when the dashboard is opened. `interval` is for Grafana to say."""
    values = {"__rate_interval": interval}
    for name, variable in variables().items():
        value = variable.get("current", {}).get("value", "")
        values[name] = variable["allValue"] if value == "$__all" else value
    return values


def filled(text: str, interval: str = "30s") -> str:
    """A panel's query as Grafana sends it. An unknown variable is a `KeyError`."""
    values = chosen(interval)
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], text)


def panel_queries(interval: str = "30s") -> Iterator[Expression]:
    """Every query of every panel."""
    for panel in panels():
        for target in panel["targets"]:
            where = f"{panel['title']}, {target['legendFormat']}"
            yield Expression(where, filled(target["expr"], interval))


def rule_queries() -> Iterator[Expression]:
    """Every query of a rule."""
    for rule in rules("recording.yml"):
        yield Expression(rule["record"], rule["expr"])
    for name, rule in alerts().items():
        yield Expression(name, rule["expr"])
