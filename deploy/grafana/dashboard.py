"""Writes Grafana's dashboard, `dashboards/orpheus.json`: `make docs`.

Rule: the panels are data in `outside.py` and `inside.py`; here they become the JSON that Grafana
loads, by Grafana's own library, and nothing else does. A test fails while the file is another.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    LegendDisplayMode,
    LegendPlacement,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.grafana import inside, outside
from deploy.grafana.panel import Kind, Panel, Query

FILE: Final = Path(__file__).parent / "dashboards" / "orpheus.json"
UID: Final = "orpheus-ws"
ROWS: Final = outside.ROWS | inside.ROWS
SELECTED: Final = 'job=~"$job", instance=~"$instance"'
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHTS: Final[dict[Kind, int]] = {"stat": 4, "alerts": 5}
FORMATS: Final[dict[Kind, PromQueryFormat]] = {
    "heatmap": PromQueryFormat.HEATMAP,
    "alerts": PromQueryFormat.TABLE,
}
INSTANT: Final[tuple[Kind, ...]] = ("stat", "alerts")
RUNBOOK: Final = "/public/docs/operations.md"
"""Where the Grafana of deploy/compose serves it."""


def anchor(alert: str) -> str:
    """Where an alert's paragraph begins, for links."""
    return f"${{runbook}}#{alert.lower()}"


def make() -> str:
    """The file's text."""
    board = (
        boards.Dashboard("orpheus-ws")
        .uid(UID)
        .description("Streams, latency and cost of orpheus-ws, by replica and of all.")
        .tags(["orpheus-ws"])
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(boards.DashboardLink("Runbook").url("${runbook}").target_blank(True).icon("doc"))
    )
    for variable in _variables():
        board.with_variable(variable)
    number = 0
    for title, panels in ROWS.items():
        board.with_row(boards.Row(title))
        for panel in panels:
            number += 1
            board.with_panel(_built(panel, number))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _variables() -> Iterator[Any]:
    yield boards.DatasourceVariable("datasource").label("Data source").type("prometheus")
    yield _known("job", "orpheus_capacity").label("Job").description("Scrape jobs of the server.")
    yield (
        _known("instance", 'orpheus_capacity{job=~"$job"}')
        .label("Replica")
        .description("Replicas that are shown, and that totals are of.")
    )
    yield (
        boards.CustomVariable("quantile")
        .label("Quantile")
        .values("0.5,0.9,0.95,0.99")
        .current(VariableOption(text="0.99", value="0.99"))
        .description("Where a panel says the chosen quantile.")
    )
    for name, label, value, text in (
        ("price", "Price", "2.50", "What one replica costs in an hour: a GPU, or its slice."),
        ("talk", "Talk share", "0.35", "Expected share of an open socket's time that is speech."),
        ("runbook", "Runbook", RUNBOOK, "Where docs/operations.md can be read."),
    ):
        yield (
            boards.TextBoxVariable(name)
            .label(label)
            .default_value(value)
            .description(text)
            .current(VariableOption(text=value, value=value))
        )


def _known(label: str, metric: str) -> boards.QueryVariable:
    """A variable with the values that a label has; all of them unless some are chosen."""
    return (
        boards.QueryVariable(label)
        .datasource(SOURCE)
        .query(f"label_values({metric}, {label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(text="All", value="$__all"))
    )


def _built(panel: Panel, number: int) -> Any:
    builder = _shaped(panel)
    builder.id(number).title(panel.title).description(panel.description).datasource(SOURCE)
    builder.span(panel.width).height(HEIGHTS.get(panel.kind, 8))
    builder.links(
        [
            boards.DashboardLink(f"Runbook: {alert}").url(anchor(alert)).target_blank(True)
            for alert in panel.alerts
        ]
    )
    for position, query in enumerate(panel.queries):
        builder.with_target(_target(panel.kind, query, chr(ord("A") + position)))
    return builder


def _shaped(panel: Panel) -> Any:
    """What is particular to a kind of panel. The builders share an interface but no type."""
    match panel.kind:
        case "lines":
            legend = common.VizLegendOptions()
            legend.display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
            legend.show_legend(True)
            return timeseries.Panel().unit(panel.unit).min(0).fill_opacity(5).legend(legend)
        case "stat":
            return stat.Panel().unit(panel.unit).color_mode(BigValueColorMode.NONE)
        case "heatmap":
            axis = heatmap.YAxisConfig().unit(panel.unit)
            return heatmap.Panel().calculate(False).y_axis(axis)
        case "alerts":
            return table.Panel().show_header(True)


def _target(kind: Kind, query: Query, name: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(name).datasource(SOURCE).legend_format(query.legend)
    target.expr(query.expr.replace("SELECTED", SELECTED)).format(
        FORMATS.get(kind, PromQueryFormat.TIME_SERIES)
    )
    return target.instant() if kind in INSTANT else target.range()


if __name__ == "__main__":
    FILE.write_text(make(), encoding="utf-8")
