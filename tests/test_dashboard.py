"""Dashboard, rules and runbook fit the server, and each other."""

import re
from typing import Any

import promql_parser
import pytest
from prometheus_client import CollectorRegistry

from deploy.grafana import dashboard
from docs.generate import instruments
from orpheus_ws.capacity import SOURCES
from orpheus_ws.metrics import Metrics
from tests import promql
from tests.promql import Expression

TARGET = {"job", "instance"}
"""Labels that Prometheus gives to everything it scrapes."""
OTHERS = {"up": set[str](), "ALERTS": {"alertname", "alertstate"}}
RUNBOOK = (promql.ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
EXPRESSIONS = [*promql.panel_queries(), *promql.rule_queries()]


def known() -> dict[str, set[str]]:
    """Samples that Prometheus has, and their own labels: scraped, its own and recorded."""
    found = dict(OTHERS)
    for instrument in instruments():
        labels = set(instrument.labels)
        if instrument.kind == "histogram":
            found[f"{instrument.name}_bucket"] = labels | {"le"}
            found[f"{instrument.name}_count"] = found[f"{instrument.name}_sum"] = labels
        else:
            found[instrument.name] = labels
    for rule in promql.rules("recording.yml"):
        found[rule["record"]] = {"le"} if rule["record"].startswith("job_le:") else set()
    return found


def values() -> dict[str, set[str]]:
    """Values of labels that a server shows from its start."""
    metrics = Metrics(CollectorRegistry())
    metrics.watch_parts(engine=lambda: True, codec=lambda: True)
    for source in SOURCES:
        metrics.set_capacity(1, source)
    found: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            for label, value in sample.labels.items():
                found.setdefault(label, set()).add(value)
    return found


def parts(expression: Expression) -> list[Any]:
    """All nodes of the syntax tree."""
    nodes: list[Any] = []
    promql_parser.walk(promql_parser.parse(expression.text), nodes.append)
    return nodes


def selectors(expression: Expression) -> list[promql_parser.VectorSelector]:
    """What an expression reads."""
    found = []
    for node in parts(expression):
        if isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql_parser.VectorSelector):
            found.append(node)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda each: each.where)
def test_metrics_and_labels_exist(expression: Expression) -> None:
    """A query reads what a server has, by labels that it has, with values that occur."""
    metrics, occurring = known(), values()
    read: set[str] = set()
    for selector in selectors(expression):
        assert selector.name is not None
        own = metrics[selector.name] | TARGET
        read |= own
        for matcher in selector.matchers.matchers:
            assert matcher.name in own, matcher
            if matcher.name in occurring and matcher.name != "le":
                assert set(matcher.value.split("|")) <= occurring[matcher.name]
    for node in parts(expression):
        modifiers = [getattr(node, "modifier", None)]
        modifiers.append(getattr(modifiers[0], "matching", None))
        for modifier in modifiers:
            assert set(getattr(modifier, "labels", ())) <= read


def test_an_unknown_metric_is_noticed() -> None:
    """The check above sees a metric, a label and a value that do not exist."""
    for text in (
        "sum(rate(orpheus_no_such_total[5m]))",
        'orpheus_alive{state="engine"}',
        'orpheus_alive{part="voice"}',
        "sum by (voice) (orpheus_sockets)",
    ):
        with pytest.raises((KeyError, AssertionError)):
            test_metrics_and_labels_exist(Expression("", text))


def test_every_metric_is_shown() -> None:
    """Whatever the server counts is in some panel or rule."""
    read = {selector.name for each in EXPRESSIONS for selector in selectors(each)}
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in read if name is not None}
    assert {each.name for each in instruments()} - names == {"process_virtual_memory_bytes"}


def test_the_file_is_current() -> None:
    """The dashboard is what the program makes; `make docs` writes it."""
    assert promql.DASHBOARD.read_text(encoding="utf-8") == dashboard.make()


def test_panels() -> None:
    """A panel has queries, a unit, its own place, and says what good looks like."""
    places = set()
    for panel in promql.panels():
        assert re.search(r"\bGood\b|\bgood is\b", panel["description"]), panel["title"]
        assert panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"
        if panel["type"] in ("timeseries", "stat"):
            assert panel["fieldConfig"]["defaults"]["unit"]
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24
                assert (x, y) not in places
                places.add((x, y))
    numbers = [panel["id"] for panel in promql.panels()]
    assert len(set(numbers)) == len(numbers)


def test_variables() -> None:
    """One can choose data source, job, replicas, quantile, price, talk share and runbook."""
    found = promql.variables()
    names = ["datasource", "job", "instance", "quantile", "price", "talk", "runbook"]
    assert list(found) == names
    assert found["job"]["multi"]
    assert found["instance"]["multi"]
    for each in found["quantile"]["query"].split(","):
        assert 0 < float(each) < 1
    assert 0 < float(found["talk"]["query"]) < 1
    assert float(found["price"]["query"]) > 0


def anchors() -> set[str]:
    """Links into the runbook that lead somewhere."""
    headings = re.findall(r"^#+ (.+)$", RUNBOOK, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", promql.alerts())
def test_alerts(name: str) -> None:
    """An alert has a severity, a summary, a paragraph in the runbook, and a panel that links to it."""
    alert = promql.alerts()[name]
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"]["summary"]
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page == "docs/operations.md"
    assert anchor == name.lower()
    assert anchor in anchors()
    urls = [link["url"] for panel in promql.panels() for link in panel["links"]]
    assert f"${{runbook}}#{anchor}" in urls


def test_runbook() -> None:
    """Every paragraph of the runbook is of an alert, and says where to look and what to do."""
    section = RUNBOOK.partition("## When an alert fires")[2].partition("\n## ")[0]
    paragraphs = dict(
        re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", section, re.MULTILINE | re.DOTALL)
    )
    assert list(paragraphs) == list(promql.alerts())
    for text in paragraphs.values():
        assert "- *Look at:* " in text
        assert "- *Do:* " in text


def test_panel_links() -> None:
    """Links of panels lead to paragraphs that there are."""
    for panel in promql.panels():
        for link in panel["links"]:
            assert link["url"].partition("#")[2] in anchors()


def test_every_alert_is_tested() -> None:
    """promtool is given a case in which each alert fires, and one in which it does not."""
    cases: dict[str, set[bool]] = {}
    for test in promql.read(promql.PROMETHEUS / "alerts.test.yml")["tests"]:
        for case in test["alert_rule_test"]:
            assert test["name"].startswith(case["alertname"])
            cases.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
    assert cases == {name: {True, False} for name in promql.alerts()}


@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus-dns.yml"])
def test_configurations(name: str) -> None:
    """Both configurations load both rule files, and name the job as the rules expect."""
    config = promql.read(promql.PROMETHEUS / name)
    assert config["rule_files"] == ["recording.yml", "alerts.yml"]
    assert config["scrape_configs"][0]["job_name"] == "orpheus"
    source = promql.read(promql.ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml")[
        "datasources"
    ][0]
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
