"""What a panel is, and how its queries are written.

Rule: `SELECTED` in a query stands for the replicas that the dashboard's variables select; how a panel
becomes Grafana's JSON is in `dashboard.py`.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["lines", "stat", "heatmap", "alerts"]


class Query(NamedTuple):
    """A line, or one for each replica, and what the legend calls it."""

    expr: str
    legend: str = "{{instance}}"


class Panel(NamedTuple):
    """One picture. `unit` is Grafana's name of a unit; `width` is of 24."""

    title: str
    unit: str
    description: str
    queries: tuple[Query, ...]
    alerts: tuple[str, ...] = ()
    kind: Kind = "lines"
    width: int = 8


def quantile(metric: str, legend: str = "{{instance}}", by: str = "instance, ") -> Query:
    """The quantile that the dashboard's variable names, for each replica."""
    rate = f"sum by ({by}le) (rate({metric}_bucket{{SELECTED}}[$__rate_interval]))"
    return Query(f"histogram_quantile($quantile, {rate})", legend)


def quantile_of_all(metric: str, legend: str = "all") -> Query:
    """The same of all selected replicas together."""
    return quantile(metric, legend, by="")


def rate(metric: str, labels: str = "SELECTED") -> str:
    """How fast a counter grows, by the second."""
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def admitting(metric: str) -> str:
    """The sum over the replicas that are not draining."""
    return f"sum({metric} unless on (job, instance) orpheus_draining_seconds > 0)"


OBJECTIVE: Final = Query("orpheus:time_to_first_byte_objective:seconds", "objective")
SPEECH: Final = f"sum({rate('orpheus_audio_seconds_total')})"
"""Seconds of speech a second, which is hours of speech an hour."""
